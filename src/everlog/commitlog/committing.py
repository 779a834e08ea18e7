"""Group commit: takes what gathered, writes and syncs it, publishes it, tells who waits.

`step` is a plain function: a thread drives it in a broker, the simulation drives it in tests. One lock guards what
gathers; the write runs outside it, so appends go on meanwhile. A failure is final until the log is reopened: what was
published stays readable, everything else is refused.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from everlog.base import MessageColumns, Records, StorageError, TopicTable, Unavailable
from everlog.commitlog.catalog import Segment
from everlog.commitlog.gathering import Gathering, Placed
from everlog.commitlog.segmentwriter import SegmentWriter
from everlog.commitlog.settings import Durability
from everlog.commitlog.tail import Tail
from everlog.commitlog.waiting import Waiters

RESERVE = 1 << 22  # offsets that a log without syncs may give out before it syncs its mark again
REOPEN = "the log is read-only until it is reopened: free or replace the disk, then restart Everlog"


@dataclass(slots=True)
class CommitCounts:
    """How much was committed, and in how many groups."""

    groups: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batches: list[Records]) -> None:
        """Another group."""
        self.groups += 1
        self.batches += len(batches)
        for records in batches:
            self.records += records.count
            self.bytes += records.size


class Committer:
    """The writing side of a log: one step at a time."""

    def __init__(self, gathering: Gathering, writer: SegmentWriter, tail: Tail, durability: Durability) -> None:
        self.committed = gathering.end
        self.failure: StorageError | None = None
        self.closed = False
        self.counts = CommitCounts()
        self.completed: Callable[[Segment], None] = lambda segment: None
        self.announce: Callable[[int], None] = lambda committed: None
        self.failed: Callable[[StorageError], None] = lambda failure: None
        self._gathering = gathering
        self._writer = writer
        self._tail = tail
        self._durability = durability
        self._gate = threading.Lock()  # guards gathering, failure, closed
        self._stepping = threading.Lock()  # at most one group is being written
        self._waiters = Waiters()

    @property
    def end(self) -> int:
        """The offset behind the last appended record."""
        return self._gathering.end

    @property
    def written(self) -> int:
        """The offset behind the last written record."""
        return self._writer.written

    @property
    def segment(self) -> Segment | None:
        """The segment that is written to, None before the first batch of a new one."""
        return self._writer.segment

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait to be written."""
        return self._gathering.pending_bytes

    def append(
        self, columns: MessageColumns, start: int, stop: int, now_us: int, table: TopicTable,
        routes: bytearray | None, wanted: int,
    ) -> int:  # fmt: skip
        """Take in messages; they are committed some steps later."""
        with self._gate:
            if self.failure is not None:
                raise self.failure
            if self.closed:
                raise Unavailable("the log is closed")
            return self._gathering.append(columns, start, stop, now_us, table, routes, wanted)

    def step(self) -> bool:
        """Commit what has gathered; False when there was nothing."""
        with self._stepping:
            return self._step()

    def try_step(self) -> bool:
        """As `step`, unless another thread is at it: False then too."""
        if not self._stepping.acquire(blocking=False):
            return False
        try:
            return self._step()
        finally:
            self._stepping.release()

    def _step(self) -> bool:
        with self._gate:
            if self.failure is not None:
                return False
            group = self._gathering.take()
        if not group:
            return False
        try:
            self._commit(group)
        except OSError as error:
            self.fail_writing(error)
        return True

    def _commit(self, group: list[Placed]) -> None:
        writer = self._writer
        end = group[-1].records.base_offset + group[-1].records.count
        if self._durability != "fsync" and end > writer.mark.reserved:
            writer.mark.keep(writer.current()._replace(reserved=end + RESERVE))
        if self._durability == "memory":
            self._publish([placed.records for placed in group], end)
        while group:
            base = group[0].segment
            batches = [placed.records for placed in group if placed.segment == base]
            group = group[len(batches) :]
            before = writer.segment
            writer.write(base, batches)
            size = 0
            for records in batches:
                size += records.size
            with self._gate:
                self._gathering.written(size)
            if self._durability == "memory":
                self._tail.trim(writer.written)
            else:
                self._publish(batches, writer.written)
            if before is not None and before is not writer.segment:
                self.completed(before)

    def _publish(self, batches: list[Records], committed: int) -> None:
        """Let readers see batches: their durability is reached."""
        self._tail.add(batches, self._writer.written)
        self.committed = committed
        self._waiters.wake(committed)
        self.announce(committed)
        self.counts.add(batches)

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
                if self.failure is not None or self._gathering.pending_bytes:
                    return
                base, table = self._gathering.begin_segment(), self._gathering.table
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

        Who may `lead` commits the group itself when nobody else is at it: two changes of threads fewer. Else the
        committing thread is asked to.
        """
        if self.committed < offset:
            if lead and self._stepping.acquire(blocking=False):
                try:
                    self._step()
                finally:
                    self._stepping.release()
            else:
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
        """A write or a sync failed."""
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
        """A thread of the log met an error that it was not made for."""
        self.fail(f"the log stopped: {error!r}", error)

    def finish(self) -> None:
        """No more appends; at a clean stop, when all is synced, the mark is made durable."""
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
