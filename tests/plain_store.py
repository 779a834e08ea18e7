"""A message store that is nothing but lists: what the contract means, and a second implementation of it."""

from collections.abc import Callable, Iterable

from everlog.base import MessageColumns, RecordBuilder, TopicTable, UsageError
from everlog.store import Found, Positions, ReadResult, ShardStatistics
from everlog.topics import Filter, matches
from tests.messages import Message, to_columns

Kept = tuple[int, Message]  # time, message


class PlainReader:
    """Looks at every record, one batch for each that matches."""

    def __init__(self, store: "PlainStore", filters: list[Filter] | None) -> None:
        self._store = store
        self._filters = filters

    def read(self, positions: Positions, max_records: int, max_bytes: int) -> ReadResult:
        if len(positions) != len(self._store.logs):
            raise UsageError("positions and shards differ in number")
        batches: list[Found] = []
        ends: list[int] = []
        caught_up = True
        for shard, offset in enumerate(positions):
            result = self.read_shard(shard, offset, max_records - len(batches), max_bytes)
            batches += result.batches
            ends += result.positions
            caught_up = caught_up and result.caught_up
        return ReadResult(batches, tuple(ends), caught_up)

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        batches: list[Found] = []
        end = self._store.ends[shard]
        while offset < end and len(batches) < max_records and max_bytes > 0:
            time_us, message = self._store.logs[shard][offset]
            name = message[0].decode()
            if self._filters is None or any(matches(flt, name) for flt in self._filters):
                table, builder = TopicTable(), RecordBuilder()
                builder.append(to_columns([message], table), 0, 1, time_us, table)
                records = builder.take(offset)
                batches.append(Found(shard, records, None, 0, 1))
                max_bytes -= records.size
            offset += 1
        return ReadResult(batches, (offset,), offset >= end)

    def release(self) -> None:
        pass


class PlainStore:
    """Lists of messages; a topic's shard is its length's."""

    def __init__(self, shards: int) -> None:
        self.logs: list[list[Kept]] = [[] for _ in range(shards)]
        self.ends = [0] * shards
        self._calls: list[Callable[[int], None]] = []

    def shard_of(self, topic: bytes) -> int:
        return len(topic) % len(self.logs)

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
    ) -> list[tuple[int, int]]:
        builder = RecordBuilder()
        builder.append(columns, start, stop, now_us, table)
        touched = set()
        for _, time_us, topic, flags, properties, payload in builder.take(0).rows() if stop > start else []:
            name = builder.table.name(topic)
            shard = self.shard_of(name)
            if routes is not None:
                shard = routes[4 * table.lookup(name) + (flags >> 1 & 3)]
            if shard < len(self.logs):
                self.logs[shard].append((time_us, (name, flags, properties, payload)))
                touched.add(shard)
        return [(shard, len(self.logs[shard])) for shard in sorted(touched)]

    def commit(self) -> None:
        for shard, log in enumerate(self.logs):
            if self.ends[shard] < len(log):
                self.ends[shard] = len(log)
                for call in self._calls:
                    call(shard)

    def committed(self) -> Positions:
        return tuple(self.ends)

    def on_commit(self, call: Callable[[int], None]) -> None:
        self._calls.append(call)

    def reader(self, filters: Iterable[Filter] | None, *, publishers: bool = False) -> PlainReader:
        return PlainReader(self, None if filters is None else list(filters))

    def positions_at(self, time_us: int) -> Positions:
        return tuple(
            next((offset for offset, (at, _) in enumerate(log[:end]) if at >= time_us), end)
            for log, end in zip(self.logs, self.ends, strict=True)
        )

    def statistics(self) -> list[ShardStatistics]:
        return [
            ShardStatistics(shard, 0, self.ends[shard], len(log), 1, 1, 0, 0, 0, 0)
            for shard, log in enumerate(self.logs)
        ]

    def run_retention(self, now_us: int, keep_from: Positions | None = None) -> None:
        pass

    def close(self) -> None:
        pass
