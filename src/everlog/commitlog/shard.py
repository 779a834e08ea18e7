"""A shard's log: the one object that others open, append to, read from and close.

It puts the parts together and owns the threads: one that commits, one that seals. Without threads (`background=False`)
the caller drives both by `commit_step` and `seal_step`. Above 400 lines: it is the door to all parts, of copies too.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from everlog.base import EverlogError, Records, StorageError, TopicTable, Unavailable
from everlog.commitlog import paths
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.committer import Committer
from everlog.commitlog.copied_batches import read_batches
from everlog.commitlog.copy_committer import CopyCommitter, Steps
from everlog.commitlog.damage import Damage, DamageList
from everlog.commitlog.follower import Follower
from everlog.commitlog.hot_path import READ_ONLY, HotPath
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.maintenance import Maintenance
from everlog.commitlog.open_batch import OpenBatch
from everlog.commitlog.ports import Classes, CommitTarget, Disk, Indexer, Lock
from everlog.commitlog.recovery import recover
from everlog.commitlog.retention import RetentionPlan, plan_retention
from everlog.commitlog.scan import new_table
from everlog.commitlog.segment_format import NOBODY, Origin
from everlog.commitlog.segment_view import SegmentView, first_at
from everlog.commitlog.segment_writer import SegmentWriter
from everlog.commitlog.statistics import LogStatistics
from everlog.commitlog.tail import Tail
from everlog.commitlog.topic_retention import Thinned
from everlog.commitlog.worker import Worker

_STEP_BYTES = 1 << 20  # of memory that is looked through at a time


def wall_clock_us() -> int:
    """Return the time of day, in microseconds since 1970."""
    return time.time_ns() // 1000


class ShardLog(HotPath):
    """An append-only log of batches, opened by `open`. Its calls for every batch are in `HotPath`."""

    def __init__(self, catalog: Catalog, settings: LogSettings) -> None:
        super().__init__(Tail(settings.tail_bytes))
        self.settings = settings
        self.on_failure: Callable[[ShardLog, StorageError], None] | None = None  # from any thread, once
        self.on_trouble: Callable[[ShardLog, StorageError | None], None] | None = None  # and with None when it is over
        self.on_lost: Callable[[ShardLog, EverlogError], None] | None = None  # somebody else owns it from now on
        self._on_commit: Callable[[ShardLog, int], None] | None = None
        self._catalog = catalog
        self._copying: CopyCommitter | None = None  # the committer, of a copy
        self._taking: tuple[int, TopicTable] | None = None  # the segment that is taken in, and its names
        self._maintenance: Maintenance | None = None
        self._follower: Follower | None = None
        self._lock: Lock | None = None
        self._workers: list[Worker] = []
        self._closed = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        settings: LogSettings | None = None,
        *,
        indexer: Indexer | None = None,
        classes: Classes | None = None,
        writable: bool = True,
        background: bool = True,
        not_below: int = 0,
        origin: Origin = NOBODY,
        is_copy: bool = False,
        committing: Callable[[], None] | None = None,
        now_us: Callable[[], int] = wall_clock_us,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> "ShardLog":
        """Open a log to write and read, or beside its writer to read. The next offset is at least `not_below`.

        A directory that holds the log of another `origin` is refused, and one that a later epoch has written to. Of
        a copy others decide what is committed. `committing` wakes the thread that commits, if that is not its own.
        """
        settings = settings or LogSettings()
        catalog = Catalog(disk, directory, settings.cache_bytes, DamageList(), origin)
        log = cls(catalog, settings)
        try:
            if writable:
                disk.make_directory(directory)
                log._lock = disk.lock(f"{directory}/{paths.LOCK}")
                log._start(indexer, classes, not_below, is_copy, now_us, random_bytes)
                if background:
                    log._start_threads(committing)
            else:
                log._follower = Follower(catalog)
                log._seen = log._follower.refresh()
        except BaseException as error:
            if log._lock is not None:
                log._lock.release()
            if isinstance(error, OSError):
                raise StorageError(
                    f"{directory} could not be opened: {error}",
                    hint="check that this user may write to it and that the disk is not full",
                ) from error
            raise
        return log

    def _start(
        self,
        indexer: Indexer | None,
        classes: Classes | None,
        not_below: int,
        is_copy: bool,
        now_us: Callable[[], int],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Recover the log and put its writing side together."""
        settings, catalog = self.settings, self._catalog
        found = recover(catalog, random_bytes, now_us(), not_below, syncs=settings.durability == "fsync")
        open_batch = OpenBatch(settings, found.end)
        writer = SegmentWriter(catalog, found.mark, found.end, found.layout, settings, now_us)
        segment, first_time = found.end, 0
        if found.segment is not None:
            writer.adopt(found.segment, found.position)
            segment, first_time = found.segment.base_offset, found.segment.first_time
        open_batch.continue_segment(segment, found.position, found.names, found.publishers, first_time, found.last_time)
        if found.segment is not None and found.segment.reader is not None:
            found.segment.reader.table = open_batch.table
        if is_copy:
            self._copying = CopyCommitter(open_batch, writer, self._tail)
            self._copying.lost = self._lost
        committer = self._copying or Committer(open_batch, writer, self._tail, settings.durability)
        maintenance = Maintenance(catalog, committer, settings, indexer, classes)
        committer.completed = maintenance.completed
        committer.failed = self._failed
        committer.troubled = self._troubled
        committer.remark()
        self._committer, self._maintenance = committer, maintenance

    def _start_threads(self, committing: Callable[[], None] | None) -> None:
        assert self._committer is not None
        assert self._maintenance is not None
        committer, maintenance = self._committer, self._maintenance
        name = os.path.basename(self._catalog.directory)
        gave_up = committer.gave_up
        sealing = Worker(f"everlog-seal-{name}", maintenance.step, gave_up, maintenance.rest_s)
        self._workers = [sealing]
        if committing is None:
            self._workers.append(Worker(f"everlog-commit-{name}", self._commit_once, gave_up, committer.rest_s))
            committing = self._workers[1].wake
        self._wake = committing
        maintenance.wake = sealing.wake
        maintenance.wake()

    def _failed(self, failure: StorageError) -> None:
        if self.on_failure is not None:
            self.on_failure(self, failure)

    def _troubled(self, trouble: StorageError | None) -> None:
        if self.on_trouble is not None:
            self.on_trouble(self, trouble)
        if self._wake is not None:
            self._wake()  # so that the thread that commits knows when to try again

    def _lost(self, error: EverlogError) -> None:
        if self.on_lost is not None:
            self.on_lost(self, error)

    # Of a copy

    def follow(self, why: EverlogError) -> None:
        """Refuse appends from now on, and take in what others commit; what is not committed is dropped."""
        self._copy().bar(why)

    def own(self, epoch: int, target: CommitTarget) -> None:
        """Take appends from now on as the owner of an epoch, in a new segment, and commit them at a target first."""
        copying = self._copy()
        copying.write_behind()  # at the epoch that it was committed at
        segments = self._catalog.segments
        self.origin = replace(self.origin, epoch=epoch)
        self._taking = None
        copying.own(target, self._catalog.describe(segments[-1]).last_time if segments else 0)

    def take_in(
        self, epoch: int, segment: int, bodies: Sequence[bytes], *, start: int = 0, is_checked: bool = False
    ) -> None:
        """Take in batches that the owner of an epoch has committed, as the next ones, all of one segment; each begins
        behind `start` bytes of something.

        They can be read at once and are written by and by; the disk is waited for only where an epoch begins while
        some of the one before is unwritten. Raises StorageError if they are
        damaged, do not follow, or can't be written just now: nothing of them is taken in then. With `is_checked` every
        byte has been found to be as it was sent.
        """
        copying = self._copy()
        known = self.origin
        if epoch < known.epoch:
            raise StorageError(f"epoch {epoch} is over: the log has batches of epoch {known.epoch}")
        table = self._table_of(segment, copying)
        if table is None and segment != copying.committed:
            raise StorageError(f"a segment that begins at {segment} can't go on at {copying.committed}")
        table = table or new_table()
        batches = read_batches(bodies, copying.committed, table, start=start, is_checked=is_checked)
        if epoch != known.epoch:
            copying.write_behind()  # segments name the epoch that they are written at
            self.origin = replace(known, epoch=epoch)
        copying.take_in(segment, batches)
        self._taking = segment, table
        if copying.wants_step() and self._wake is not None:
            self._wake()

    def _table_of(self, segment: int, copying: CopyCommitter) -> TopicTable | None:
        """Return the names of the segment that begins at an offset, if batches of it were the last."""
        if self._taking is not None:
            return self._taking[1] if self._taking[0] == segment else None
        writing = copying.segment
        if writing is None or writing.base_offset != segment or writing.reader is None:
            return None
        return writing.reader.table

    def skip_to(self, offset: int, *, over_gap: bool = False) -> None:
        """Let a followed log that holds nothing begin at an offset, or go on there if none was given out before it."""
        if self._catalog.segments and not over_gap:
            raise StorageError(f"{self._catalog.directory} has segments, so nothing can be skipped")
        self._copy().skip_to(offset)
        self._taking = None

    def note_trouble(self, trouble: StorageError | None) -> None:
        """Say that the commit target can't commit just now, or with None that it can."""
        self._copy().note_trouble(trouble)

    @property
    def wants_step(self) -> Callable[[], bool]:
        """Says whether something is to be committed, or so much to be written that it should be now."""
        return self._copy().wants_step

    def steps(self) -> Steps:
        """Take a step: yield what the target is to commit, and be sent None once that is done, or why it can't be."""
        return self._copy().steps()

    def write_behind(self, *, waits: bool = True) -> None:
        """Write what is shown and not yet written, unless the disk is in trouble; do nothing if it would wait for a
        step that is under way and may not."""
        self._copy().write_behind(waits=waits)

    @property
    def unwritten_bytes(self) -> int:
        """How much of a copy can be read and is not yet being written."""
        return self._copying.unwritten_bytes if self._copying is not None else 0

    def gave_up(self, error: Exception) -> None:
        """Refuse everything: the thread that commits has met an error that it was not made for."""
        self._copy().gave_up(error)

    def _copy(self) -> CopyCommitter:
        if self._copying is None:
            raise Unavailable("the log is no copy of what others decide about")
        return self._copying

    @property
    def barred(self) -> EverlogError | None:
        """Why nothing may be appended here: somebody else owns the shard."""
        return self._committer.barred if self._committer is not None else None

    def _writing(self) -> Committer:
        if self._committer is None:
            raise Unavailable(READ_ONLY)
        return self._committer

    @property
    def on_commit(self) -> Callable[["ShardLog", int], None] | None:
        """Called after each commit with the log and its committed offset, from the thread that committed."""
        return self._on_commit

    @on_commit.setter
    def on_commit(self, call: Callable[["ShardLog", int], None] | None) -> None:
        self._on_commit = call
        if self._committer is not None:
            self._committer.announce = None if call is None else partial(call, self)

    @property
    def start(self) -> int:
        """The first retained offset."""
        segments = self._catalog.segments
        if segments:
            return segments[0].base_offset
        return self._committer.written if self._committer is not None else self.committed

    @property
    def identity(self) -> str:
        """A name that no other log has and that this one keeps wherever it is: a hash of the secret salt."""
        return hashlib.blake2b(self._catalog.known_salt().to_bytes(8, "little"), digest_size=8).hexdigest()

    @property
    def origin(self) -> Origin:
        """Which store and shard this is, and the epoch of its owner, as new segments say it."""
        return self._catalog.origin

    @origin.setter
    def origin(self, origin: Origin) -> None:
        self._catalog.origin = origin

    @property
    def failure(self) -> StorageError | None:
        """Why the log is read-only until it is reopened, if it is."""
        return self._committer.failure if self._committer is not None else None

    @property
    def trouble(self) -> StorageError | None:
        """Why nothing can be written just now, if so: the log tries again by itself, and takes appends meanwhile."""
        return self._committer.trouble if self._committer is not None else None

    @property
    def damage(self) -> list[Damage]:
        """The damages that were met, with file and position."""
        return self._catalog.damage.reports()

    def commit_step(self) -> bool:
        """Commit in this thread what has gathered; return False if there was nothing."""
        committer = self._writing()
        committer.ask(committer.end)
        return committer.step()

    def seal_step(self) -> bool:
        """Seal one complete segment in this thread; return False if there was none."""
        self._writing()
        assert self._maintenance is not None
        return self._maintenance.step()

    def wait_committed(self, offset: int, timeout: float | None = None) -> None:
        """Have everything below an offset committed, and return once it is; raise StorageError if it can't be.

        For threads of producers, tools and tests: it may write and sync in this thread when nobody listens to
        `on_commit`, which is only ever called from the committing thread.
        """
        lead = self.on_commit is None or not self._workers
        self._writing().wait(offset, timeout, lead, self._wake or (lambda: None))

    def refresh(self) -> int:
        """Take in what the writer of a log that was opened read-only committed since; return the committed offset."""
        if self._follower is not None:
            self._seen = self._follower.refresh()
        return self.committed

    def _read_files(self, offset: int, max_bytes: int) -> list[Records]:
        try:
            return self._catalog.read(offset, max_bytes)
        except OSError as error:
            raise StorageError(f"reading from {self._catalog.directory} failed: {error}") from error

    def segments(self) -> list[SegmentView]:
        """Return the segments in order, as they are now."""
        views = []
        for segment in self._catalog.segments:
            try:
                views.append(self._catalog.view(segment))
            except FileNotFoundError:
                continue  # removed since
        return views

    def bytes_from(self, offset: int) -> int:
        """Return about how many bytes of files the records from an offset on take."""
        total, end = 0, self.committed
        for segment in reversed(self._catalog.segments):
            if end <= offset:
                break
            share = (end - max(offset, segment.base_offset)) / max(1, end - segment.base_offset)
            total += int(max(0, segment.size_bytes) * share)
            end = segment.base_offset
        return total

    def offset_at(self, time_us: int) -> int:
        """Return the first offset whose record is not older than a time, or the committed end."""
        offset = self._catalog.records_end()  # what follows may be in memory alone
        found = self._catalog.offset_at(time_us)
        while found is None and (batches := self.read(offset, _STEP_BYTES)):
            found = next((first_at(one, time_us) for one in batches if one.last_time >= time_us), None)
            offset = batches[-1].end_offset
        return self.committed if found is None else min(found, self.committed)

    def plan_retention(self, now_us: int, *, keep_from: int | None = None) -> RetentionPlan:
        """Return what retention would remove now, and what next; everything from `keep_from` on stays."""
        settings, maintenance = self.settings, self._maintenance
        try:
            segments = [segment for segment in self._catalog.segments if self._is_there(segment)]
            ages = [settings.retention_us if maintenance is None else maintenance.age(segment) for segment in segments]
        except OSError as error:
            raise StorageError(f"reading from {self._catalog.directory} failed: {error}") from error
        limits = (settings.retention_bytes, settings.retention_us)
        return plan_retention(segments, now_us, *limits, keep_from=keep_from, ages=ages)

    def _is_there(self, segment: Segment) -> bool:
        """Return whether a segment was not removed meanwhile, and make all known of it."""
        try:
            self._catalog.describe(segment)
        except FileNotFoundError:
            return False
        return True

    def run_retention(self, now_us: int, *, keep_from: int | None = None) -> RetentionPlan:
        """Remove what is too old or too much, and return what was removed."""
        self._writing()
        assert self._maintenance is not None
        try:
            return self._maintenance.run_retention(now_us, lambda: self.plan_retention(now_us, keep_from=keep_from))
        except OSError as error:
            raise StorageError(f"removing segments from {self._catalog.directory} failed: {error}") from error

    def plan_trim(self, below: int) -> RetentionPlan:
        """Return what `trim` would remove: the segments that end at or below an offset, and never the last one."""
        segments = self._catalog.segments
        going = [one.base_offset for one in segments[:-1] if 0 <= one.end_offset <= below]
        start = segments[len(going)].base_offset if segments else 0
        return RetentionPlan(tuple(going), start, start)

    def trim(self, below: int) -> RetentionPlan:
        """Remove segments that end at or below an offset, whatever the limits say, and return what was removed."""
        self._writing()
        assert self._maintenance is not None
        try:
            return self._maintenance.run_retention(0, lambda: self.plan_trim(below))
        except OSError as error:
            raise StorageError(f"removing segments from {self._catalog.directory} failed: {error}") from error

    @property
    def limits_retention(self) -> bool:
        """Whether there is any limit of age or size."""
        thinner = None if self._maintenance is None else self._maintenance.thinner
        ages = (self.settings.retention_us,) if thinner is None else thinner.ages
        return self.settings.retention_bytes is not None or any(age is not None for age in ages)

    def thin(self, now_us: int, below: int | None = None) -> list[Thinned]:
        """Empty the old records of short-lived topics in segments that stay and end at or before `below`."""
        self._writing()
        assert self._maintenance is not None
        try:
            done = self._maintenance.thin(now_us, below)
        except OSError as error:
            raise StorageError(f"reading from {self._catalog.directory} failed: {error}") from error
        if done:
            self._tail.forget(done[-1].end_offset)
        return done

    def collect(self, spilled: int, owed: int) -> list[Thinned]:
        """Empty in sealed segments what spills have left below `spilled`, and what no setting keeps below `owed`.

        The oldest segments below `owed` that are left with nothing go.
        """
        self._writing()
        assert self._maintenance is not None
        try:
            done = self._maintenance.collect(spilled, owed)
        except OSError as error:
            raise StorageError(f"reading from {self._catalog.directory} failed: {error}") from error
        if done:
            self._tail.forget(done[-1].end_offset)
        return done

    @property
    def may_collect(self) -> bool:
        """Whether sealed segments hold records that no setting keeps, or nothing at all."""
        return any(segment.contents for segment in self._catalog.segments)

    def repair(self) -> int:
        """Make missing or damaged side files again, never changing a segment; return how many."""
        self._writing()
        assert self._maintenance is not None
        return self._maintenance.repair()

    def statistics(self) -> LogStatistics:
        """Return numbers for people and metrics."""
        return LogStatistics.of(
            self._catalog, self._tail, self._committer, self._maintenance, (self.start, self.committed, self.end)
        )

    def close(self) -> None:
        """Commit what has gathered, stop the threads and leave the directory cleanly stopped. Once is enough."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.stop()
        try:
            if self._committer is not None and self._maintenance is not None:
                self._finish(self._committer, self._maintenance)
            if self._follower is not None:
                self._follower.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _finish(self, committer: Committer, maintenance: Maintenance) -> None:
        """Make all that was appended durable; raise the failure if it can't be, unless it is known already."""
        known = committer.failure is not None or committer.trouble is not None
        try:
            committer.ask(committer.end)
            while committer.step():
                pass
            if committer.trouble is not None:
                committer.fail(committer.trouble.message, committer.trouble)
            maintenance.checkpoint()
        except OSError as error:
            committer.fail_writing(error)
        finally:
            committer.finish()
        if committer.failure is not None and not known:
            raise committer.failure
