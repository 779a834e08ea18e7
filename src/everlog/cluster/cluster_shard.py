"""One shard of a cluster, as one broker has it: it follows what another commits, or owns it and commits itself.

The log is a local copy that is always right up to where it ends. While another broker owns the shard, batches come as
that one offers them, and from tail and bucket where there is a gap; nothing is taken in that a failover could lose. The
calls that may wait (`catch_up`, `own`, `close_origin`) are made by one thread at a time; `offer` and appends do not: a
batch that follows is taken in by whoever offers it, and nobody waits for the disk.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from everlog.base import (
    EverlogError,
    Fenced,
    MessageColumns,
    PublisherColumn,
    PublisherName,
    StorageError,
    TopicTable,
)
from everlog.cluster.cache import commits_lost, keep_what_fits
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.history import ShardHistory, Trimmed
from everlog.cluster.postgres_tail import PostgresTail
from everlog.cluster.rows import TailRow
from everlog.cluster.segment_list import SegmentList
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits
from everlog.cluster.uploads import RetentionLimits, Uploads
from everlog.commitlog import Disk, Origin, ShardLog, end_of
from everlog.store import TopicIndexer
from everlog.tiering import Bucket, Database

CLOSE_S = 5.0  # how long a commit may take that is under way when the shard is closed
OFFERED_BYTES = 32 << 20  # of batches that wait to be taken in; beyond it they are read from the tail
RUN_BYTES = 1 << 20  # of batches that are taken in at once
UNWRITTEN_BYTES = 16 << 20  # of a copy; beyond it batches wait to be taken in until the disk has been waited for


class ClusterShard:
    """A shard with its local log, opened by `open`."""

    def __init__(
        self,
        number: int,
        log: ShardLog,
        history: ShardHistory,
        database: ClusterDatabase,
        bucket: Bucket,
        settings: ClusterSettings,
        commits: TailCommits | None = None,
    ) -> None:
        self.number = number
        self.log = log
        self._history = history
        self._database = database
        self._bucket = bucket
        self._settings = settings
        self._commits = commits or TailCommits(PostgresTail(database))
        self._is_shared = commits is not None
        self.on_batches: Callable[[int, Sequence[TailRow]], None] | None = None  # of this shard, committed here
        # What is missing here is kept no more. Until this is set nobody has seen the log, which may begin later then.
        self.on_left_behind: Callable[[Trimmed], object] | None = None
        self._target: ShardTarget | None = None
        self._uploads: Uploads | None = None
        self._doubts = 0  # of targets before
        self._offers: deque[tuple[int, int, int, bytes, int]] = deque()
        self._offered_bytes = 0
        self._offering = threading.Lock()
        self._moving = threading.RLock()  # who follows, owns or lets go does it alone

    @classmethod
    def open(
        cls,
        number: int,
        directory: str,
        store: int,
        database: ClusterDatabase,
        bucket: Bucket,
        disk: Disk,
        settings: ClusterSettings,
        *,
        background: bool = True,
        connection: Database | None = None,
        commits: TailCommits | None = None,
    ) -> "ClusterShard":
        """Open the local copy, of which only what was committed stays.

        With `commits` it is committed by the thread of these; else by one of its own.
        """
        history = ShardHistory(database, bucket, number, connection)
        try:
            salt, start = history.salt(), history.start()
            rows, listed = history.look(0)
            origin = Origin(store, number)
            epoch = keep_what_fits(disk, directory, origin, salt, rows, listed, history.end(), history.gaps)
            log = ShardLog.open(
                disk,
                directory,
                settings.of_copies(),
                indexer=TopicIndexer(),
                background=background,
                origin=replace(origin, epoch=epoch),
                is_copy=True,
                committing=None if commits is None else commits.wake,
                now_us=lambda: 0,
                random_bytes=lambda size: salt.to_bytes(size, "little"),
            )
        except BaseException:
            history.close()
            raise
        log.follow(not_owned(number))
        if not log.segments() and start > 0:
            log.skip_to(start)
        return cls(number, log, history, database, bucket, settings, commits)

    @property
    def epoch(self) -> int:
        """The epoch at which this broker owns the shard, 0 if it does not."""
        target = self._target
        return target.epoch if target is not None and self.log.barred is None else 0

    @property
    def tail_bytes(self) -> int:
        """How many bytes of an owned shard are in the tail."""
        return self._target.held_bytes if self._target is not None else 0

    @property
    def target(self) -> ShardTarget | None:
        """Where commits of an owned shard go, for numbers."""
        return self._target

    @property
    def doubts(self) -> int:
        """How many commits here were not confirmed at once."""
        target = self._target
        return self._doubts + (target.doubts if target is not None else 0)

    @property
    def listed_to(self) -> int | None:
        """Where the bucket's segments of an owned shard end, if that is known."""
        uploads = self._uploads
        return uploads.listed_to if uploads is not None else None

    @property
    def waits_since(self) -> float | None:
        """Since when a commit waits for the database, on the monotonic clock; a full tail is no such wait."""
        return self._target.waits_since if self._target is not None else None

    @property
    def upload_trouble(self) -> EverlogError | None:
        """Why segments of an owned shard do not reach the bucket just now."""
        return self._uploads.trouble if self._uploads is not None else None

    def offer(self, epoch: int, segment: int, base: int, body: bytes, start: int = 0) -> None:
        """Hold a batch that the owner says it has committed, for `take_offered`; it is left out if too much waits."""
        with self._offering:
            if base >= self.log.committed and self._offered_bytes <= OFFERED_BYTES:
                self._offers.append((epoch, segment, base, body, start))
                self._offered_bytes += len(body)

    def catch_up(self) -> int:
        """Take in all that others have committed, as far as is known, and return where the log ends then."""
        with self._moving:
            while not self.epoch:
                if self._offers or self.log.unwritten_bytes > UNWRITTEN_BYTES:
                    self.log.write_behind()
                if not (self._take_offers() or self._read_on()):
                    break
            self.log.write_behind(waits=False)
            return self.log.committed

    def take_offered(self) -> bool:
        """Take in what was offered, without a wait; return whether some is left that must wait."""
        if not self._offers:
            return False
        if not self._moving.acquire(blocking=False):
            return True
        try:
            if not self.epoch:
                self._take_offers()
            return bool(self._offers) and not self.epoch
        finally:
            self._moving.release()

    def _take_offers(self) -> bool:
        """Take in what was offered and follows, without a wait; return whether that was something."""
        taken = False
        while self._offers:
            epoch, segment, base, _, start = self._offers[0]
            if base > self.log.committed:
                break  # what is between must be read first
            if base < self.log.committed:
                self._next_offers(0)
                continue
            unwritten = self.log.unwritten_bytes
            if unwritten > UNWRITTEN_BYTES or (unwritten and epoch != self.log.origin.epoch):
                break  # the disk must be waited for first
            try:
                self.log.take_in(epoch, segment, self._next_offers(RUN_BYTES), start=start, is_checked=True)
            except StorageError:
                continue  # of an epoch that is over, or in a segment whose start is missing: the tail knows
            taken = True
        return taken

    def _next_offers(self, most_bytes: int) -> list[bytes]:
        """Take the first offer, and those of its segment that follow without a gap up to so many bytes."""
        bodies: list[bytes] = []
        with self._offering:
            epoch, segment, _, body, start = self._offers.popleft()
            size = 0
            while True:
                bodies.append(body)
                size += len(body)
                follows = (epoch, segment, end_of(body, start))
                if size >= most_bytes or not self._offers or self._offers[0][:3] != follows:
                    break
                _, _, _, body, start = self._offers.popleft()
            self._offered_bytes -= size
        return bodies

    def _read_on(self) -> bool:
        if self._is_at_end():
            return False
        behind = self._history.gaps.get(self.log.committed)
        if behind is not None:
            self.log.skip_to(behind, over_gap=True)
            return True
        try:
            found = self._history.read(self.log.committed)
        except Trimmed as trimmed:
            self._begin_at(trimmed.start)
            return True
        if found is not None:
            self._history.make_certain()
            self.log.take_in(found.epoch, found.segment, found.bodies)
        return found is not None

    def _begin_at(self, start: int) -> None:
        """Begin the copy where history does now; raise `Trimmed` if it has begun, or a broker has taken from it."""
        left_behind = Trimmed(self.number, self.log.committed, start)
        if self.on_left_behind is not None:
            self.on_left_behind(left_behind)
            raise left_behind
        if self.log.segments() or self.log.unwritten_bytes:
            raise left_behind
        self.log.skip_to(start)

    def _is_at_end(self) -> bool:
        """Return whether nothing more is committed; raise StorageError if less is."""
        here, end = self.log.committed, self._history.end()
        if end < here and self._history.end() < here:
            raise commits_lost(self.number, end, here)
        return end <= here

    def own(self, epoch: int, incarnation: int) -> None:
        """Own the shard at an epoch that was claimed: fence the owner before, read what is missing, take appends.

        What this broker appended as the owner of an earlier epoch and did not commit is dropped.
        """
        with self._moving:
            self.release()
            self.catch_up()
            size = self._settings.tail_bytes
            target = ShardTarget(self._commits, self.number, epoch, incarnation, tail_bytes=size)
            self._meet(target.take_over().end)
            target.troubled = self.log.note_trouble
            target.wrote = self._wrote
            self.log.own(epoch, target)
            self._target = target
            segments = SegmentList(self._database, self.number)
            self._uploads = Uploads(self.log, target, segments, self._bucket, self._settings)

    def _meet(self, end: int) -> None:
        """Read on to where the owner before ended."""
        if self.catch_up() < end and not self.log.segments():
            self._begin_at(end)
        if self.log.committed != end:
            raise StorageError(f"shard {self.number} ends at {end}, and here at {self.log.committed}")
        with self._offering:
            self._offers.clear()
            self._offered_bytes = 0

    def stop(self) -> None:
        """Let go of a commit that waits for the database."""
        target = self._target
        if target is not None:
            target.stop()

    def release(self) -> None:
        """Own the shard no more; what was not committed is dropped."""
        with self._moving:
            self.stop()
            self.log.follow(not_owned(self.number))
            self._let_go()

    def _let_go(self) -> None:
        target, uploads = self._target, self._uploads
        self._target = self._uploads = None
        if target is not None:
            self._doubts += target.doubts
            target.stop()
        if uploads is not None:
            uploads.close()

    def _wrote(self, rows: Sequence[TailRow]) -> None:
        if self.on_batches is not None:
            self.on_batches(self.number, rows)

    def tend(self) -> None:
        """Store complete segments of an owned shard in the bucket, and empty what is superfluous in the tail."""
        uploads = self._uploads
        if uploads is not None and self.epoch:
            self.log.write_behind(waits=False)
            uploads.step()

    def retain(self, limits: RetentionLimits, keep_from: int | None) -> int:
        """Drop what is too old or too much of an owned shard's history; return how many bytes `keep_from` held back."""
        uploads = self._uploads
        return uploads.retain(limits, keep_from).held_bytes if uploads is not None and self.epoch else 0

    def clean(self, *, scrubs: bool) -> None:
        """Delete what was dropped long enough ago, and if it `scrubs` what is in no list, of an owned shard."""
        uploads = self._uploads
        if uploads is not None and self.epoch:
            uploads.delete_dropped()
            if scrubs:
                uploads.scrub()

    def append_from(
        self,
        origin: int,
        first: int,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        publisher: PublisherName | PublisherColumn | None = None,
    ) -> int:
        """Append messages of an origin that are numbered from `first` on; return its last number so far.

        Raises `Gap` if some are missing before them, `Closed` if nothing more is taken from it.
        """
        target = self._owned()

        def append(skipped: int) -> int:
            self.log.append(columns, start + skipped, stop, now_us, table, publisher=publisher)
            return self.log.end

        return target.origins.append(origin, first, stop - start, append)

    def last_number(self, origin: int) -> int:
        """Return the last number of an origin that was appended here, or its final one."""
        return self._owned().origins.last(origin)

    def close_origin(self, origin: int, timeout: float | None = None) -> int:
        """Take nothing more from an origin, and return its final number once that is stored; it may wait."""
        target = self._owned()
        final = target.origins.close(origin)
        self.log.wait_committed(self.log.end, timeout)
        target.close_origin(origin, final)
        return final

    def _owned(self) -> ShardTarget:
        target = self._target
        if target is None or self.log.barred is not None:
            raise self.log.barred or not_owned(self.number)
        return target

    def close(self) -> None:
        """Commit what was appended if that is possible at once, and let go of everything."""
        target = self._target
        if target is not None and self.log.trouble is None and self.log.barred is None:
            self._last_commit()
        if target is not None:
            target.stop()
        try:
            self.log.close()
        finally:
            self._let_go()
            self._history.close()
            if not self._is_shared:
                self._commits.close()

    def _last_commit(self) -> None:
        try:
            self.log.wait_committed(self.log.end, CLOSE_S)
        except EverlogError:
            return  # nobody was told that it was committed


class NotOwned(Fenced):
    """A shard is followed here, as it should be: it was never owned, or let go of in order."""


def not_owned(number: int) -> NotOwned:
    """Return why nothing may be appended to a shard here."""
    return NotOwned(f"shard {number} is not owned by this broker", hint="send it to the broker that owns the shard")
