"""The message store over N shard logs in one directory.

The directory holds a file `store` that says which store it is and how many shards it has, and a log in `shard-K` for
each. The logs own their threads; this module owns what readers share: open sealed segments and postings of open ones.
"""

import errno
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from everlog.base import MessageColumns, PublisherColumn, PublisherName, StorageError, TopicTable, UsageError
from everlog.commitlog import NOBODY, Classes, Disk, LogSettings, Origin, RealDisk, RetentionPlan, ShardLog, Thinned
from everlog.store.indexer import TopicIndexer
from everlog.store.read_result import Found, Lost, Positions, ReadResult
from everlog.store.recent_batches import RecentBatches
from everlog.store.sealed_segment import SealedSegments
from everlog.store.shard_reader import ShardReader
from everlog.store.sharding import Routes, shard_of
from everlog.store.store_file import StoreFile, find_store_file, write_store_file
from everlog.store.topic_mask import SharedPostings
from everlog.store.unsealed_segment import UnsealedSegments
from everlog.topics import Filter, SectionCache

SECTION_CACHE_BYTES = 32 << 20  # parts of topic indexes in memory, of all shards; the least recently used go first
RECENT_BYTES = 64 << 20  # verified batches that a step ended in, of all shards; the least recently used go first
UNSEALED_BYTES = 64 << 20  # row postings of unsealed segments, of all shards; beyond it, batch by batch

_log = logging.getLogger("everlog.store")
_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """A shard in numbers."""

    shard: int
    start: int
    committed: int
    end: int
    segment_bytes: int
    segments: int
    sealed: int
    pending_bytes: int
    damaged: int
    distrusted: int  # sealed segments whose index does not fit and is no longer used
    block_bytes: int = 0  # of memory, for recent large batches
    commits: int = 0
    write_s: float = 0.0  # that they spent writing and syncing

    @property
    def records(self) -> int:
        """How many offsets are retained and committed."""
        return self.committed - self.start

    def lag(self, offset: int) -> int:
        """Return how many committed offsets a reader at this offset has still to read."""
        return max(0, self.committed - max(offset, self.start))


class StoreReader:
    """A reader of what matches one set of filters in all shards. Not for two threads at once."""

    def __init__(self, shards: list[ShardReader]) -> None:
        self._shards = shards
        self._turn = 0

    def read(self, positions: Positions, max_records: int, max_bytes: int) -> ReadResult:
        """Return records from these positions on, by rising offset in each shard; shards take turns to be first."""
        if len(positions) != len(self._shards):
            raise UsageError(f"{len(positions)} positions for {len(self._shards)} shards")
        at = list(positions)
        behind = False
        found: list[Found] = []
        lost: list[Lost] = []
        for step in range(len(at)):
            shard = (self._turn + step) % len(at)
            result = self._shards[shard].read(at[shard], max_records, max_bytes)
            found += result.batches
            lost += result.lost
            at[shard] = result.positions[0]
            behind = behind or not result.caught_up
            max_records -= result.count
            max_bytes -= sum(batch.records.size for batch in result.batches)
        self._turn = (self._turn + 1) % len(at)
        return ReadResult(found, tuple(at), not behind, tuple(lost))

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        """Return records of one shard from an offset on."""
        return self._shards[shard].read(offset, max_records, max_bytes)

    def share(self, shard: int, offset: int) -> float:
        """Estimate which part of the segment that holds an offset is wanted; 1 if no index tells."""
        return self._shards[shard].share(offset)

    def release(self) -> None:
        """Let go of what was kept between steps."""
        for shard in self._shards:
            shard.release()


