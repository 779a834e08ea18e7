"""A log in memory behind the broker's port, committed at once or when the test says so."""

from collections.abc import Callable, Iterable
from typing import Any

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
        return MemoryReader(self)

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
    """Gives every record, whatever the filters: who asks must look at topics all the same."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        found = []
        start = self._log.shards[shard].start
        gone = (Lost(shard, offset, start),) if offset < start else ()
        offset = max(offset, start)
        for records in self._log.shards[shard].read(offset, max_bytes):
            first = max(0, offset - records.base_offset)
            found.append(Found(shard, records, None, first, records.count))
            offset = records.end_offset
        end = self._log.shards[shard].committed
        lost = (Lost(shard, offset, end),) if offset < end else ()
        return ReadResult(found, (end,), True, gone + lost)

    def release(self) -> None:
        """Nothing is kept between steps."""


class StrictLog(MemoryLog):
    """Its readers give what matches and nothing else, a few batches a step."""

    def reader(self, filters: Iterable[Filter] | None) -> Any:
        return StrictReader(self, tuple(filters or ()))


class StrictReader:
    """Reads no more than three batches at a time."""

    def __init__(self, log: MemoryLog, filters: tuple[Filter, ...]) -> None:
        self._log = log
        self._filters = filters

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        source = self._log.shards[shard]
        lost = (Lost(shard, offset, source.start),) if offset < source.start else ()
        found, end = [], source.committed
        for records in source.read(offset, max_bytes)[:3]:
            rows = [k for k, row in enumerate(records.rows()) if row[0] >= offset and self._wants(records, row[2])]
            if rows:
                column = bytearray(b"".join(row.to_bytes(4, "little") for row in rows))
                found.append(Found(shard, records, column, 0, len(rows)))
            end = records.end_offset
        return ReadResult(found, (end,), False, lost)

    def _wants(self, records: Records, topic: int) -> bool:
        return any(matches(flt, records.table.name(topic).decode()) for flt in self._filters)
