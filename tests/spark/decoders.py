"""Decoders of payloads that tests name by import path; workers import them too."""

import pyarrow as pa
import pyarrow.compute as pc


def number_and_level(payloads: pa.Array, topics: pa.Array) -> pa.Array:
    """The number in front of the colon, and the topic's first level."""
    numbers = pa.array([int(value.as_py().split(b":")[0]) for value in payloads], pa.int64())
    levels = pc.list_element(pc.split_pattern(topics, "/"), 0)
    return pa.StructArray.from_arrays([numbers, levels], names=["number", "level"])


def too_few(payloads: pa.Array, topics: pa.Array) -> pa.Array:
    """One value less than there are payloads."""
    return pa.nulls(len(payloads) - 1, pa.int64())