class LogStore:
    """Kept messages by topic filter and position. One thread appends; any may read with a reader of its own."""

    def __init__(self, shards: list[ShardLog]) -> None:
        self.shards = shards
        self._identity = shards[0].origin.store or _identity_by_salts(shards)
        cache = SectionCache(SECTION_CACHE_BYTES)
        self._sealed = [SealedSegments(log, cache) for log in shards]
        self._shared = SharedPostings()
        self._recent = RecentBatches(RECENT_BYTES)
        self._unsealed = UnsealedSegments(UNSEALED_BYTES)
        self._routes = Routes(len(shards))
        self._calls: list[Callable[[int], None]] = []
        self._failure_calls: list[Callable[[int, StorageError], None]] = []
        self._trouble_calls: list[Callable[[int, StorageError | None], None]] = []
        for number, log in enumerate(shards):
            self._sealed[number].on_list = partial(self._unsealed.keep_only, number)
            log.on_commit = partial(self._announce, number)
            log.on_failure = partial(self._announce_failure, number)
            log.on_trouble = partial(self._announce_trouble, number)

    @classmethod
    def open(
        cls,
        directory: str,
        settings: LogSettings | None = None,
        *,
        shards: int | None = None,
        disk: Disk | None = None,
        classes: Classes | None = None,
        writable: bool = True,
        background: bool = True,
    ) -> "LogStore":
        """Open a store, or make one with `shards` shards (1 by default); a read-only one may run beside its writer."""
        disk = disk if disk is not None else RealDisk()
        with _usable(directory, writable), ExitStack() as opened:
            about = find_store_file(disk, directory, shards, writable)
            logs = []
            for number in range(about.shards):
                log = ShardLog.open(
                    disk,
                    f"{directory}/shard-{number}",
                    settings,
                    indexer=TopicIndexer(),
                    classes=classes,
                    writable=writable,
                    background=background,
                    origin=Origin(about.identity, number) if about.identity else NOBODY,
                )
                opened.callback(log.close)
                logs.append(log)
                for damage in log.damage if writable else ():
                    _log.warning("shard %d: %s", number, damage)
            if writable and not about.identity:  # it was made when the salts alone told which store it is
                identity = _identity_by_salts(logs)
                write_store_file(disk, directory, StoreFile(about.shards, identity))
                for number, log in enumerate(logs):
                    log.origin = Origin(identity, number)
            opened.pop_all()
            return cls(logs)

    def _announce(self, number: int, log: ShardLog, committed: int) -> None:
        for call in self._calls:
            call(number)

    def _announce_failure(self, number: int, log: ShardLog, failure: StorageError) -> None:
        for call in self._failure_calls:
            call(number, failure)

    def _announce_trouble(self, number: int, log: ShardLog, trouble: StorageError | None) -> None:
        for call in self._trouble_calls:
            call(number, trouble)

    def shard_of(self, topic: bytes) -> int:
        """Return the shard of a topic."""
        return shard_of(topic, len(self.shards))

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        publisher: PublisherName | PublisherColumn | None = None,
    ) -> list[tuple[int, int]]:
        """Keep messages `start` to before `stop`; return for each shard that took any its number and its end then.

        With `routes` (a byte for each topic id and QoS, at 4 * id + QoS) only the messages whose byte is a shard's
        number are kept, in that shard. `publisher` is as for `RecordBuilder.append`.
        """
        if routes is None and len(self.shards) > 1:
            routes = self._routes.of(table)
        ends = []
        for number, log in enumerate(self.shards):
            if log.append(columns, start, stop, now_us, table, routes, number, publisher):
                ends.append((number, log.end))
        return ends

    def commit(self) -> None:
        """Ask every shard to commit what was appended to it, and return at once."""
        for log in self.shards:
            if log.end > log.committed:
                log.commit()

    def committed(self) -> Positions:
        """Return where each shard's committed records end."""
        return tuple(log.committed for log in self.shards)

    def on_commit(self, call: Callable[[int], None]) -> None:
        """Call `call` with a shard's number after each of its commits, from its committing thread."""
        self._calls.append(call)

    def on_failure(self, call: Callable[[int, StorageError], None]) -> None:
        """Call `call` with a shard's number and the error when it becomes read-only."""
        self._failure_calls.append(call)

    def on_trouble(self, call: Callable[[int, StorageError | None], None]) -> None:
        """Call `call` with a shard's number and the error when it can't be written for now, and with None after it."""
        self._trouble_calls.append(call)

    def reader(self, filters: Iterable[Filter] | None, *, publishers: bool = False) -> StoreReader:
        """Return a reader of the records that match any of the filters, or of all for None.

        If `publishers` are asked for, the records say who has published them, as far as the log does.
        """
        kept = None if filters is None else tuple(dict.fromkeys(filters))
        return StoreReader(
            [
                ShardReader(number, log, sealed, kept, self._shared, self._recent, self._unsealed, publishers)
                for number, (log, sealed) in enumerate(zip(self.shards, self._sealed, strict=True))
            ]
        )

    def positions_at(self, time_us: int) -> Positions:
        """Return for each shard the first offset that is not older than a time, or the committed end."""
        return tuple(log.offset_at(time_us) for log in self.shards)

    @property
    def identity(self) -> str:
        """A name that no other store has and that this one keeps wherever it is moved."""
        return f"{self._identity:016x}"

    def refresh(self) -> Positions:
        """Take in what the writer of a store that was opened read-only committed since."""
        for sealed, log in zip(self._sealed, self.shards, strict=True):
            log.refresh()
            sealed.trim()
        return self.committed()

    def statistics(self) -> list[ShardStatistics]:
        """Return every shard in numbers."""
        found = []
        for number, (log, sealed) in enumerate(zip(self.shards, self._sealed, strict=True)):
            numbers = log.statistics()
            found.append(
                ShardStatistics(
                    shard=number,
                    start=numbers.start,
                    committed=numbers.committed,
                    end=numbers.end,
                    segment_bytes=numbers.segment_bytes,
                    segments=numbers.segments,
                    sealed=numbers.sealed,
                    pending_bytes=numbers.pending_bytes,
                    damaged=numbers.damaged,
                    distrusted=sealed.distrusted,
                    block_bytes=numbers.block_bytes,
                    commits=numbers.commits,
                    write_s=numbers.write_s,
                )
            )
        return found

    def thin(self, now_us: int, below: Positions | None = None) -> list[tuple[int, Thinned]]:
        """Empty the old records of short-lived topics below these positions in segments that stay; return where."""
        done = []
        for number, log in enumerate(self.shards):
            done += self._thinned(number, log.thin(now_us, None if below is None else below[number]))
        return done

    @property
    def may_collect(self) -> bool:
        """Whether sealed segments hold records that no setting keeps, or nothing at all."""
        return any(log.may_collect for log in self.shards)

    def collect(self, spilled: Positions, owed: Positions) -> list[tuple[int, Thinned]]:
        """Empty what no setting keeps and nobody reads any more: what spills have left below the positions `spilled`,
        what sessions and groups were owed below `owed`; return where.

        The oldest segments below `owed` that are left with nothing go.
        """
        done = []
        for number, log in enumerate(self.shards):
            done += self._thinned(number, log.collect(spilled[number], owed[number]))
            self._sealed[number].trim()
        return done

    def _thinned(self, number: int, thinned: list[Thinned]) -> list[tuple[int, Thinned]]:
        """Forget what is known of segments of a shard that were rewritten."""
        self._sealed[number].renew({one.base_offset for one in thinned})
        for one in thinned:
            self._recent.forget(number, one.base_offset, one.end_offset)
        return [(number, one) for one in thinned]

    @property
    def limits_retention(self) -> bool:
        """Whether there is any limit of age or size."""
        return any(log.limits_retention for log in self.shards)

    def plan_retention(self, now_us: int, keep_from: Positions | None = None) -> list[RetentionPlan]:
        """Return for each shard what `run_retention` would remove now: nothing from the positions `keep_from` on."""
        return [
            log.plan_retention(now_us, keep_from=None if keep_from is None else keep_from[number])
            for number, log in enumerate(self.shards)
        ]

    def run_retention(self, now_us: int, keep_from: Positions | None = None) -> None:
        """Remove what is too old or too much, below `keep_from`."""
        for number, (log, sealed) in enumerate(zip(self.shards, self._sealed, strict=True)):
            log.run_retention(now_us, keep_from=None if keep_from is None else keep_from[number])
            sealed.trim()

    def close(self) -> None:
        """Commit what was appended and let go of everything; every shard is closed even if one fails."""
        with ExitStack() as closing:
            for sealed, log in zip(self._sealed, self.shards, strict=True):
                closing.callback(log.close)
                closing.callback(sealed.close)


@contextmanager
def _usable(directory: str, writable: bool) -> Iterator[None]:
    """Turn the system's errors into ones that name the data directory."""
    try:
        yield
    except OSError as error:
        message = f"{directory} can't be used as a data directory: {error.filename or directory}: {error.strerror}"
        if error.errno in _NO_PLACE:
            wanted = "write to" if writable else "read"
            raise UsageError(message, hint=f"give a directory that this user may {wanted}") from error
        raise StorageError(message, hint="check whether the disk is full or failing") from error


def _identity_by_salts(shards: list[ShardLog]) -> int:
    """Return the identity of a store whose file does not say it."""
    names = "/".join(log.identity for log in shards)
    return int(hashlib.blake2b(names.encode(), digest_size=8).hexdigest(), 16)
