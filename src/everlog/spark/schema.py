"""The log as a table: its columns, in Arrow's words and in Spark's.

A column that a later version adds comes after the others and is null in rows that were written before. `properties` has
the bytes of a record's MQTT 5 properties, so that the record can be made again from a row; it is read only if asked
for.
"""

from collections.abc import Iterable

import pyarrow as pa

from everlog.base import UsageError

_NOT_NULL = " NOT NULL"
_TYPES = {
    "shard": (pa.int32(), "INT NOT NULL"),
    "offset": (pa.int64(), "BIGINT NOT NULL"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMP NOT NULL"),
    "topic": (pa.string(), "STRING NOT NULL"),
    "levels": (pa.list_(pa.field("element", pa.string(), nullable=False)), "ARRAY<STRING> NOT NULL"),
    "qos": (pa.int8(), "TINYINT NOT NULL"),
    "retain": (pa.bool_(), "BOOLEAN NOT NULL"),
    "expiry": (pa.int64(), "BIGINT"),
    "content_type": (pa.string(), "STRING"),
    "response_topic": (pa.string(), "STRING"),
    "correlation_data": (pa.binary(), "BINARY"),
    "user_properties": (pa.map_(pa.string(), pa.string()), "MAP<STRING, STRING>"),
    "client_id": (pa.string(), "STRING"),
    "properties": (pa.binary(), "BINARY"),
    "payload": (pa.binary(), "BINARY NOT NULL"),
}
SCHEMA = pa.schema([pa.field(name, kind, not ddl.endswith(_NOT_NULL)) for name, (kind, ddl) in _TYPES.items()])
COLUMNS = tuple(SCHEMA.names)
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "properties")


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
    return ", ".join(f"`{name}` {payload if name == 'payload' else _TYPES[name][1]}" for name in chosen)
