"""A file of the table, as its writer and as the table's log describe it.

Files that other programs rewrote (deletes, `OPTIMIZE`, `ZORDER`) may hold several shards, overlap by offset, and have
statistics that are less exact. Such a file is listed once for each shard that it may hold rows of.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from everlog.base import StorageError
from everlog.spark.lake.table_layout import PARTITION, is_own_path, time_text, time_us_of

if TYPE_CHECKING:  # tasks do without these
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_TEXT_BYTES = 256  # of a topic in the statistics; longer ones are cut, the greatest rounded up
_CUT_US = 999  # others cut the times in their statistics to milliseconds
_GREATEST = "\U0010ffff"  # greater than whatever was cut off


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote; the path is relative to the table."""

    path: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class DataFile(WrittenFile):
    """Rows of one shard and day: `first_offset` to `last_offset`, both included, as are times and topics."""

    shard: int
    day: str
    first_offset: int
    last_offset: int
    first_time: int  # microseconds since 1970
    last_time: int
    first_topic: str
    last_topic: str
    modified_ms: int
    qos: tuple[int, int] = (0, 2)
    is_foreign: bool = False  # another program wrote it: rows of other shards may be in it, and bounds are not exact

    def added(self, *, moved: bool = False) -> "AddAction":
        """Return the action that adds the file; `moved` says that its rows were in the table before."""
        from deltalake.transaction import AddAction

        return AddAction(
            self.path, self.size_bytes, {PARTITION: self.day}, self.modified_ms, not moved, self._statistics()
        )

    def removed(self, now_ms: int, *, moved: bool = False) -> "RemoveAction":
        """Return the action that removes the file; `moved` says that its rows stay in the table."""
        from deltalake.transaction import RemoveAction

        return RemoveAction(self.path, not moved, now_ms, self.size_bytes, {PARTITION: self.day})

    def _statistics(self) -> str:
        low = {
            "shard": self.shard,
            "offset": self.first_offset,
            "timestamp": time_text(self.first_time),
            "topic": _short(self.first_topic),
            "qos": self.qos[0],
        }
        high = {
            "shard": self.shard,
            "offset": self.last_offset,
            "timestamp": time_text(self.last_time),
            "topic": _short(self.last_topic, _GREATEST),
            "qos": self.qos[1],
        }
        counts = dict.fromkeys(low, 0)
        return json.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": counts})


def _short(text: str, behind: str = "") -> str:
    """Return a text that is no greater and short; no less with _GREATEST behind what is left."""
    data = text.encode()
    return text if len(data) <= _TEXT_BYTES else data[:_TEXT_BYTES].decode(errors="ignore") + behind


def files_of(table: "DeltaTable") -> list[DataFile]:
    """Return the files of a version of the table by shard and offset; raises StorageError if one is not ours."""
    found = [file for row in pa.table(table.get_add_actions()).to_pylist() for file in _files(row)]
    return sorted(found, key=lambda file: (file.shard, file.first_offset))


def are_apart(files: Sequence[DataFile]) -> bool:
    """Return whether files of one shard follow each other by offset, with exact bounds."""
    return not any(file.is_foreign for file in files) and all(
        one.last_offset < other.first_offset for one, other in pairwise(files)
    )


def _files(row: dict[str, Any]) -> list[DataFile]:
    """Return a file, once for each shard that it may hold."""
    low, high = row["min"] or {}, row["max"] or {}
    if row["num_records"] is None or low.get("offset") is None or low.get("shard") is None:
        raise StorageError(
            f"{row['path']} has no statistics, so something else than everlog wrote to the table",
            hint="keep one table for the store alone; rewrite it with: everlog spark compact --merge",
        )
    is_foreign = not is_own_path(row["path"])
    own = DataFile(
        path=row["path"],
        size_bytes=row["size_bytes"],
        rows=row["num_records"],
        shard=low["shard"],
        day=row["partition"][PARTITION].isoformat(),
        first_offset=low["offset"],
        last_offset=high["offset"],
        first_time=time_us_of(low["timestamp"].astimezone(UTC)),
        last_time=time_us_of(high["timestamp"].astimezone(UTC)) + _CUT_US * is_foreign,
        first_topic="" if is_foreign else low["topic"],
        last_topic=_GREATEST if is_foreign else high["topic"],
        modified_ms=row["modification_time"],
        qos=(low.get("qos") or 0, 2 if high.get("qos") is None else high["qos"]),
        is_foreign=is_foreign,
    )
    return [replace(own, shard=shard) for shard in range(low["shard"], high["shard"] + 1)]


def total_rows(files: Iterable[DataFile]) -> int:
    """Return how many rows the files hold."""
    return sum(file.rows for file in files)
