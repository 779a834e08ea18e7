"""Messages as the columns that a parser would make of them, and logs read back as rows."""

import struct
from collections.abc import Sequence

from everlog.base import MessageColumns, Records, TopicTable
from everlog.commitlog import LogSettings, ShardLog

Message = tuple[bytes, bytes]  # topic, payload
Row = tuple[int, bytes, bytes]  # offset, topic, payload
EXPIRY = b"\x02\x00\x00\x00\x07"


def to_columns(messages: Sequence[Message], table: TopicTable, properties: bytes = b"") -> MessageColumns:
    """QoS 1 messages, all with the same properties."""
    columns = MessageColumns(max(len(messages), 1))
    source = bytearray()
    for i, (topic, payload) in enumerate(messages):
        struct.pack_into("<I", columns.topics, 4 * i, table.intern(topic))
        columns.flags[i] = 0x02
        for column, more in (
            (columns.property_starts, b""),
            (columns.payload_starts, properties),
            (columns.payload_ends, payload),
        ):
            source += more
            struct.pack_into("<I", column, 4 * i, len(source))
    columns.source = bytes(source)
    return columns


def append(log: ShardLog, messages: Sequence[Message], now_us: int = 1, table: TopicTable | None = None) -> int:
    """Append messages; the offset of the first."""
    table = table or TopicTable()
    first = log.end
    log.append(to_columns(messages, table), 0, len(messages), now_us, table)
    return first


def commit(log: ShardLog, messages: Sequence[Message], now_us: int = 1) -> int:
    """Append messages and commit them in this thread; the offset of the first."""
    first = append(log, messages, now_us)
    log.commit_step()
    return first


def numbered(count: int, first: int = 0, topics: int = 5) -> list[Message]:
    """Messages that tell their number."""
    return [(b"t/%d" % (n % topics), b"payload %d" % n) for n in range(first, first + count)]


def rows_of(batches: Sequence[Records]) -> list[Row]:
    """The records of batches with their topics' names."""
    return [(row[0], records.table.name(row[2]), row[5]) for records in batches for row in records.rows()]


def rows(log: ShardLog, start: int | None = None, max_bytes: int = 1500) -> list[Row]:
    """Everything readable, by many reads."""
    found: list[Row] = []
    offset = log.start if start is None else start
    while batches := log.read(offset, max_bytes):
        found += rows_of(batches)
        offset = batches[-1].base_offset + batches[-1].count
    return found


def small(**changes: object) -> LogSettings:
    """Settings under which a few messages fill a segment, and a file ends where its batches do."""
    settings: dict[str, object] = {
        "segment_bytes": 1500, "batch_bytes": 600, "merge_below": 0, "tail_bytes": 0, "preallocate_bytes": 0,
    }  # fmt: skip
    return LogSettings(**{**settings, **changes})  # type: ignore[arg-type]
