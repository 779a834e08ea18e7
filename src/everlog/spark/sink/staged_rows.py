"""Rows that become messages: the columns they may have, how tasks stage them in files, and how they are read back."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from everlog.base import EverlogError, UsageError
from everlog.mqtt import Properties, Publish
from everlog.spark.file_sync import sync_path
from everlog.topics import check_topic_name

_TEXT, _BYTES = ("string", "large_string"), ("binary", "large_binary", "string", "large_string")
_WHOLE = ("int8", "int16", "int32", "int64")
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": _TEXT,
    "payload": _BYTES,
    "qos": _WHOLE,
    "retain": ("bool",),
    "expiry": _WHOLE,
    "content_type": _TEXT,
    "response_topic": _TEXT,
    "correlation_data": _BYTES,
    "user_properties": ("map",),
}
APP, BATCH, ROW = "everlog-app", "everlog-batch", "everlog-row"  # user properties that tell a row from all others


def check_schema(
    schema: pa.Schema,
    columns: Mapping[str, tuple[str, ...]] = COLUMNS,
    needed: Sequence[str] = ("topic", "payload"),
) -> None:
    """Refuse columns that no message has, and a frame without those that it needs; topic and payload by default."""
    for name in needed:
        if name not in schema.names:
            raise UsageError(f"rows need a column {name}", hint=f"there may be: {', '.join(columns)}")
    for field in schema:
        if field.name not in columns:
            raise UsageError(f"a message has no {field.name}", hint=f"there may be: {', '.join(columns)}")
        kind = "map" if pa.types.is_map(field.type) else str(field.type)
        if kind not in columns[field.name]:
            raise UsageError(f"the column {field.name} is {field.type}", hint=f"make it {columns[field.name][0]}")


def stage(
    batches: Iterable[pa.RecordBatch], directory: str, schema: pa.Schema, check: Callable[[pa.RecordBatch], None]
) -> tuple[str, int]:
    """Write rows to a new file, durable when this returns; returns its name and number of rows.

    `check` refuses rows that can't be sent, before any are.
    """
    os.makedirs(directory, exist_ok=True)
    name = f"{uuid.uuid4().hex}.arrow"
    path = f"{directory}/{name}"
    rows = 0
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            check(batch)
            writer.write_batch(batch.cast(schema))
            rows += batch.num_rows
    sync_path(path)
    return name, rows


def check_messages(batch: pa.RecordBatch) -> None:
    """Refuse rows that a broker would refuse."""
    topics = batch.column("topic")
    if topics.null_count:
        raise UsageError(f"{topics.null_count} rows have no topic")
    for topic in pc.unique(topics).to_pylist():
        try:
            check_topic_name(topic)
        except EverlogError as error:
            raise UsageError(f"the topic {topic!r}: {error.message}") from None
    if "qos" in batch.schema.names:
        bounds = pc.min_max(batch.column("qos")).as_py()
        if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] > 2):
            raise UsageError("the column qos has other values than 0, 1 and 2")
    if "expiry" in batch.schema.names:
        bounds = pc.min_max(batch.column("expiry")).as_py()
        if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] >= 1 << 32):
            raise UsageError("the column expiry has values that are not a number of seconds")


def unstage(paths: Sequence[str], first: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of several files from a number on, each with its number."""
    at = 0
    for path in paths:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if at + batch.num_rows > first:
                    skipped = max(0, first - at)
                    yield from enumerate(batch.slice(skipped).to_pylist(), at + skipped)
                at += batch.num_rows


def make_publish(
    row: dict[str, Any], qos: int, packet_id: int, again: bool, marks: tuple[tuple[str, str], ...]
) -> Publish:
    """Return a row as a PUBLISH; `qos` is for rows without one, `again` says that the row may have been sent before."""
    own = row.get("user_properties") or ()
    asked = row.get("qos")
    level = qos if asked is None else asked
    return Publish(
        topic=row["topic"],
        payload=as_bytes(row["payload"]) or b"",
        qos=level,
        retain=bool(row.get("retain")),
        dup=again and level > 0,
        packet_id=packet_id if level else 0,
        properties=Properties(
            message_expiry_interval=row.get("expiry"),
            content_type=row.get("content_type"),
            response_topic=row.get("response_topic"),
            correlation_data=as_bytes(row.get("correlation_data")),
            user_properties=(*((key, value or "") for key, value in own), *marks),
        ),
    )


def as_bytes(value: "str | bytes | None") -> bytes | None:
    return value.encode() if isinstance(value, str) else value
