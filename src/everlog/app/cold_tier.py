"""The lake table as a broker's cold tier: found by `lake.json` in the data directory, whenever that appears.

Implements the store's `ColdStore` with the room `spark`, which is imported when there is a table.
"""

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from everlog.base import StorageError
from everlog.store import ColdStore, ReadResult, read_lake_record
from everlog.topics import Filter

if TYPE_CHECKING:
    from everlog.spark import LakeStore

_NEEDED = ("pyarrow", "deltalake")


def cold_tier(data: str, identity: str) -> ColdStore | None:
    """Return the cold tier of a data directory, or None where the packages to read tables are missing."""
    return ColdTier(data, identity) if all(find_spec(name) is not None for name in _NEEDED) else None


class ColdTier:
    """A cold store that is empty until there is a table. Any thread may call it."""

    def __init__(self, data: str, identity: str) -> None:
        self._data = data
        self._identity = identity
        self._uri = ""
        self._table: LakeStore | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """See whether there is a table, and what is in it now."""
        with self._lock:
            record = read_lake_record(self._data)
            if record is None:
                return
            if self._table is not None and record.table == self._uri:
                self._table.refresh()
                return
            from everlog.spark import LakeStore

            table = LakeStore.of_record(record)
            if table.store != self._identity:
                raise StorageError(
                    f"{record.table} is the table of another store", hint="remove lake.json from the data directory"
                )
            self._table, self._uri = table, record.table

    def start(self, shard: int) -> int:
        """Return the first offset that the table has."""
        return self._table.start(shard) if self._table is not None else 0

    def end(self, shard: int) -> int:
        """Return the first offset that is not in the table."""
        return self._table.end(shard) if self._table is not None else 0

    def position_at(self, shard: int, time_us: int) -> int:
        """Return the first record that is not older than a time, or the end."""
        return self._table.position_at(shard, time_us) if self._table is not None else 0

    def read(
        self, shard: int, offset: int, filters: Sequence[Filter] | None, max_records: int, max_bytes: int
    ) -> ReadResult:
        """Read records from an offset on."""
        if self._table is None:
            return ReadResult([], (offset,), True)
        return self._table.read(shard, offset, filters, max_records, max_bytes)

    def close(self) -> None:
        """Close the table."""
        if self._table is not None:
            self._table.close()
