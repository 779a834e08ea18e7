"""A log in memory behind the broker's port, committed at once or when the test says so.

`tests/contracts/test_log.py` holds it to what the real one does.
"""

from collections.abc import Callable, Iterable

from everlog.base import (
    MessageColumns,
    PublisherColumn,
    PublisherName,
    RecordBuilder,
    Records,
    StorageError,
    TopicTable,
)
from everlog.store import Found, Lost, Positions, ReadResult, ShardStatistics
from everlog.topics import Filter, matches


class MemoryShard:
    """One shard; with `manual` nothing is committed before `commit_now`."""

    def __init__(self, manual: bool = False) -> None:
        self.start = 0
        self.end = 0
        self.committed = 0
        self.manual = manual
        self.failure: StorageError | None = None
        self.trouble: StorageError | None = None
        self.batches: list[Records] = []
        self.announce: Callable[[], None] = lambda: None  # does not tell of what was told already
        self._builder = RecordBuilder()

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
        """Append messages; how many of them are this shard's."""
        if self.failure is not None:
            raise self.failure
        taken = self._builder.append(columns, start, stop, now_us, table, routes, wanted, publisher)
        self.end += taken
        return taken

    @property
    def pending_bytes(self) -> int:
        """How many bytes were appended and are not committed."""
        return self._builder.size if len(self._builder) else 0

    def commit(self) -> None:
        """Commit what was appended, unless only the test does, and tell who listens."""
        if not self.manual:
            self.commit_now()
            self.announce()

    def commit_here(self, until_ns: int = 0) -> bool:
        """Commit in the same way; whether it is done."""
        self.commit()
        return not self.manual and self.failure is None and self.trouble is None

    def commit_now(self) -> None:
        """Commit what was appended and tell nobody."""
        if len(self._builder) and self.failure is None and self.trouble is None:
            records = self._builder.take(self.committed)
            self.batches.append(records)
            self.committed = records.end_offset

    def read(self, offset: int, max_bytes: int) -> list[Records]:
        """Return whole batches from the one that holds an offset on, at least one if there is one."""
        found: list[Records] = []
        for records in self.batches:
            if records.end_offset > offset:
                max_bytes -= records.size
                if found and max_bytes < 0:
                    break
                found.append(records)
        return found

    def bytes_from(self, offset: int) -> int:
        """Return how many bytes the batches with records from an offset on take."""
        return sum(records.size for records in self.batches if records.end_offset > offset)

    def drop(self, count: int) -> None:
        """Remove the first batches, as retention does."""
        del self.batches[:count]
        self.start = self.batches[0].base_offset if self.batches else self.committed


class MemoryLog:
    """Some shards; a topic's shard is its length's."""

    def __init__(self, shards: int = 1, manual: bool = False) -> None:
        self.shards = [MemoryShard(manual) for _ in range(shards)]
        self._told = [0] * shards
        self._commit_calls: list[Callable[[int], None]] = []
        self._failure_calls: list[Callable[[int, StorageError], None]] = []
        self._trouble_calls: list[Callable[[int, StorageError | None], None]] = []
        for number, shard in enumerate(self.shards):
            shard.announce = lambda number=number: self._announce(number)  # type: ignore[misc]

    def shard_of(self, topic: bytes) -> int:
        """Return the shard of a topic."""
        return len(topic) % len(self.shards)

    def reader(self, filters: Iterable[Filter] | None, *, publishers: bool = False) -> "MemoryReader":
        """Return a reader of what matches any of the filters; None for everything."""
        return MemoryReader(self, None if filters is None else tuple(filters))

    def positions_at(self, time_us: int) -> Positions:
        """Return the first record of each shard that is not older, or its committed end."""
        return tuple(
            next((row[0] for records in shard.batches for row in records.rows() if row[1] >= time_us), shard.committed)
            for shard in self.shards
        )

    def statistics(self) -> list[ShardStatistics]:
        """Return every shard in numbers; each batch counts as a segment."""
        return [
            ShardStatistics(
                number,
                shard.start,
                shard.committed,
                shard.end,
                segment_bytes=sum(records.size for records in shard.batches),
                segments=len(shard.batches),
                sealed=0,
                pending_bytes=shard.pending_bytes,
                damaged=0,
                distrusted=0,
            )
            for number, shard in enumerate(self.shards)
        ]

    def on_commit(self, call: Callable[[int], None]) -> None:
        """Have `call` called with a shard's number when more of it was committed."""
        self._commit_calls.append(call)

    def on_failure(self, call: Callable[[int, StorageError], None]) -> None:
        """Have `call` called when a shard can't be written any more."""
        self._failure_calls.append(call)

    def on_trouble(self, call: Callable[[int, StorageError | None], None]) -> None:
        """Have `call` called when a shard can't be written for now, and with None when it can."""
        self._trouble_calls.append(call)

    def commit_now(self) -> None:
        """Commit everything, and tell of all that nobody was told of."""
        for number, shard in enumerate(self.shards):
            shard.commit_now()
            self._announce(number)

    def fail(self, number: int, error: StorageError) -> None:
        """Let a shard take and commit nothing more, as when its disk fails."""
        self.shards[number].failure = error
        for call in self._failure_calls:
            call(number, error)

    def trouble(self, number: int, error: StorageError | None) -> None:
        """Let a shard commit nothing for now, as when its disk is full; None ends that."""
        shard = self.shards[number]
        shard.trouble = error
        for call in self._trouble_calls:
            call(number, error)
        if error is None:
            shard.commit_now()
            self._announce(number)

    def _announce(self, number: int) -> None:
        committed = self.shards[number].committed
        if committed != self._told[number]:
            self._told[number] = committed
            for call in self._commit_calls:
                call(number)


