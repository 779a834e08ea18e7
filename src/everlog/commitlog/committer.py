"""Group commit: takes the batches that gathered, writes and syncs them, publishes them and tells whoever waits.

`step` is a plain function: a thread drives it in a broker, the simulation drives it in tests. One lock guards what
gathers; the write runs outside it, so that appends go on meanwhile. A failure is final until the log is reopened: what
was published stays readable, everything else is refused.
"""

import threading
from collections.abc import Callable

import cython

from everlog.base import StorageError, Unavailable
from everlog.commitlog.catalog import Segment
from everlog.commitlog.log_settings import Durability
from everlog.commitlog.waiters import Waiters

if not cython.compiled:
    from everlog.base import MessageColumns, Records, TopicTable
    from everlog.commitlog.open_batch import OpenBatch, Placed
    from everlog.commitlog.segment_writer import SegmentWriter
    from everlog.commitlog.tail import Tail

RESERVE = 1 << 22  # offsets that a log without syncs may give out before it syncs its mark again
REOPEN = "the log is read-only until it is reopened: free or replace the disk, then restart Everlog"


class Committer:
    """The writing side of a log, which commits one group at a time."""

    def __init__(self, open_batch: OpenBatch, writer: SegmentWriter, tail: Tail, durability: Durability) -> None:
        self.committed = open_batch.end
        self.failure: StorageError | None = None
        self.closed = False
        self.groups = 0  # how much was committed, in how many groups
        self.batches = 0
        self.records = 0
        self.committed_bytes = 0
        self.completed: Callable[[Segment], None] = lambda segment: None
        self.announce: Callable[[int], None] | None = None
        self.failed: Callable[[StorageError], None] = lambda failure: None
        self._open_batch = open_batch
        self._writer = writer
        self._tail = tail
        self._syncing = durability == "fsync"
        self._in_memory = durability == "memory"
        self._gate = threading.Lock()  # guards the open batch, failure, closed
        self._stepping = threading.Lock()  # at most one group is being written
        self._waiters = Waiters()

    @property
    def end(self) -> int:
        """The offset after the last appended record."""
        return self._open_batch.end

    @property
    def written(self) -> int:
        """The offset after the last written record."""
        return self._writer.written

    @property
    def segment(self) -> Segment | None:
        """The segment that is written to, or None before its first batch."""
        return self._writer.segment

    def pending(self) -> int:
        """Return how many bytes wait to be written."""
        return self._open_batch.pending()

    def append(
        self, columns: MessageColumns, start: int, stop: int, now_us: int, table: TopicTable,
        routes: bytearray | None, wanted: int,
    ) -> int:  # fmt: skip
        """Take in messages, which are committed by a step after they were asked for."""
        with self._gate:
            if self.failure is not None:
                raise self.failure
            if self.closed:
                raise Unavailable("the log is closed")
            return self._open_batch.append(columns, start, stop, now_us, table, routes, wanted)

    def ask(self, offset: int) -> int:
        """Ask that what was appended below an offset be committed; nothing else will be."""
        with self._gate:
            self._open_batch.ask(offset)
        return 0

    def step(self) -> bool:
        """Commit what was asked for; return False if there was nothing."""
        with self._stepping:
            return self._step(0)

    def try_step(self, offset: int) -> int:
        """Ask for what is below an offset and take a step; return -1 if another thread is at it."""
        if not self._stepping.acquire(False):
            self.ask(offset)
            return -1
        try:
            return 1 if self._step(offset) else 0
        finally:
            self._stepping.release()

    def _step(self, offset: int) -> bool:
        with self._gate:
            if self.failure is not None:
                return False
            self._open_batch.ask(offset)
            group = self._open_batch.take()
        if not group:
            return False
        try:
            self._commit(group)
        except OSError as error:
            self.fail_writing(error)
        return True

    def _commit(self, group: list[Placed]) -> int:
        writer = self._writer
        if not self._syncing:
            end = group[len(group) - 1][0].end_offset
            if end > writer.mark.reserved:
                writer.mark.keep(writer.current()._replace(reserved=end + RESERVE))
            if self._in_memory:
                self._publish([placed[0] for placed in group], end)
        k = 0
        while k < len(group):
            base = group[k][1]
            batches = []
            size = 0
            while k < len(group) and group[k][1] == base:
                records = group[k][0]
                batches.append(records)
                size += records.size
                k += 1
            before = writer.segment
            writer.write(base, batches)
            self._open_batch.written(size)
            if self._in_memory:
                self._tail.trim(writer.written)
            else:
                self._publish(batches, writer.written)
            if before is not None and before is not writer.segment:
                self.completed(before)
        return 0

    def _publish(self, batches: list[Records], committed: int) -> int:
        """Let readers see batches, which are as durable as the settings demand."""
        self._tail.add(batches, self._writer.written)
        self.committed = committed
        self.groups += 1
        for records in batches:
            self.batches += 1
            self.records += records.count
            self.committed_bytes += records.size
        if self._waiters.waiting:
            self._waiters.wake(committed)
        if self.announce is not None:
            self.announce(committed)
        return 0

    def cut(self) -> None:
        """Cut the zeros off the end of the open segment: nothing more is written."""
        with self._stepping:
            self._writer.cut()

    def remark(self) -> None:
        """Tell readers that segments were merged or removed."""
        with self._stepping:
            self._writer.layout += 1
            if self.failure is not None or self.closed:
                return
            try:
                self._writer.publish()
            except OSError as error:
                self.fail_writing(error)

    def roll(self) -> None:
        """Begin a new, empty segment now, unless the last one is empty or something waits to be written."""
        with self._stepping:
            with self._gate:
                if self.failure is not None or self._open_batch.pending():
                    return
                base, table = self._open_batch.begin_segment(), self._open_batch.table
            before = self._writer.segment
            if before is None or before.base_offset == base:
                return
            try:
                self._writer.begin(base, table, [])
                self._writer.publish()
            except OSError as error:
                self.fail_writing(error)
                return
            self.completed(before)

    def wait(self, offset: int, timeout: float | None, lead: bool, ask: Callable[[], None]) -> None:
        """Return once everything below an offset is committed.

        A caller that may `lead` commits the group itself when nobody else is at it, which saves two changes of
        threads. Otherwise the committing thread is asked to.
        """
        if self.committed < offset:
            if not lead:
                self.ask(offset)
            if not lead or self.try_step(offset) < 0:
                ask()
        if self.committed < offset:
            self._waiters.wait(offset, lambda: self._settled(offset), timeout)
        if self.committed >= offset:
            return
        if self.failure is not None:
            raise self.failure
        raise Unavailable("the log was closed" if self.closed else f"offset {offset} was not committed in {timeout} s")

    def _settled(self, offset: int) -> bool:
        return self.committed >= offset or self.failure is not None or self.closed

    def fail_writing(self, error: OSError) -> None:
        """Note that a write or a sync failed."""
        self.fail(f"writing to {self._writer.directory} failed: {error}", error)

    def fail(self, message: str, cause: BaseException) -> None:
        """Refuse everything from now on."""
        failure = StorageError(message, hint=REOPEN)
        failure.__cause__ = cause
        with self._gate:
            if self.failure is not None:
                return
            self.failure = failure
        self._waiters.wake()
        self.failed(failure)

    def gave_up(self, error: Exception) -> None:
        """Note that a thread of the log met an error that it was not made for."""
        self.fail(f"the log stopped: {error!r}", error)

    def finish(self) -> None:
        """Take no more appends; at a clean stop, when all is synced, make the mark durable."""
        with self._stepping:
            with self._gate:
                self.closed = True
            self._waiters.wake()
            try:
                if self.failure is None:
                    self._writer.publish()
                    self._writer.mark.keep(self._writer.current()._replace(reserved=self.committed, synced=True))
            except OSError as error:
                self.fail_writing(error)
            finally:
                self._writer.mark.close()
