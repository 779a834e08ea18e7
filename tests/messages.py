"""Messages as the columns and batches that a broker would make of them."""

import struct
from collections.abc import Sequence

from everlog.base import MessageColumns, RecordBuilder, Records, TopicTable

Message = tuple[bytes, int, bytes, bytes]  # topic, flags, properties, payload
EXPIRY = b"\x02\x00\x00\x00\x07"


def to_columns(messages: Sequence[Message], table: TopicTable) -> MessageColumns:
    """Return the columns that a parser would make of these messages."""
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


def segment_batches(runs: Sequence[Sequence[Message]], base: int = 0, step_us: int = 10) -> list[Records]:
    """Return one batch for each run of messages, as one segment holds them."""
    builder, table = RecordBuilder(), TopicTable()
    made = []
    for number, run in enumerate(runs):
        builder.append(to_columns(run, table), 0, len(run), 1_000 + step_us * number, table)
        made.append(builder.take(base))
        base += len(run)
    return made
