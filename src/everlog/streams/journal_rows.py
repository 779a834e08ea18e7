"""Records of a state shard as columns of its log: the stream's name is the topic, the encoded effect the payload."""

from collections.abc import Sequence

import cython

if not cython.compiled:
    from everlog.base import MessageColumns, TopicTable
    from everlog.base.memory import u32s


def fill_columns(
    columns: "MessageColumns", records: Sequence[tuple[str, bytes]], table: "TopicTable", numbers: dict[str, int]
) -> int:
    """Fill columns with records of (stream name, effect); `numbers` remembers the names that the table has."""
    count = len(records)
    while columns.capacity < count:
        columns.grow()
    columns.source = b"".join([record[1] for record in records])
    topics = u32s(columns.topics)
    sections = u32s(columns.property_starts)
    starts = u32s(columns.payload_starts)
    ends = u32s(columns.payload_ends)
    columns.flags[:count] = bytes(count)
    end = 0
    for row in range(count):
        record = records[row]
        number = numbers.get(record[0])
        if number is None:
            number = numbers[record[0]] = table.intern(record[0].encode())
        topics[row] = number
        sections[row] = starts[row] = end
        end += len(record[1])
        ends[row] = end
    return 0
