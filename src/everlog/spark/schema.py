"""The log as a table: its columns, in Arrow's words and in Spark's.

A column that a later version adds comes after the others and is null in rows that were written before. `properties` has
the bytes of a record's MQTT 5 properties, so that the record can be made again from a row; it is read only if asked
for.
"""

from collections.abc import Iterable

import pyarrow as pa

from everlog.base import UsageError

SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("levels", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("expiry", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("response_topic", pa.string()),
        pa.field("correlation_data", pa.binary()),
        pa.field("user_properties", pa.map_(pa.string(), pa.string())),
        pa.field("client_id", pa.string()),
        pa.field("properties", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
COLUMNS = tuple(SCHEMA.names)
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "properties")

_SPARK_TYPES = {
    "shard": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "timestamp": "TIMESTAMP NOT NULL",
    "topic": "STRING NOT NULL",
    "levels": "ARRAY<STRING> NOT NULL",
    "qos": "TINYINT NOT NULL",
    "retain": "BOOLEAN NOT NULL",
    "expiry": "BIGINT",
    "content_type": "STRING",
    "response_topic": "STRING",
    "correlation_data": "BINARY",
    "user_properties": "MAP<STRING, STRING>",
    "client_id": "STRING",
    "properties": "BINARY",
    "payload": "BINARY NOT NULL",
}


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, if they are columns of the table and each is named once."""
    chosen = tuple(names)
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown:
        raise UsageError(f"no column is called {', '.join(unknown)}", hint=f"there are: {', '.join(COLUMNS)}")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"a column is named twice in {', '.join(chosen)}")
    return chosen


def schema_of(columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the schema of some columns in the order they are named; the usual ones by default."""
    chosen = DEFAULT_COLUMNS if columns is None else check_columns(columns)
    return pa.schema([SCHEMA.field(name) for name in chosen])


def spark_ddl(columns: Iterable[str] | None = None, *, payload: str = "BINARY NOT NULL") -> str:
    """Return the schema of some columns as Spark's DDL; `payload` is the type of a payload column that is decoded."""
    chosen = DEFAULT_COLUMNS if columns is None else check_columns(columns)
    return ", ".join(f"`{name}` {payload if name == 'payload' else _SPARK_TYPES[name]}" for name in chosen)
