"""Streams and key-value stores as tables: their columns, and record batches made of messages and entries."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from everlog.streams import Entry, StoredMessage

_TIME = pa.timestamp("us", tz="UTC")
_REST = [
    pa.field("shard", pa.int32(), False),
    pa.field("position", pa.int64(), False),
    pa.field("time", _TIME, False),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.map_(pa.string(), pa.string())),
    pa.field("timestamp", pa.float64()),
    pa.field("expires", _TIME),
]
SCHEMAS = {
    "streams": pa.schema([pa.field("stream", pa.string(), False), pa.field("seq", pa.int64(), False), *_REST]),
    "kv": pa.schema(
        [
            pa.field("kv", pa.string(), False),
            pa.field("key", pa.string(), False),
            pa.field("revision", pa.int64(), False),
            *_REST,
        ]
    ),
}


def schema_of(kind: str, is_text: bool) -> pa.Schema:
    """Return the columns of a frame of streams or of key-value stores."""
    schema = SCHEMAS[kind]
    at = schema.get_field_index("value")
    return schema.set(at, schema.field(at).with_type(pa.string())) if is_text else schema


def make_batch(
    name: str, shard: int, found: Sequence[StoredMessage] | Sequence[Entry], columns: Sequence[str], is_text: bool
) -> pa.RecordBatch:
    """Return some columns of messages or entries."""
    kind = "kv" if isinstance(found[0], Entry) else "streams"
    schema = schema_of(kind, is_text)
    chosen = pa.schema([schema.field(column) for column in columns])
    arrays = [pa.array(_values(column, name, shard, found, is_text), chosen.field(column).type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=chosen)


def _values(column: str, name: str, shard: int, found: Sequence[Any], is_text: bool) -> list[Any]:
    if column in ("stream", "kv"):
        return [name] * len(found)
    if column == "shard":
        return [shard] * len(found)
    if column == "time":
        return [one.time_us for one in found]
    if column == "expires":
        return [one.expires_us or None for one in found]
    if column == "headers":
        return [None if one.headers is None else list(one.headers.items()) for one in found]
    if column == "timestamp":
        return [None if one.timestamp is None else float(one.timestamp) for one in found]
    if column == "value" and is_text:
        return [None if one.value is None else one.value.decode(errors="replace") for one in found]
    return [getattr(one, column) for one in found]
