"""Group commit: takes the batches that gathered, writes and syncs them, publishes them and tells whoever waits.

`step` is a plain function: a thread drives it in a broker, the simulation drives it in tests. One lock guards what
gathers; the write runs outside it, so that appends go on meanwhile. An event loop takes a `quick_step`, which leaves a
write that takes too long under way: whoever takes the next step ends it first.

When the disk fails (`trouble`), the group that was being written is held, and all that is appended gathers behind it;
now and then a step tries to write the group again, where nothing is in doubt, and once that is done the log goes on by
itself. What was published stays readable all the while. Any other error (`failure`) is final: everything is refused
until the log is opened again.

The log of a copy, which others decide about, has a `CopyCommitter`.
"""

import errno
import threading
from collections.abc import Callable
from time import monotonic, perf_counter

import cython

from everlog.base import EverlogError, StorageError, Unavailable
from everlog.commitlog.catalog import Segment
from everlog.commitlog.log_settings import Durability
from everlog.commitlog.waiters import Waiters

if not cython.compiled:
    from everlog.base import MessageColumns, PublisherColumn, PublisherName, Records, TopicTable
    from everlog.commitlog.open_batch import OpenBatch, Placed
    from everlog.commitlog.segment_writer import SegmentWriter
    from everlog.commitlog.tail import Tail

