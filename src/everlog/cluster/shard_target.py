"""The commit target of a shard that is owned: its rows, which of its tables they go into, and what became of them.

The log's committing thread waits here, and nobody else. How rows are committed, alone or with those of other shards, is
`TailCommits`. While a commit is in doubt, and while the tail is full, the log is told of trouble.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

import cython

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.cluster.ports import TABLES, TableFill, Takeover
from everlog.cluster.rows import TailRow, make_row
from everlog.cluster.tail_commits import BUSY_S, TRANSACTION_BYTES

if not cython.compiled:
    from everlog.base import Records
    from everlog.cluster.origins import Origins
    from everlog.cluster.tail_commits import Part, TailCommits

Troubled = Callable[["StorageError | None"], None]


class ShardTarget:
    """A shard's tail, written as the owner of one epoch. `take_over` comes first, then the log's thread commits."""

    def __init__(
        self,
        commits: "TailCommits",
        shard: int,
        epoch: int,
        own: int,
        *,
        tail_bytes: int,
        transaction_bytes: int = TRANSACTION_BYTES,
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.end = 0  # where the committed rows end
        self.is_in_doubt = False  # whether a commit was not confirmed and is being settled
        self.doubts = 0  # commits that were not confirmed at once
        self.waits_since: float | None = None  # when the commit began that the database has not confirmed, monotonic
        self.is_stopped = False
        self.troubled: Troubled = lambda trouble: None
        self.wrote: Callable[[Sequence[TailRow]], None] | None = None  # told of rows that are committed
        self._commits = commits
        self._own = own
        self._table_bytes = max(1, tail_bytes // TABLES)
        self._transaction_bytes = min(transaction_bytes, self._table_bytes)
        self._lock = commits.lock
        self._changed = commits.changed
        self._fills = [TableFill() for _ in range(TABLES)]
        self._table = 0
        self._is_in_trouble = False
        self.origins: Origins

    def take_over(self) -> Takeover:
        """Fence the owners before and learn where they ended; raise `Fenced` if a later one has the shard."""
        probe = int.from_bytes(random.SystemRandom().randbytes(7))
        attempt = 0
        while True:
            try:
                found = self._commits.tables.take_over(self.shard, self.epoch, probe)
                break
            except Fenced:
                raise
            except EverlogError as error:
                self._note(error)
                self._commits.pause(attempt, lambda: self.is_stopped)
                attempt += 1
            if self.is_stopped:
                raise self.closed()
        self._note(None)
        self.end = found.end
        self._fills, self._table = found.fills, found.last_table
        self.origins = Origins(self._own, found.origins, found.closed, found.end)
        return found

    def commit(self, group: Sequence[tuple[Records, int]]) -> None:
        """Commit batches, each with its segment, in transactions of their own."""
        rows = self.rows(group)
        while rows:
            part = self.part(rows, self._transaction_bytes)
            if part is None:
                with self._changed:
                    self._changed.wait_for(lambda: self.is_stopped or self._has_room())
                if self.is_stopped:
                    raise self.closed()
                continue
            while not part.is_committed:
                self._commits.commit([part])
                if part.refusal is not None:
                    raise part.refusal
                if not (part.is_committed or part.is_in_doubt):
                    self._commits.rest([part], BUSY_S)

    def rows(self, group: Sequence[tuple[Records, int]]) -> deque[TailRow]:
        """Return the rows of batches, but those that are committed already."""
        rows: deque[TailRow] = deque()
        for records, segment in group:
            end = records.end_offset
            if end > self.end:
                origins = self.origins.place(end, whole=records.base_offset == segment)
                rows.append(make_row(records, segment, self.epoch, origins))
        return rows

    def part(self, rows: deque[TailRow], room: int) -> "Part | None":
        """Take from the front of rows what goes into a transaction that has so much room; None if the tail is full."""
        with self._lock:
            if not self._has_room():
                if not self._is_in_trouble:
                    self._note(self._full())
                return None
            if self._fills[self._table].size >= self._table_bytes:
                self._table = (self._table + 1) % TABLES
                self._commits.filled()
            table = self._table
        room = min(room, self._transaction_bytes)
        first = rows.popleft()
        taken = [first]
        size = first.size
        while rows and size + rows[0].size <= room:
            size += rows[0].size
            taken.append(rows.popleft())
        return Part(self, table, taken, size)

    def _has_room(self) -> bool:
        """Return whether the current table has, or the next one, which must be empty."""
        if self._fills[self._table].size < self._table_bytes:
            return True
        return not self._fills[(self._table + 1) % TABLES].rows

    def _full(self) -> StorageError:
        held = sum(fill.size for fill in self._fills)
        return StorageError(
            f"the tail of shard {self.shard} holds {held} bytes that are not in the bucket",
            hint="look at the bucket: publishers wait, and go on by themselves once segments are stored there",
        )

    # What becomes of a part

    def begin(self) -> int:
        """Note that the database is waited for."""
        if self.waits_since is None:
            self.waits_since = time.monotonic()
        return 0

    def end_wait(self) -> int:
        """Note that it has answered."""
        self.waits_since = None
        return 0

    def doubt(self, error: EverlogError) -> None:
        """Note that a commit was not confirmed."""
        self.doubts += not self.is_in_doubt
        self.is_in_doubt = True
        self._note(error)

    def committed(self, part: "Part") -> int:
        """Note that a part is committed."""
        rows = part.rows.rows
        end = rows[len(rows) - 1].end
        self.is_in_doubt = False
        self.waits_since = None
        with self._lock:
            fill = self._fills[part.rows.table]
            fill.size += part.size
            fill.rows += len(rows)
            fill.end = end
        self.end = end
        if self._is_in_trouble:
            self._note(None)
        if self.wrote is not None:
            self.wrote(rows)
        return 0

    def closed(self) -> Unavailable:
        """Return why nothing more is committed here."""
        return Unavailable(f"shard {self.shard} was closed before a commit was confirmed")

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
        self._commits.tell()

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
        self._commits.tables.close_origin(self.shard, origin, final, self.epoch)
        self.origins.forget(origin)

    def stop(self) -> None:
        """Let go of a commit that waits: what others have in it is settled without this shard."""
        self.is_stopped = True
        self._commits.tell()
        if self.waits_since is not None:
            self._commits.tables.interrupt()