class MemoryReader:
    """Gives what matches, at most so many batches a step."""

    def __init__(self, log: MemoryLog, filters: tuple[Filter, ...] | None, most: int = 1 << 30) -> None:
        self._log = log
        self._filters = filters
        self._most = most

    def read(self, positions: Positions, max_records: int, max_bytes: int) -> ReadResult:
        """Return what matches from these positions on."""
        batches: list[Found] = []
        lost: list[Lost] = []
        ends: list[int] = []
        for shard, offset in enumerate(positions):
            result = self.read_shard(shard, offset, max_records, max_bytes)
            max_records -= result.count
            max_bytes -= sum(found.records.size for found in result.batches)
            batches += result.batches
            lost += result.lost
            ends += result.positions
        done = all(end == shard.committed for end, shard in zip(ends, self._log.shards, strict=True))
        return ReadResult(batches, tuple(ends), done, tuple(lost))

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        """Return what matches in one shard from an offset on."""
        source = self._log.shards[shard]
        lost = [Lost(shard, offset, source.start)] if offset < source.start else []
        found: list[Found] = []
        at = max(offset, source.start)
        for records in source.read(at, 1 << 60)[: self._most]:
            if max_records <= 0 or max_bytes <= 0:
                break
            if records.base_offset > at:
                lost.append(Lost(shard, at, records.base_offset))
                at = records.base_offset
            wanted = [k for k, row in enumerate(records.rows()) if row[0] >= at and self._wants(records, row[2])]
            rows = wanted[:max_records]
            if rows:
                column = bytearray(b"".join(row.to_bytes(4, "little") for row in rows))
                found.append(Found(shard, records, column, 0, len(rows)))
                max_records -= len(rows)
                max_bytes -= records.size
            at = records.end_offset if len(rows) == len(wanted) else records.base_offset + rows[-1] + 1
        if at < source.committed and (not source.batches or source.batches[-1].end_offset <= at):
            lost.append(Lost(shard, at, source.committed))
            at = source.committed
        return ReadResult(found, (at,), at == source.committed, tuple(lost))

    def release(self) -> None:
        """Do nothing: nothing is kept between steps."""

    def _wants(self, records: Records, topic: int) -> bool:
        if self._filters is None:
            return True
        return any(matches(flt, records.table.name(topic).decode()) for flt in self._filters)


class SteppingLog(MemoryLog):
    """Its readers give a few batches a step."""

    def reader(self, filters: Iterable[Filter] | None, *, publishers: bool = False) -> "MemoryReader":
        """Return a reader of small steps."""
        return MemoryReader(self, None if filters is None else tuple(filters), 3)
