"""The writing side of a copy: others decide what is committed, this shows it at once and writes it to disk behind.

Who owns the shard commits what gathers at a `target` first, however long that takes: a step (`steps`) yields what is to
be committed there and is told what came of it. If the target refuses, since somebody else owns the shard, all that was
appended and not committed is dropped, and the log is `barred`: it takes no appends until it is owned again, only what
others have committed (`take_in`, which never waits for the disk).

What is shown and not yet written is in memory and is written in larger pieces: nobody waits for it, since what a crash
takes of a copy is read again. When the disk fails nothing more is shown until all that was has been written.
"""

from collections.abc import Callable, Generator
from time import perf_counter

import cython

from everlog.base import EverlogError, StorageError, Unavailable
from everlog.commitlog.ports import CommitTarget

if not cython.compiled:
    from everlog.base import Records
    from everlog.commitlog.committer import Committer
    from everlog.commitlog.open_batch import OpenBatch, Placed
    from everlog.commitlog.segment_format import HEADER_BYTES
    from everlog.commitlog.segment_writer import SegmentWriter
    from everlog.commitlog.tail import Tail

WRITE_BYTES = 1 << 20  # that are shown are written without more delay

Steps = Generator["list[Placed]", EverlogError | None, None]


class CopyCommitter(Committer):
    """The writing side of a log that others decide about."""

    def __init__(self, open_batch: OpenBatch, writer: SegmentWriter, tail: Tail) -> None:
        super().__init__(open_batch, writer, tail, "memory")
        self.target: CommitTarget | None = None  # where a group is committed before it is shown here
        self.lost: Callable[[EverlogError], None] = lambda error: None  # the shard is somebody else's
        self.unwritten_bytes = 0  # of what is shown and was not taken to be written yet

    def wants_step(self) -> bool:
        """Return whether something is to be committed at the target, or so much to be written that it should be now."""
        if self.trouble is not None:
            return self.rest_s() == 0.0
        waiting = self._open_batch
        return waiting.asked > waiting.first() or self.unwritten_bytes >= WRITE_BYTES

    def ask(self, offset: int) -> int:
        """Ask that what was appended below an offset be committed by the next step."""
        with self._gate:
            self._open_batch.ask(offset)
        return 0

    def try_step(self, offset: int) -> int:
        """Ask for what is below an offset; only the thread that commits waits for the target."""
        self.ask(offset)
        return -1

    def _take_quickly(self, offset: int) -> list[Placed] | None:
        with self._gate:
            self._open_batch.ask(offset)
        return None

    def steps(self) -> Steps:
        """Take a step: yield what the target is to commit, of one segment each time, and be sent None once that is
        done, or why it can't be.

        Nobody else takes a step until this one is at its end.
        """
        self._enter()
        try:
            if self.trouble is not None and (self.rest_s() != 0.0 or not self._mend()):
                return
            with self._gate:
                group = [] if self.failure is not None else self._open_batch.take()
            first = 0
            while first < len(group):
                stop = first + 1
                while stop < len(group) and group[stop][1] == group[first][1]:
                    stop += 1
                part = group[first:stop]
                if self._unwritten and self._unwritten[len(self._unwritten) - 1][1] != part[0][1]:
                    self._write_unwritten()  # so that a tail that is full always has complete segments to store
                began = perf_counter()
                refusal = yield part
                self.write_s += perf_counter() - began
                if refusal is not None:
                    self._lose(refusal)
                    return
                self._take_committed(part)
                first = stop
            if self.unwritten_bytes >= WRITE_BYTES:
                self._write_unwritten()
        finally:
            self._stepping.release()

    def step(self) -> bool:
        """Take a step in this thread alone, and write all that is shown; return whether something was committed."""
        taken = False
        steps = self.steps()
        part = next(steps, None)
        while part is not None:
            taken = True
            refusal = None
            try:
                self.target.commit(part)  # type: ignore[union-attr]
            except EverlogError as error:
                refusal = error
            try:
                part = steps.send(refusal)
            except StopIteration:
                part = None
        self.write_behind()
        return taken

    def write_behind(self, *, waits: bool = True) -> None:
        """Write what is shown and not yet written, unless the disk is in trouble.

        If it may not wait, nothing is done while a step is under way, which a full tail can hold up for long.
        """
        if self.unwritten_bytes and self._stepping.acquire(waits):
            try:
                self._write_unwritten()
            finally:
                self._stepping.release()

    def _write_unwritten(self) -> int:
        if self.trouble is None and self.failure is None and not self._held:
            with self._gate:
                group, self._unwritten, self.unwritten_bytes = self._unwritten, [], 0
            if group:
                self._commit(group)
        return 0

    def _take_committed(self, part: list[Placed]) -> int:
        """Show what the target has committed, and have it written by and by."""
        with self._gate:
            self._unwritten += part
            self.unwritten_bytes += _size_of(part)
        self._publish([placed[0] for placed in part], part[len(part) - 1][0].end_offset)
        return 0

    def take_in(self, segment: int, batches: list[Records]) -> None:
        """Show batches that another owner has committed, in the segment that begins at an offset; it never waits.

        Raises StorageError while the disk is in trouble.
        """
        if self.barred is None:
            raise Unavailable("the log has an owner here, which alone says what comes next")
        problem = self.failure or self.trouble
        if problem is not None:
            raise problem
        part = [(records, segment) for records in batches]
        size = _size_of(part)
        end = batches[len(batches) - 1].end_offset
        with self._gate:
            self._open_batch.pass_by(end, size)
            self._unwritten += part
            self.unwritten_bytes += size
        self._publish(batches, end)

    def _hold(self, rest: list[Placed], error: OSError) -> None:
        """Hold what was not written because the disk failed: a copy has the same segments as everybody else's."""
        with self._gate:
            self._held, self._unwritten, self.unwritten_bytes = rest + self._unwritten, [], 0
        self._stumble(error)

    def _lose(self, why: EverlogError) -> int:
        """Drop what was appended and not committed: it is somebody else's to say what comes next."""
        with self._gate:
            self.barred, self.target = why, None
            self._open_batch.drop(self.committed)
            self._open_batch.pass_by(self.committed, _size_of(self._held) + _size_of(self._unwritten))
        if not self._held:
            self.trouble = None
        self._waiters.wake()
        self.lost(why)
        return 0

    def note_trouble(self, trouble: StorageError | None) -> None:
        """Say that the target can't commit just now, or with None that it can; called by the target while it tries."""
        if trouble is None and self._held:
            return  # the disk's goes on
        self.trouble = trouble
        if trouble is not None:
            self._waiters.wake()
        self.troubled(trouble)

    def bar(self, why: EverlogError) -> None:
        """Take no more appends; what was appended and is not committed is dropped."""
        self._enter()
        try:
            self._lose(why)
        finally:
            self._stepping.release()

    def own(self, target: CommitTarget, last_time: int) -> None:
        """Take appends from now on, into a new segment, and commit them at a target first.

        Raises StorageError if what was shown before can't be written.
        """
        self._enter()
        try:
            self._write_all()
            with self._gate:
                self._open_batch.drop(self.committed)
                self._open_batch.continue_segment(self.committed, HEADER_BYTES, [], None, 0, last_time)
                self.barred, self.target = None, target
        finally:
            self._stepping.release()

    def skip_to(self, offset: int) -> None:
        """Let a barred log go on at a later offset, in a new segment: what is between is not there."""
        self._enter()
        try:
            self._write_all()
            with self._gate:
                self._open_batch.drop(offset)
                self._writer.skip_to(offset)
                self.committed = offset
        finally:
            self._stepping.release()

    def _write_all(self) -> int:
        self._write_unwritten()
        if self.trouble is not None:
            raise self.trouble
        return 0


def _size_of(part: list[Placed]) -> int:
    size = 0
    for records, _ in part:
        size += records.size
    return size
