"""The commit target of a shard that is owned: rows in the tail, however long that takes.

The log's committing thread waits here, and nobody else. A commit that was not confirmed is in doubt: it may be there,
or not, or be there and on no standby. From then on the same rows are settled, by transactions that write, until one is
confirmed or the shard is found to be another's. While it lasts, and while the tail is full, the log is told of trouble.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from everlog.base import EverlogError, Fenced, Records, StorageError, Unavailable
from everlog.cluster.origins import Origins
from everlog.cluster.ports import TABLES, TableFill, TailTables, Takeover
from everlog.cluster.rows import TailRow, make_row

TRANSACTION_BYTES = 4 << 20  # of rows in one transaction, unless a single one has more
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

T = TypeVar("T")
Troubled = Callable[[StorageError | None], None]


class ShardTarget:
    """A shard's tail, written as the owner of one epoch. `take_over` comes first, then the log's thread commits."""

    def __init__(
        self,
        tables: TailTables,
        shard: int,
        epoch: int,
        own: int,
        *,
        tail_bytes: int,
        transaction_bytes: int = TRANSACTION_BYTES,
        pause: Callable[[int], float] | None = None,
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.end = 0  # where the committed rows end
        self.is_in_doubt = False  # whether a commit was not confirmed and is being settled
        self.doubts = 0  # commits that were not confirmed at once
        self.waits_since: float | None = None  # when the commit began that the database has not confirmed, monotonic
        self.troubled: Troubled = lambda trouble: None
        self.wrote: Callable[[Sequence[TailRow]], None] | None = None  # told of rows that are committed
        self._tables = tables
        self._own = own
        self._table_bytes = max(1, tail_bytes // TABLES)
        self._transaction_bytes = min(transaction_bytes, self._table_bytes)
        self._pause = pause or _pause_s
        self._lock = threading.Condition()
        self._fills = [TableFill() for _ in range(TABLES)]
        self._table = 0
        self._is_stopped = False
        self._is_in_trouble = False
        self.origins: Origins

    def take_over(self) -> Takeover:
        """Fence the owners before and learn where they ended; raise `Fenced` if a later one has the shard."""
        probe = int.from_bytes(random.SystemRandom().randbytes(7))
        found = self._until_done(lambda: self._tables.take_over(self.epoch, probe))
        self.end = found.end
        self._fills, self._table = found.fills, found.last_table
        self.origins = Origins(self._own, found.origins, found.closed, found.end)
        return found

    def commit(self, group: Sequence[tuple[Records, int]]) -> None:
        """Commit batches, each with its segment."""
        rows = [self._row(records, segment) for records, segment in group if records.end_offset > self.end]
        at = 0
        while at < len(rows):
            count, size = 1, rows[at].size
            while at + count < len(rows) and size + rows[at + count].size <= self._transaction_bytes:
                size += rows[at + count].size
                count += 1
            self._commit(rows[at : at + count], size)
            at += count

    def _row(self, records: Records, segment: int) -> TailRow:
        whole = records.base_offset == segment
        return make_row(records, segment, self.epoch, self.origins.place(records.end_offset, whole=whole))

    def _commit(self, rows: list[TailRow], size: int) -> None:
        table = self._choose_table()
        is_doubted = False

        def act() -> None:
            nonlocal is_doubted
            call = self._tables.settle if is_doubted else self._tables.insert
            is_doubted = True
            try:
                call(table, rows)
            except Fenced:
                raise
            except EverlogError:
                self.doubts += not self.is_in_doubt
                self.is_in_doubt = True
                raise

        self._until_done(act)
        self.is_in_doubt = False
        with self._lock:
            fill = self._fills[table]
            fill.size, fill.rows, fill.end = fill.size + size, fill.rows + len(rows), rows[-1].end
        self.end = rows[-1].end
        if self.wrote is not None:
            self.wrote(rows)

    def _until_done(self, act: Callable[[], T]) -> T:
        """Do something until it is confirmed."""
        attempt = 0
        self.waits_since = time.monotonic()
        while True:
            if self._is_stopped:
                raise Unavailable(f"shard {self.shard} was closed before a commit was confirmed")
            try:
                result = act()
            except Fenced:
                self.waits_since = None
                raise
            except EverlogError as error:
                self._note(error)
                with self._lock:
                    self._lock.wait_for(lambda: self._is_stopped, self._pause(attempt))
                attempt += 1
            else:
                self.waits_since = None
                self._note(None)
                return result

    def _choose_table(self) -> int:
        """Return the table for the next rows: the next one if the current is full, once it is empty."""
        with self._lock:
            if self._fills[self._table].size < self._table_bytes:
                return self._table
            following = (self._table + 1) % TABLES
            if self._fills[following].rows:
                self._note(self._full())
                self._lock.wait_for(lambda: self._is_stopped or not self._fills[following].rows)
                if self._is_stopped:
                    raise Unavailable(f"shard {self.shard} was closed while its tail was full")
                self._note(None)
            self._table = following
            return following

    def _full(self) -> StorageError:
        held = sum(fill.size for fill in self._fills)
        return StorageError(
            f"the tail of shard {self.shard} holds {held} bytes that are not in the bucket",
            hint="look at the bucket: publishers wait, and go on by themselves once segments are stored there",
        )

    def _note(self, error: EverlogError | None) -> None:
        if error is None and not self._is_in_trouble:
            return
        self._is_in_trouble = error is not None
        if error is None or isinstance(error, StorageError):
            self.troubled(error)
        else:
            self.troubled(StorageError(error.message, hint=error.hint))

    def full_tables(self) -> list[tuple[int, int]]:
        """Return the tables that are not written to and hold rows, with where these end, oldest first."""
        with self._lock:
            order = [(self._table + 1 + step) % TABLES for step in range(TABLES - 1)]
            return [(table, self._fills[table].end) for table in order if self._fills[table].rows]

    def emptied(self, table: int) -> None:
        """Note that one of these was emptied."""
        with self._lock:
            self._fills[table] = TableFill()
            self._lock.notify_all()

    @property
    def held_bytes(self) -> int:
        """How many bytes the tail holds."""
        with self._lock:
            return sum(fill.size for fill in self._fills)

    @property
    def held_rows(self) -> int:
        """How many rows the tail holds."""
        with self._lock:
            return sum(fill.rows for fill in self._fills)

    def close_origin(self, origin: int, final: int) -> None:
        """Store the final number of an origin, all of whose messages are committed."""
        self._tables.close_origin(origin, final, self.epoch)
        self.origins.forget(origin)

    def stop(self) -> None:
        """Let go of a commit that waits, and of the tables."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()
        self._tables.interrupt()

    def close(self) -> None:
        """Let go of the tables, once nobody commits."""
        self._tables.close()


def _pause_s(attempt: int) -> float:
    """Return how long to wait before the next attempt: longer each time, and never the same for two brokers."""
    return min(_FIRST_PAUSE_S * float(1 << min(attempt, 10)), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
