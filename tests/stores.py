"""Stores driven without threads, what is appended to them, and what is read as plain rows."""

from collections.abc import Iterable, Sequence
from random import Random

from everlog.base import TopicTable
from everlog.commitlog import Disk, LogSettings
from everlog.store import LogStore, Positions, ReadResult, StoreReader
from everlog.topics import Filter, parse_filter
from tests.messages import EXPIRY, Message, to_columns
from tests.plain_store import PlainReader, PlainStore
from tests.simulated_disk import SimulatedDisk

Row = tuple[int, int, int, bytes, int, bytes, bytes]  # shard, offset, time, topic, flags, properties, payload
PLENTY = 1 << 30


def filters(*texts: str) -> list[Filter]:
    """Return filters by their texts."""
    return [parse_filter(text) for text in texts]


def rows_of(result: ReadResult) -> list[Row]:
    """Return what a read found."""
    found = []
    for batch in result.batches:
        assert batch.records.verify()
        for i in batch.row_numbers():
            offset, time_us, topic, flags, properties, payload = batch.records.row(i)
            name = batch.records.table.name(topic)
            found.append((batch.shard, offset, time_us, name, flags, properties, payload))
    return found


def drain(
    reader: StoreReader | PlainReader, positions: Positions, max_records: int = PLENTY, max_bytes: int = PLENTY
) -> list[Row]:
    """Return everything from these positions on, read step by step; every step gets on."""
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
    """Return settings under which a few messages fill a segment."""
    settings: dict[str, object] = {"segment_bytes": 1500, "batch_bytes": 600, "merge_below": 0, "tail_bytes": 0}
    return LogSettings(**{**settings, **changes})  # type: ignore[arg-type]


def open_store(shards: int | None = None, disk: Disk | None = None, **changes: object) -> LogStore:
    """Open a store without threads, on a disk in memory unless another is given."""
    disk = disk if disk is not None else SimulatedDisk(Random(1))
    return LogStore.open("/data", small(**changes), shards=shards, disk=disk, background=False)


def append(store: LogStore | PlainStore, messages: Sequence[Message], now_us: int = 1_000) -> list[tuple[int, int]]:
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
    """Return messages that tell their number; every third has a property."""
    return [
        (b"t/%d/x" % (n % topics), 2 * (n % 3), EXPIRY if n % 3 == 0 else b"", b"payload %d" % n) for n in range(count)
    ]
