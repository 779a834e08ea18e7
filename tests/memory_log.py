"""A log in memory behind the broker's port, committed at once or when the test says so."""

from collections.abc import Callable, Iterable

from everlog.base import MessageColumns, RecordBuilder, Records, StorageError, TopicTable
from everlog.store import Found, Lost, ReadResult
from everlog.topics import Filter, matches


class MemoryShard:
    """One shard; with `manual` nothing is committed before `commit_now`."""

    def __init__(self, manual: bool = False) -> None:
        self.start = 0
        self.end = 0
        self.committed = 0
        self.manual = manual
        self.batches: list[Records] = []
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
    ) -> int:
        taken = self._builder.append(columns, start, stop, now_us, table, routes, wanted)
        self.end += taken
        return taken

    @property
    def pending_bytes(self) -> int:
        return self._builder.size if len(self._builder) else 0

    def commit(self) -> None:
        if not self.manual:
            self.commit_now()

    def commit_here(self) -> bool:
        self.commit()
        return not self.manual

    def commit_now(self) -> None:
        if len(self._builder):
            records = self._builder.take(self.committed)
            self.batches.append(records)
            self.committed = records.end_offset

    def read(self, offset: int, max_bytes: int) -> list[Records]:
        return [records for records in self.batches if records.end_offset > offset]

    def drop(self, count: int) -> None:
        """Retention removes the first batches."""
        del self.batches[:count]
        self.start = self.batches[0].base_offset if self.batches else self.committed


class MemoryLog:
    """Some shards; a topic's shard is its length's."""

    def __init__(self, shards: int = 1, manual: bool = False) -> None:
        self.shards = [MemoryShard(manual) for _ in range(shards)]
        self.committed_calls: list[Callable[[int], None]] = []
        self.failure_calls: list[Callable[[int, StorageError], None]] = []

    def reader(self, filters: Iterable[Filter] | None) -> "MemoryReader":
        return MemoryReader(self, None if filters is None else tuple(filters))

    def positions_at(self, time_us: int) -> tuple[int, ...]:
        return tuple(
            next((row[0] for records in shard.batches for row in records.rows() if row[1] >= time_us), shard.committed)
            for shard in self.shards
        )

    def shard_of(self, topic: bytes) -> int:
        return len(topic) % len(self.shards)

    def on_commit(self, call: Callable[[int], None]) -> None:
        self.committed_calls.append(call)

    def on_failure(self, call: Callable[[int, StorageError], None]) -> None:
        self.failure_calls.append(call)

    def commit_now(self) -> None:
        for number, shard in enumerate(self.shards):
            shard.commit_now()
            for call in self.committed_calls:
                call(number)


class MemoryReader:
    """Gives what matches, at most so many batches a step."""

    def __init__(self, log: MemoryLog, filters: tuple[Filter, ...] | None, most: int = 1 << 30) -> None:
        self._log = log
        self._filters = filters
        self._most = most

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        source = self._log.shards[shard]
        lost = [Lost(shard, offset, source.start)] if offset < source.start else []
        found, at = [], max(offset, source.start)
        for records in source.read(offset, max_bytes)[: self._most]:
            rows = [k for k, row in enumerate(records.rows()) if row[0] >= offset and self._wants(records, row[2])]
            if rows:
                column = bytearray(b"".join(row.to_bytes(4, "little") for row in rows))
                found.append(Found(shard, records, column, 0, len(rows)))
            at = records.end_offset
        if at < source.committed and (not source.batches or source.batches[-1].end_offset <= at):
            lost.append(Lost(shard, at, source.committed))
            at = source.committed
        return ReadResult(found, (at,), at == source.committed, tuple(lost))

    def release(self) -> None:
        """Nothing is kept between steps."""

    def _wants(self, records: Records, topic: int) -> bool:
        if self._filters is None:
            return True
        return any(matches(flt, records.table.name(topic).decode()) for flt in self._filters)


class SteppingLog(MemoryLog):
    """Its readers give a few batches a step."""

    def reader(self, filters: Iterable[Filter] | None) -> "MemoryReader":
        return MemoryReader(self, None if filters is None else tuple(filters), 3)