RESERVE = 1 << 22  # offsets that a log without syncs may give out before it syncs its mark again
REOPEN = "the log is read-only until it is reopened: restart Everlog"
TRY_AGAIN_S = 0.1  # after the disk failed; twice as long after each further failure
MOST_AGAIN_S = 5.0
_MUCH_BYTES = 64 << 10  # written at `memory`: who was held back because too much was not should hear of it
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Committer:
    """The writing side of a log, which commits one group at a time."""

    def __init__(self, open_batch: OpenBatch, writer: SegmentWriter, tail: Tail, durability: Durability) -> None:
        self.committed = open_batch.end
        self.failure: StorageError | None = None  # for good
        self.trouble: StorageError | None = None  # until the disk can be written again
        self.closed = False
        self.barred: EverlogError | None = None  # why nothing may be appended to a copy, until the shard is owned here
        self.groups = 0  # how much was committed, in how many groups
        self.batches = 0
        self.records = 0
        self.committed_bytes = 0
        self.write_s = 0.0  # that writes and syncs took
        self.completed: Callable[[Segment], None] = lambda segment: None
        self.announce: Callable[[int], None] | None = None
        self.failed: Callable[[StorageError], None] = lambda failure: None
        self.troubled: Callable[[StorageError | None], None] = lambda trouble: None  # and with None when it is over
        self._open_batch = open_batch
        self._writer = writer
        self._tail = tail
        self._syncing = durability == "fsync"
        self._in_memory = durability == "memory"
        self._gate = threading.Lock()  # guards the open batch, failure, closed
        self._stepping = threading.Lock()  # at most one group is being written; a quick step may keep it
        self._leaving = threading.Lock()  # guards what a quick step leaves under way, and who waits for a step
        self._left: list[Placed] = []  # a group that is being written, though no step is
        self._began = 0.0  # when the last quick step began to write
        self._entering = 0  # threads that wait for a step
        self._waiters = Waiters()
        self._unwritten: list[Placed] = []  # published at `memory`, and not yet taken by a step; guarded by the gate
        self._held: list[Placed] = []  # taken, and not yet written because of trouble
        self._delay_s = TRY_AGAIN_S
        self._again_at = 0.0

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

    @property
    def block_bytes(self) -> int:
        """How much memory the blocks take that large batches are made in."""
        return self._open_batch.pool.held_bytes

    def pending(self) -> int:
        """Return how many bytes wait to be written."""
        return self._open_batch.pending()

    def append(
        self, columns: MessageColumns, start: int, stop: int, now_us: int, table: TopicTable,
        routes: bytearray | None, wanted: int, publisher: PublisherName | PublisherColumn | None,
    ) -> int:  # fmt: skip
        """Take in messages, which are committed by a step after they were asked for."""
        with self._gate:
            if self.failure is not None:
                raise self.failure
            if self.closed:
                raise Unavailable("the log is closed")
            if self.barred is not None:
                raise self.barred
            return self._open_batch.append(columns, start, stop, now_us, table, routes, wanted, publisher)

    def ask(self, offset: int) -> int:
        """Ask that what was appended below an offset be committed; nothing else will be.

        At `memory` it is committed at once, and a step writes it later.
        """
        shown = False  # C compilers take it that a lock may swallow an exception
        with self._gate:
            self._open_batch.ask(offset)
            shown = self._in_memory and self._show_unwritten()
        if shown:
            self._tell()
        return 0

    def _show_unwritten(self) -> bool:
        """Let readers see what was asked for, unless a step has to write something first; return whether there is any.

        The caller holds the gate.
        """
        waiting = self._open_batch
        if self.failure is not None or self.trouble is not None or waiting.asked > self._writer.mark.reserved:
            return False
        if self.committed != waiting.first():  # a step has taken something that nobody sees yet
            return False
        group = waiting.take()
        if not group:
            return False
        self._unwritten += group
        self._show([placed[0] for placed in group], group[len(group) - 1][0].end_offset)
        return True

    def step(self) -> bool:
        """Commit what was asked for, after what is held if there is trouble; return False if nothing was committed."""
        ended = self._enter()
        try:
            mended = self.trouble is not None and self._mend()
            return self._step(0) or mended or ended
        finally:
            self._stepping.release()

    def _enter(self) -> bool:
        """Begin a step: wait for another thread's, or end what a quick one has left; return whether that was so."""
        ended = False
        with self._leaving:
            self._entering += 1  # no quick step is begun from here on
            ended = self._end_left()
        self._stepping.acquire()
        with self._leaving:
            self._entering -= 1
        return ended

    def quick_step(self, offset: int, patience_ns: int) -> int:
        """Ask for what is below an offset and take a step, but wait no longer than that for the disk.

        Return -1 if another thread is at it, or has to take it or end it.
        """
        if not self._stepping.acquire(False):
            self.ask(offset)
            return -1
        self._leaving.acquire()
        done = 0
        try:
            group = self._take_quickly(offset)
            if group is None:
                return -1
            if group and self._syncing:
                done = self._write_aside(group, patience_ns)
            elif group:
                done = self._commit(group)
            return done
        finally:
            self._leaving.release()
            if done >= 0:
                self._stepping.release()

    def _take_quickly(self, offset: int) -> list[Placed] | None:
        """Take what was asked for; None if there is more to do than to write a small batch to the open segment."""
        with self._gate:
            waiting, writer = self._open_batch, self._writer
            waiting.ask(offset)
            if self.failure is not None:
                return []
            if self.trouble is not None or self._entering or self._unwritten:
                return None
            if not waiting.is_plain():
                return None
            if not writer.takes_quickly(waiting.segment, waiting.pending()):
                return None
            if not self._syncing and offset > writer.mark.reserved:
                return None
            return waiting.take()

    def _write_aside(self, group: list[Placed], patience_ns: int) -> int:
        """Write a group and publish it; return 0 in trouble, and -1 if it is left under way."""
        self._began = perf_counter()
        try:
            if not self._writer.write_aside([placed[0] for placed in group], patience_ns):
                self._left = group
                return -1
        except OSError as error:
            self._hold(group, error)
            return 0
        self._wrote(group)
        return 1

    def _end_left(self) -> bool:
        """End what a quick step has left under way; return whether there was something."""
        group, self._left = self._left, []
        if not group:
            return False
        try:
            self._writer.end_aside()
            self._wrote(group)
        except OSError as error:
            self._hold(group, error)
        finally:
            self._stepping.release()
        return True

    def _wrote(self, group: list[Placed]) -> int:
        """Publish a group of the open segment that is written."""
        self.write_s += perf_counter() - self._began
        batches = [placed[0] for placed in group]
        for records in batches:
            self._open_batch.written(records.size)
        self._publish(batches, self._writer.written)
        return 0

    def try_step(self, offset: int) -> int:
        """Ask for what is below an offset and take a step; return -1 if another thread is at it, or has to be."""
        if not self._stepping.acquire(False):
            self.ask(offset)
            return -1
        try:
            if self.trouble is not None:
                self.ask(offset)
                return -1
            return 1 if self._step(offset) else 0
        finally:
            self._stepping.release()

    def rest_s(self) -> float | None:
        """Return in how many seconds a step should be taken although nobody asks for it; None for never."""
        return None if self.trouble is None else max(0.0, self._again_at - monotonic())

    def _step(self, offset: int) -> bool:
        with self._gate:
            if self.failure is not None or self.trouble is not None:
                return False
            self._open_batch.ask(offset)
            group = self._open_batch.take()
            if self._unwritten:
                group, self._unwritten = self._unwritten + group, []
        return bool(group) and self._commit(group)

    def _mend(self) -> bool:
        """Try to write what is held, or else just the mark; return whether that ended the trouble."""
        if self.failure is not None:
            return False
        if self._held:
            if not self._commit(self._held):
                return False
        else:
            try:
                self._writer.cut()
                self._writer.publish()
            except OSError as error:
                self._stumble(error)
                return False
        self._held, self.trouble = [], None
        self._delay_s = TRY_AGAIN_S
        self.troubled(None)
        return True

    def _commit(self, group: list[Placed]) -> bool:
        """Write a group and publish it; in trouble, hold what was not written and return False."""
        self._done = 0
        try:
            self._write(group)
        except OSError as error:
            self._hold(group[self._done :], error)
            return False
        return True

    def _hold(self, rest: list[Placed], error: OSError) -> None:
        """Hold what was not written because the disk failed."""
        records, segment = rest[0]
        with self._gate:
            rest, self._unwritten = rest + self._unwritten, []
            if self._writer.in_doubt and segment == self._writer.base and records.base_offset > segment:
                rest = self._open_batch.move(rest)
        self._held = rest
        self._stumble(error)

    def _stumble(self, error: OSError) -> None:
        """Note that the disk failed, and when to try again."""
        self._again_at = monotonic() + self._delay_s
        self._delay_s = min(2 * self._delay_s, MOST_AGAIN_S)
        if self.trouble is None:
            what = "free some space" if error.errno in _FULL else "look at the disk and the system's log"
            hint = f"{what}: Everlog tries again by itself, and nothing that waits is lost unless it is stopped"
            self.trouble = StorageError(f"writing to {self._writer.directory} failed: {error}", hint=hint)
            self._waiters.wake()
            self.troubled(self.trouble)

    def _write(self, group: list[Placed]) -> int:
        writer = self._writer
        if not self._syncing:
            end = group[len(group) - 1][0].end_offset
            if end > writer.mark.reserved:
                writer.mark.keep(writer.current()._replace(reserved=end + RESERVE))
            if self._in_memory and end > self.committed:
                self._publish([placed[0] for placed in group if placed[0].base_offset >= self.committed], end)
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
            began = perf_counter()
            try:
                writer.write(base, batches)
            finally:
                self.write_s += perf_counter() - began
                if before is not None and before is not writer.segment:
                    self.completed(before)
            self._done = k
            self._open_batch.written(size)
            if self._in_memory:
                self._tail.trim(writer.written)
                if size >= _MUCH_BYTES:
                    self._tell()
            else:
                self._publish(batches, writer.written)
        return 0

    def _publish(self, batches: list[Records], committed: int) -> int:
        """Let readers see batches, which are as durable as the settings demand, and tell whoever waits."""
        self._show(batches, committed)
        self._tell()
        return 0

    def _show(self, batches: list[Records], committed: int) -> int:
        self._tail.add(batches, self._writer.written)
        self.committed = committed
        self.groups += 1
        for records in batches:
            self.batches += 1
            self.records += records.count
            self.committed_bytes += records.size
        return 0

    def _tell(self) -> int:
        if self._waiters.waiting:
            self._waiters.wake(self.committed)
        if self.announce is not None:
            self.announce(self.committed)
        return 0

    def cut(self) -> None:
        """Cut the zeros off the end of the open segment: nothing more is written."""
        self._enter()
        try:
            self._writer.cut()
        finally:
            self._stepping.release()

    def remark(self) -> None:
        """Tell readers that segments were merged or removed."""
        self._enter()
        try:
            self._writer.layout += 1
            if self.failure is not None or self.closed:
                return
            try:
                self._writer.publish()
            except OSError as error:
                self._stumble(error)
        finally:
            self._stepping.release()

    def roll(self) -> None:
        """Begin a new, empty segment now, unless the last one is empty or something waits to be written."""
        self._enter()
        try:
            with self._gate:
                if self.failure is not None or self.trouble is not None or self._open_batch.pending():
                    return
                base, table = self._open_batch.begin_segment(), self._open_batch.table
            before = self._writer.segment
            if before is None or before.base_offset == base:
                return
            try:
                self._writer.begin(base, table, [])
                self.completed(before)
                self._writer.publish()
            except OSError as error:
                self._stumble(error)
        finally:
            self._stepping.release()

    def wait(self, offset: int, timeout: float | None, lead: bool, ask: Callable[[], None]) -> None:
        """Return once everything below an offset is committed; raise StorageError as soon as the disk fails.

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
        problem = self.failure or self.trouble or self.barred
        if problem is not None:
            raise problem
        raise Unavailable("the log was closed" if self.closed else f"offset {offset} was not committed in {timeout} s")

    def _settled(self, offset: int) -> bool:
        if self.failure is not None or self.trouble is not None or self.barred is not None:
            return True
        return self.committed >= offset or self.closed

    def fail_writing(self, error: OSError) -> None:
        """Note that a write or a sync failed for good: the log is being closed."""
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
        self._enter()
        try:
            with self._gate:
                self.closed = True
            self._waiters.wake()
            try:
                if self.failure is None and self.trouble is None:
                    self._writer.publish()
                    self._writer.mark.keep(self._writer.current()._replace(reserved=self.committed, synced=True))
            except OSError as error:
                self.fail_writing(error)
            finally:
                self._writer.close()
        finally:
            self._stepping.release()
