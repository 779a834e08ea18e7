"""Group commit: takes what gathered, writes and syncs it, publishes it, tells who waits.

`step` is a plain function: a thread drives it in a broker, the simulation drives it in tests. State is guarded by one
condition; the write itself runs outside it, so appends go on meanwhile. A failure is final until the log is reopened:
what was published stays readable, everything else is refused.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from everlog.base import MessageColumns, Records, StorageError, TopicTable, Unavailable
from everlog.commitlog.catalog import Segment
from everlog.commitlog.gathering import Gathering, Placed
from everlog.commitlog.mark import Mark, MarkFile
from everlog.commitlog.segmentwriter import SegmentWriter
from everlog.commitlog.tail import Tail

RESERVE = 1 << 22  # offsets that a log without syncs may give out before it syncs its mark again
REOPEN = "free or replace the disk, then restart Everlog"


@dataclass(slots=True)
class CommitCounts:
    """How much was committed, and in how many groups."""

    groups: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0


class Committer:
    """The writing side of a log: one step at a time."""

    def __init__(
        self, gathering: Gathering, writer: SegmentWriter, tail: Tail, mark: MarkFile, durability: str, layout: int
    ) -> None:
        self.state = threading.Condition()  # guards gathering, committed, failure
        self.committed = gathering.end
        self.failure: StorageError | None = None
        self.closed = False
        self.layout = layout
        self.counts = CommitCounts()
        self.completed: Callable[[Segment], None] = lambda segment: None
        self.announce: Callable[[int], None] = lambda committed: None
        self.failed: Callable[[StorageError], None] = lambda failure: None
        self._gathering = gathering
        self._writer = writer
        self._tail = tail
        self._mark = mark
        self._durability = durability
        self._stepping = threading.Lock()  # at most one group is being written

    @property
    def end(self) -> int:
        """The offset behind the last appended record."""
        return self._gathering.end

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
        with self.state:
            if self.failure is not None:
                raise self.failure
            if self.closed:
                raise Unavailable("the log is closed")
            return self._gathering.append(columns, start, stop, now_us, table, routes, wanted)

    def step(self) -> bool:
        """Commit what has gathered; False when there was nothing."""
        with self._stepping:
            with self.state:
                if self.failure is not None:
                    return False
                group = self._gathering.take()
            if not group:
                return False
            try:
                self._commit(group)
            except OSError as error:
                self._fail_writing(error)
            return True

    def _commit(self, group: list[Placed]) -> None:
        end = group[-1].records.base_offset + group[-1].records.count
        if self._durability != "fsync" and end > self._mark.reserved:
            self._mark.keep(self._current(reserved=end + RESERVE))
        if self._durability == "memory":
            self._publish([placed.records for placed in group], written=self.committed)
        while group:
            base = group[0].segment
            batches = [placed.records for placed in group if placed.segment == base]
            group = group[len(batches) :]
            before = self._writer.segment
            self._writer.write(base, batches)
            size = sum(records.size for records in batches)
            with self.state:
                self._gathering.written(size)
            if self._durability != "memory":
                self._publish(batches, written=batches[-1].base_offset + batches[-1].count)
            else:
                self._tail.trim(batches[-1].base_offset + batches[-1].count)
            if before is not self._writer.segment:
                self.layout += 1
                if before is not None:
                    self.completed(before)
            self._mark.publish(self._current())

    def _publish(self, batches: list[Records], written: int) -> None:
        """Let readers see batches: their durability is reached."""
        committed = batches[-1].base_offset + batches[-1].count
        self._tail.add(batches, written)
        counts = self.counts
        counts.groups += 1
        counts.batches += len(batches)
        counts.records += sum(records.count for records in batches)
        counts.bytes += sum(records.size for records in batches)
        with self.state:
            self.committed = committed
            self.state.notify_all()
        self.announce(committed)

    def _current(self, reserved: int | None = None) -> Mark:
        """The mark as it is true now: what is written, in the segment that it is written to."""
        segment = self._writer.segment
        written = segment.end_offset if segment is not None else self.committed
        return Mark(
            committed=written,
            segment=segment.base_offset if segment is not None else written,
            position=self._writer.position,
            layout=self.layout,
            reserved=self._mark.reserved if reserved is None else reserved,
            salt=self._mark.salt,
        )

    def remark(self) -> None:
        """Tell readers that segments were merged or removed."""
        with self._stepping:
            self.layout += 1
            if self.failure is not None or self.closed:
                return
            try:
                self._mark.publish(self._current())
            except OSError as error:
                self._fail_writing(error)

    def roll(self) -> None:
        """Begin a new, empty segment now, unless the last one is empty; all that gathered must be committed."""
        with self._stepping:
            with self.state:
                self._gathering.close()
                if self.failure is not None or self._gathering.pending_bytes:
                    return
                base, table = self._gathering.begin_segment(), self._gathering.table
            before = self._writer.segment
            if before is None or before.base_offset == base:
                return
            try:
                self._writer.begin(base, table, [])
                self.layout += 1
                self._mark.publish(self._current())
            except OSError as error:
                self._fail_writing(error)
                return
            self.completed(before)

    def wait(self, offset: int, timeout: float | None) -> None:
        """Return once everything below an offset is committed."""
        with self.state:
            done = self.state.wait_for(
                lambda: self.committed >= offset or self.failure is not None or self.closed, timeout
            )
            if self.committed >= offset:
                return
            if self.failure is not None:
                raise self.failure
        raise Unavailable("the log was closed" if done else f"offset {offset} was not committed in {timeout} s")

    def _fail_writing(self, error: OSError) -> None:
        self.fail(f"writing to {self._writer.directory} failed: {error}", error)

    def fail(self, message: str, cause: BaseException) -> None:
        """Refuse everything from now on."""
        failure = StorageError(message, hint=f"the log is read-only until it is reopened: {REOPEN}")
        failure.__cause__ = cause
        with self.state:
            first = self.failure is None
            self.failure = self.failure or failure
            self.state.notify_all()
        if first:
            self.failed(failure)

    def gave_up(self, error: Exception) -> None:
        """A thread of the log met an error that it was not made for."""
        self.fail(f"the log stopped: {error!r}", error)

    def finish(self) -> None:
        """No more appends; at a clean stop the mark is made durable."""
        with self._stepping:
            with self.state:
                self.closed = True
                self.state.notify_all()
            if self.failure is None:
                self._mark.publish(self._current())
                self._mark.keep(self._current(reserved=self.committed))
            self._mark.close()
