"""The names that a batch uses and does not bring: what a row has beside it, so that it can be read alone.

`docs/formats/postgres.md` has the layout: topics, then publishers, each a count and then (id, size, name).
"""

import struct
from collections.abc import Callable, Sequence

import cython

from everlog.base import Records, StorageError, lost_publisher

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, copy, get32, pointer, put32, u32s

_ENTRY = struct.Struct("<II")
_COUNT = struct.Struct("<I")


def pack_names(records: Records) -> bytes:
    """Return the names of the topics and publishers that a batch uses and that earlier ones of its segment brought."""
    plan = records.layout
    packed = _pack(records.data, records.start + plan.topics, records.count, records.first_new_topic, records.table)
    if not plan.publishers or records.table.publishers is None:
        return bytes(packed + _COUNT.pack(0))
    at = records.start + plan.publishers
    return bytes(packed + _pack(records.data, at, records.count, plan.first_publisher, records.table.publishers))


def _pack(data: Buffer, at: int, count: int, known: int, table: TopicTable) -> bytearray:
    """Return the names of those ids below `known` that a column has."""
    marks = bytearray(known)
    mark = pointer(marks)
    raw = pointer(data)
    ends = u32s(table.ends)
    found = 0
    size = 4
    for i in range(count):
        number = get32(raw, at + 4 * i)
        if number < known and not mark[number]:
            mark[number] = 1
            found += 1
            size += 8 + ends[number + 1] - ends[number]
    packed = bytearray(size)
    out = pointer(packed)
    put32(out, 0, found)
    place = 4
    if found:
        names = pointer(table.names)
        for number in range(known):
            if mark[number]:
                length = ends[number + 1] - ends[number]
                put32(out, place, number)
                put32(out, place + 4, length)
                copy(out, place + 8, names, ends[number], length)
                place += 8 + length
    return packed


def read_alone(body: bytes, names: bytes) -> Records:
    """Return the batch of a row, checked, with a table that has all the names it uses."""
    table = TopicTable(0, 1 << 30, 1 << 31)
    records = Records(body, 0, table)
    if not records.verify():
        raise StorageError(f"the row at offset {records.base_offset} is damaged", hint="restore it from a backup")
    topics, at = _unpack(names, 0)
    publishers, _ = _unpack(names, at)
    plan = records.layout
    _fill(table, topics, records.first_new_topic, records.new_names(), lambda number: b"\0lost/%d" % number)
    if plan.publishers:
        table.publishers = TopicTable(0, 1 << 30, 1 << 31)
        _fill(table.publishers, publishers, plan.first_publisher, records.new_publishers(), lost_publisher)
    return records


def read_together(rows: Sequence[tuple[bytes, bytes]]) -> list[Records]:
    """Return the batches of rows of one segment that follow each other, checked, with one table for all of them."""
    table = TopicTable(0, 1 << 30, 1 << 31)
    batches = [Records(body, 0, table) for body, _ in rows]
    topics: dict[int, bytes] = {}
    publishers: dict[int, bytes] = {}
    with_publishers = False
    for records, (_, names) in zip(batches, rows, strict=True):
        if not records.verify():
            raise StorageError(f"the row at offset {records.base_offset} is damaged", hint="restore it from a backup")
        known, at = _unpack(names, 0)
        topics |= known
        topics |= dict(enumerate(records.new_names(), records.first_new_topic))
        publishers |= _unpack(names, at)[0]
        if records.layout.publishers:
            with_publishers = True
            publishers |= dict(enumerate(records.new_publishers(), records.layout.first_publisher))
    _fill(table, topics, max(topics, default=-1) + 1, [], lambda number: b"\0lost/%d" % number)
    if with_publishers:
        table.publishers = TopicTable(0, 1 << 30, 1 << 31)
        _fill(table.publishers, publishers, max(publishers, default=-1) + 1, [], lost_publisher)
    return batches


def _unpack(names: bytes, at: int) -> tuple[dict[int, bytes], int]:
    (count,) = _COUNT.unpack_from(names, at)
    at += _COUNT.size
    found = {}
    for _ in range(count):
        number, size = _ENTRY.unpack_from(names, at)
        at += _ENTRY.size
        found[number] = names[at : at + size]
        at += size
    return found, at


def _fill(
    table: TopicTable, known: dict[int, bytes], first_new: int, new: list[bytes], unused: Callable[[int], bytes]
) -> None:
    """Give a table the names of a batch by their ids; ids that the batch does not use get names that nobody has."""
    for number in range(first_new):
        name = known.get(number)
        table.intern(unused(number) if name is None else name)
    for name in new:
        table.intern(name)
