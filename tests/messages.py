"""Messages as the columns and batches that a broker would make of them."""

import struct
from collections.abc import Sequence

from everlog.base import MessageColumns, PublisherName, RecordBuilder, Records, TopicTable

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


def segment_batches(
    runs: Sequence[Sequence[Message]], base: int = 0, step_us: int = 10, named: bool = False
) -> list[Records]:
    """Return one batch for each run of messages, as one segment holds them; if `named`, from run 1 on by clients."""
    builder, table = RecordBuilder(), TopicTable()
    made = []
    for number, run in enumerate(runs):
        publisher = PublisherName(b"client %d" % number, keeps_ids=True) if named and number else None
        columns = to_columns(run, table)
        columns.packet_ids[:] = b"\xff" * len(columns.packet_ids)
        builder.append(columns, 0, len(run), 1_000 + step_us * number, table, publisher=publisher)
        made.append(builder.take(base))
        base += len(run)
    return made
