"""Looks at the PUBLISHes that follow in a chunk, so that where their names are found is on its way from memory.

A table of many topics is larger than the processor's caches: each look for a name would wait for memory, one after the
other. Names that come in the order of their ids are found without that, and are not looked for here. Nothing is decided
here, and what is malformed is left to the decoder.
"""

import cython

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, equal, pointer, u32s

_PACKETS = 16  # looked at together
_MANY = 1 << 14  # topics; the slots of fewer stay in the caches


def is_worth_it(table: TopicTable) -> bool:
    """Return whether a table is so large that it pays."""
    return cython.compiled and table.count > _MANY


def look_ahead(table: TopicTable, source: Buffer, position: int, size: int) -> int:
    """Expect the names of the next packets from `position` on, before `size`; return from where on to look again."""
    begin = position
    for packet in range(_PACKETS):
        at = position + 1
        length = 0
        shift = 0
        while at < size and shift < 28:
            byte = source[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte & 0x80 == 0:
                break
        if size - at < 2:
            return size
        name_size = source[at] << 8 | source[at + 1]
        if source[position] >> 4 == 3 and 0 < name_size <= size - at - 2:
            if packet == 0 and is_next(table, source, at + 2, name_size):
                return begin + _PACKETS * (at + length - begin)
            table.expect(source, at + 2, name_size)
        position = at + length
    return position


def is_next(table: TopicTable, source: Buffer, at: int, size: int) -> bool:
    """Return whether a name is the one after the last that was found."""
    topic = table.last + 1
    if topic <= 0 or topic >= table.count or not table.in_order:
        return False
    ends = u32s(table.ends)
    start = ends[topic]
    return ends[topic + 1] - start == size and equal(pointer(table.names), start, source, at, size)
