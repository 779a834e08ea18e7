"""Rows that become messages of streams or entries of key-value stores: their columns, and the requests made of them."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from everlog.base import EverlogError, UsageError
from everlog.spark.log_slices import parse_filters
from everlog.spark.sink.sink_options import StateTarget
from everlog.spark.sink.staged_rows import as_bytes, check_schema
from everlog.streams import check_name
from everlog.topics import matches

_TEXT, _BYTES = ("string", "large_string"), ("binary", "large_binary", "string", "large_string")
_NUMBER = ("double", "float", "int64", "int32", "int16", "int8")
_REST = {"value": _BYTES, "headers": ("map",), "timestamp": _NUMBER, "ttl": _NUMBER}
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "streams": {"stream": _TEXT, **_REST},
    "kv": {"kv": _TEXT, "key": _TEXT, **_REST},
}
_NAME = {"streams": "stream", "kv": "kv"}
WINDOW = 2000  # rows that are on their way together
WINDOW_BYTES = 4 << 20
GROUP = 500  # rows of one request

Row = dict[str, Any]
Numbered = tuple[int, Row]


def check_state_schema(schema: pa.Schema, target: StateTarget) -> None:
    """Refuse columns that no message has, and a frame whose rows don't say where they belong."""
    needed = ["value"] if target.kind == "streams" else ["key", "value"]
    check_schema(schema, COLUMNS[target.kind], needed)
    name = _NAME[target.kind]
    if target.name is None and name not in schema.names:
        raise UsageError(
            f"rows need a column {name}, as the option {target.kind} is not one name", hint="add it, or give one name"
        )


class StateCheck:
    """Refuses rows that a server would refuse, before any are sent."""

    def __init__(self, target: StateTarget) -> None:
        self._target = target

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Check the names and keys of some rows."""
        column = _NAME[self._target.kind]
        names = [self._target.name] if self._target.name else []
        if column in batch.schema.names:
            if batch.column(column).null_count:
                raise UsageError(f"{batch.column(column).null_count} rows have no {column}")
            names = pc.unique(batch.column(column)).to_pylist()
        filters = parse_filters(self._target.filters)
        for name in names:
            try:
                check_name(name)
            except EverlogError as error:
                raise UsageError(error.message, hint=error.hint) from None
            if not any(matches(one, name) for one in filters):
                raise UsageError(f"{name!r} is not what the option {self._target.kind} says", hint="widen its filter")
        if "key" in batch.schema.names:
            keys = batch.column("key")
            if keys.null_count or pc.any(pc.equal(keys, "")).as_py():
                raise UsageError("rows have no key, or an empty one")
        if "ttl" in batch.schema.names:
            low = pc.min(batch.column("ttl")).as_py()
            if low is not None and low <= 0:
                raise UsageError("the column ttl has values that are not a number of seconds above 0")


def windows(rows: Iterator[Numbered]) -> Iterator[list[Numbered]]:
    """Yield the rows that are on their way together; where they begin follows from the rows alone."""
    held: list[Numbered] = []
    size = 0
    for number, row in rows:
        value_bytes = len(row["value"] or b"")
        if held and (len(held) == WINDOW or size + value_bytes > WINDOW_BYTES):
            yield held
            held, size = [], 0
        held.append((number, row))
        size += value_bytes
    if held:
        yield held


def groups(window: list[Numbered], target: StateTarget) -> dict[str, list[list[Numbered]]]:
    """Return the rows of a window by name, in requests of so many rows."""
    found: dict[str, list[list[Numbered]]] = {}
    for one in window:
        requests = found.setdefault(one[1].get(_NAME[target.kind]) or target.name or "", [[]])
        if len(requests[-1]) == GROUP:
            requests.append([])
        requests[-1].append(one)
    return found


def request_id(app: str, batch: int, name: str, first_row: int) -> str:
    """Return the message id of a request, the same whenever it is sent."""
    text = f"{app}\0{batch}\0{name}\0{first_row}"
    return "spark-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def content(row: Row) -> tuple[bytes | None, dict[str, str] | None, float | None, int]:
    """Return value, headers, the writer's own time, and the time to live in microseconds."""
    headers = row.get("headers")
    ttl = row.get("ttl")
    return (
        as_bytes(row["value"]),
        None if headers is None else {key: value or "" for key, value in headers},
        row.get("timestamp"),
        0 if ttl is None else round(ttl * 1_000_000),
    )
