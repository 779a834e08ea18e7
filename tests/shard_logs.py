"""Logs of one shard, driven without threads, and what is appended to and read from them."""

from collections.abc import Sequence
from random import Random

from everlog.base import MessageColumns, RecordBuilder, Records, TopicTable
from everlog.commitlog import LogSettings, ShardLog
from tests.messages import to_columns
from tests.simulated_disk import SimulatedDisk

Message = tuple[bytes, bytes]  # topic, payload
Row = tuple[int, bytes, bytes]  # offset, topic, payload
DIRECTORY = "data/shard-0"


def small(**changes: object) -> LogSettings:
    """Return settings under which a few messages fill a segment, and a file ends where its batches do."""
    settings: dict[str, object] = {
        "segment_bytes": 1500, "batch_bytes": 600, "merge_below": 0, "tail_bytes": 0, "preallocate_bytes": 0,
    }  # fmt: skip
    return LogSettings(**{**settings, **changes})  # type: ignore[arg-type]


def opened(disk: SimulatedDisk | None = None, settings: LogSettings | None = None, **options: object) -> ShardLog:
    """Open a log without threads, on a disk in memory."""
    return ShardLog.open(
        disk or SimulatedDisk(Random(1)), DIRECTORY, settings or small(), background=False,
        random_bytes=Random(2).randbytes, **options,
    )  # type: ignore[arg-type]  # fmt: skip


def columns_of(messages: Sequence[Message], table: TopicTable, properties: bytes = b"") -> MessageColumns:
    """Return the columns of QoS 1 messages that all have the same properties."""
    return to_columns([(topic, 0x02, properties, payload) for topic, payload in messages], table)


def batch(base: int, count: int, time_us: int) -> Records:
    """Return a batch of numbered messages."""
    table, builder = TopicTable(), RecordBuilder()
    builder.append(columns_of(numbered(count), table), 0, count, time_us, table)
    return builder.take(base)


def append(log: ShardLog, messages: Sequence[Message], now_us: int = 1, table: TopicTable | None = None) -> int:
    """Append messages and return the offset of the first."""
    table = table or TopicTable()
    first = log.end
    log.append(columns_of(messages, table), 0, len(messages), now_us, table)
    return first


def commit(log: ShardLog, messages: Sequence[Message], now_us: int = 1) -> int:
    """Append messages, commit them in this thread and return the offset of the first."""
    first = append(log, messages, now_us)
    log.commit_step()
    return first


def numbered(count: int, first: int = 0, topics: int = 5) -> list[Message]:
    """Return messages that tell their number."""
    return [(b"t/%d" % (n % topics), b"payload %d" % n) for n in range(first, first + count)]


def rows_of(batches: Sequence[Records]) -> list[Row]:
    """Return the records of batches with the names of their topics."""
    return [(row[0], records.table.name(row[2]), row[5]) for records in batches for row in records.rows()]


def rows(log: ShardLog, start: int | None = None, max_bytes: int = 1500) -> list[Row]:
    """Return everything that can be read, by many reads."""
    found: list[Row] = []
    offset = log.start if start is None else start
    while batches := log.read(offset, max_bytes):
        found += rows_of(batches)
        offset = batches[-1].base_offset + batches[-1].count
    return found
