"""The hot path of a log, called for every batch: append, commit, read what is recent.

`ShardLog` adds everything else. Invariant: a log that is written has a committer; one that is followed has none, and
`_seen` is where it ends.
"""

from collections.abc import Callable
from time import perf_counter_ns

import cython

from everlog.base import Unavailable

if not cython.compiled:
    from everlog.base import MessageColumns, PublisherColumn, PublisherName, Records, TopicTable
    from everlog.commitlog.committer import Committer
    from everlog.commitlog.tail import Tail

READ_ONLY = "the log was opened read-only"
QUICK_NS = 1_000_000  # a commit that takes longer than this is left to the thread that commits
PATIENCE_NS = 2_000_000  # for a disk that is slower than usual
QUICK_BYTES = 24 << 10  # and so is one of more than this


class HotPath:
    """The part of a log that a broker calls for every batch."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._committer: Committer | None = None
        self._wake: Callable[[], None] | None = None  # wakes the thread that commits, if there is one
        self._seen = 0
        self._quick_ns = QUICK_NS
        self._quick_bytes = QUICK_BYTES
        self._usual_ns = 2 * QUICK_NS  # how long a commit took lately; slow until some have shown that it is not

    @property
    def end(self) -> int:
        """The offset after the last appended record."""
        return self._committer._open_batch.end if self._committer is not None else self._seen

    @property
    def committed(self) -> int:
        """The offset after the last committed record; readers see nothing at or above it."""
        return self._committer.committed if self._committer is not None else self._seen

    @property
    def pending_bytes(self) -> int:
        """How many bytes were appended and are not yet written."""
        return self._committer.pending() if self._committer is not None else 0

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        wanted: int = 0,
        publisher: PublisherName | PublisherColumn | None = None,
    ) -> int:
        """Append messages as `RecordBuilder.append` does and return how many; the first has the offset `end` had.

        They are committed only after a call of `commit` or `commit_here`.
        """
        if self._committer is None:
            raise Unavailable(READ_ONLY)
        return self._committer.append(columns, start, stop, now_us, table, routes, wanted, publisher)

    def commit(self) -> None:
        """Ask that what was appended be committed, and return at once."""
        if self._wake is not None and self._committer is not None:
            self._committer.ask(self._committer._open_batch.end)
            self._wake()

    def commit_here(self, until_ns: int = 0) -> bool:
        """Commit in this thread if that is likely to be quick, else leave it to the thread that commits.

        Return whether it was committed here. Quick means that little has gathered, nobody else is at it, and a commit
        took little time lately: then two changes of thread cost more than they save. A disk that is slow this time is
        waited for until `until_ns` of `perf_counter_ns`, at most for PATIENCE_NS; that thread does the rest.
        """
        committer = self._committer
        if committer is None:
            raise Unavailable(READ_ONLY)
        if self._wake is None:
            return False
        if self._usual_ns > self._quick_ns or committer.pending() > self._quick_bytes:
            self.commit()
            return False
        began = perf_counter_ns()
        patience_ns = PATIENCE_NS if until_ns == 0 else min(PATIENCE_NS, until_ns - began)
        if patience_ns <= 0:
            self.commit()
            return False
        done = committer.quick_step(committer._open_batch.end, patience_ns)
        if done < 0 and committer.trouble is None:
            self._wake()
        elif done:
            self._took(perf_counter_ns() - began)
        return done > 0

    def _commit_once(self) -> bool:
        """Commit once, in the thread that commits, unless there is trouble and it is too early to try again."""
        committer = self._committer
        if committer is None or committer.rest_s():
            return False
        began = perf_counter_ns()
        if committer.step():
            self._took(perf_counter_ns() - began)
        return False  # whoever appended asks again: nothing is taken that nobody waits for

    def _took(self, ns: int) -> int:
        """Update the running mean over about eight commits; two threads may lose each other's, it is an estimate."""
        self._usual_ns += (ns - self._usual_ns) // 8
        return 0

    def read(self, offset: int, max_bytes: int) -> list[Records]:
        """Return committed, verified, whole batches from the one that holds `offset` on, at least one if there is one.

        If the offset is damaged or no longer retained, they begin after it.
        """
        committed = self._committer.committed if self._committer is not None else self._seen
        if offset >= committed:
            return []
        batches = self._tail.read(offset, max_bytes)
        if batches is None:
            batches = self._read_files(offset, max_bytes)
        if batches:
            last = batches[len(batches) - 1]
            if last.base_offset >= committed:
                batches = [records for records in batches if records.base_offset < committed]
        return batches

    def _read_files(self, offset: int, max_bytes: int) -> list[Records]:
        """Read what is not in memory."""
        raise NotImplementedError
