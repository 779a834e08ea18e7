"""Messages as the columns that a parser would make of them, stores driven without threads, results as plain rows."""

import struct
from collections.abc import Iterable, Sequence
from random import Random

from everlog.base import MessageColumns, TopicTable
from everlog.commitlog import Disk, LogSettings, SimulatedDisk
from everlog.store import LogStore, MessageStore, Positions, Reader, ReadResult
from everlog.topics import Filter, parse_filter

Message = tuple[bytes, int, bytes, bytes]  # topic, flags, properties, payload
Row = tuple[int, int, int, bytes, int, bytes, bytes]  # shard, offset, time, topic, flags, properties, payload
EXPIRY = b"\x02\x00\x00\x00\x07"
PLENTY = 1 << 30


def to_columns(messages: Sequence[Message], table: TopicTable) -> MessageColumns:
    """The columns a parser would make of these messages."""
    columns = MessageColumns(max(len(messages), 1))
    source = bytearray()
    for i, (topic, flags, properties, payload) in enumerate(messages):
        struct.pack_into("<I", columns.topics, 4 * i, table.intern(topic))
        columns.flags[i] = flags
        for column, more in (
            (columns.property_starts, b""),
            (columns.payload_starts, properties),
            (columns.payload_ends, payload),
        ):
            source += more
            struct.pack_into("<I", column, 4 * i, len(source))
    columns.source = bytes(source)
    return columns


def u32s(*numbers: int) -> bytearray:
    """Numbers as a column."""
    return bytearray(struct.pack(f"<{len(numbers)}I", *numbers))


def filters(*texts: str) -> list[Filter]:
    """Filters from their texts."""
    return [parse_filter(text) for text in texts]


def rows_of(result: ReadResult) -> list[Row]:
    """What a read found."""
    found = []
    for batch in result.batches:
        assert batch.records.verify()
        for i in batch.row_numbers():
            offset, time_us, topic, flags, properties, payload = batch.records.row(i)
            name = batch.records.table.name(topic)
            found.append((batch.shard, offset, time_us, name, flags, properties, payload))
    return found


def drain(reader: Reader, positions: Positions, max_records: int = PLENTY, max_bytes: int = PLENTY) -> list[Row]:
    """Everything from these positions on, step by step; every step gets on."""
    found: list[Row] = []
    while True:
        result = reader.read(positions, max_records, max_bytes)
        rows = rows_of(result)
        assert result.count == len(rows) <= max_records
        found += rows
        assert result.caught_up or result.positions != positions
        positions = result.positions
        if result.caught_up:
            return found


def small(**changes: object) -> LogSettings:
    """Settings under which a few messages fill a segment."""
    settings: dict[str, object] = {"segment_bytes": 1500, "batch_bytes": 600, "merge_below": 0, "tail_bytes": 0}
    return LogSettings(**{**settings, **changes})  # type: ignore[arg-type]


def open_store(shards: int | None = None, disk: Disk | None = None, **changes: object) -> LogStore:
    """A store without threads, on a disk in memory unless another is given."""
    disk = disk if disk is not None else SimulatedDisk(Random(1))
    return LogStore.open("/data", small(**changes), shards=shards, disk=disk, background=False)


def append(store: MessageStore, messages: Sequence[Message], now_us: int = 1_000) -> list[tuple[int, int]]:
    """Append messages from a source of their own."""
    table = TopicTable()
    return store.append(to_columns(messages, table), 0, len(messages), now_us, table)


def settle(store: LogStore, seal: bool = True) -> None:
    """Commit all that was appended and seal every complete segment."""
    for log in store.shards:
        while log.commit_step():
            pass
        while seal and log.seal_step():
            pass


def fill(store: LogStore, messages: Iterable[Message], each: int = 7, now_us: int = 1_000) -> None:
    """Append messages a few at a time, each time committed and sealed; time goes on by 10 us."""
    run: list[Message] = []
    for message in messages:
        run.append(message)
        if len(run) == each:
            append(store, run, now_us)
            settle(store)
            run, now_us = [], now_us + 10
    if run:
        append(store, run, now_us)
        settle(store)


def numbered(count: int, topics: int = 5) -> list[Message]:
    """Messages that tell their number; every third has a property."""
    return [
        (b"t/%d/x" % (n % topics), 2 * (n % 3), EXPIRY if n % 3 == 0 else b"", b"payload %d" % n) for n in range(count)
    ]
