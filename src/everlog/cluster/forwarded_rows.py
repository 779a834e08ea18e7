"""Messages of a batch as columns again, so that the owner of their shard can append them like those of its clients."""

from typing import Any

import cython

from everlog.base import NO_PUBLISHER, PublisherColumn, PublisherName, StorageError

if not cython.compiled:
    from everlog.base import MessageColumns, Records, TopicTable
    from everlog.base.memory import Buffer, copy, get32, pointer, put32, u16s, u32s

_NOBODY = NO_PUBLISHER


def read_batch(body: bytes | bytearray, start: int = 0) -> Records:
    """Return a batch that names all of its topics and publishers, its columns checked."""
    table = TopicTable(0, 1 << 30, 1 << 31)
    records = Records(body, start, table)
    if not records.verify_columns() or records.first_new_topic:
        raise StorageError("a batch of another broker can't be read")
    plan = records.layout
    _learn(table, records, records.new_topics, plan.name_ends, plan.names, records.name_bytes)
    if plan.publishers:
        table.publishers = TopicTable(0, 1 << 30, 1 << 31)
        ends = plan.publisher_ends()
        _learn(table.publishers, records, plan.new_publishers, ends, plan.publisher_names(), plan.publisher_bytes)
    return records


def _learn(table: TopicTable, records: Records, new: int, ends: int, names: int, size: int) -> int:
    """Add the names to an empty table that a batch has from a place on, with their ends at another."""
    raw = pointer(records.data)
    ends += records.start
    before = 0
    for i in range(new):
        end = get32(raw, ends + 4 * i + 4)
        if end < before or end > size:
            raise StorageError("a batch of another broker has names outside of it")
        table.append(raw, records.start + names + before, end - before)
        before = end
    return 0


def columns_of(records: Records) -> MessageColumns:
    """Return the messages of a batch; each has its properties before its payload, as in a packet.

    Payloads without properties stay where they are in the batch.
    """
    columns = MessageColumns(records.count)
    plan = records.layout
    raw = pointer(records.data)
    if records.with_properties:
        source = bytearray(records.property_bytes + records.payload_bytes)
        columns.source = source
        _fill(records, plan, raw, columns, pointer(source), 0)
    else:
        columns.source = records.data
        _fill(records, plan, raw, columns, raw, records.start + plan.payloads)
    return columns


def _fill(records: Records, plan: Any, raw: Buffer, columns: MessageColumns, out: Any, first: int) -> int:
    """Fill columns with messages that stand in a source from `first` on; it is filled too if they have properties."""
    start = records.start
    topics = u32s(columns.topics)
    flags = pointer(columns.flags)
    ids = u16s(columns.packet_ids)
    property_starts = u32s(columns.property_starts)
    payload_starts = u32s(columns.payload_starts)
    payload_ends = u32s(columns.payload_ends)
    with_properties = records.with_properties
    property_at = 0
    payload_at = 0
    at = first
    for i in range(records.count):
        topics[i] = get32(raw, start + plan.topics + 4 * i)
        flags[i] = raw[start + plan.flags + i]
        property_starts[i] = at
        if with_properties:
            end = get32(raw, start + plan.property_ends + 4 * i + 4)
            if end < property_at or end > records.property_bytes:
                raise StorageError("a batch of another broker has properties outside of it")
            copy(out, at, raw, start + plan.properties + property_at, end - property_at)
            at += end - property_at
            property_at = end
        payload_starts[i] = at
        end = get32(raw, start + plan.payload_ends + 4 * i + 4)
        if end < payload_at or end > records.payload_bytes:
            raise StorageError("a batch of another broker has payloads outside of it")
        if with_properties:
            copy(out, at, raw, start + plan.payloads + payload_at, end - payload_at)
        at += end - payload_at
        payload_at = end
        payload_ends[i] = at
        if plan.packet_ids:
            ids[i] = raw[start + plan.packet_ids + 2 * i] | raw[start + plan.packet_ids + 2 * i + 1] << 8
    return 0


def publishers_of(records: Records) -> PublisherName | PublisherColumn | None:
    """Return who has published all messages of a batch, or each of them; None if it does not say."""
    names = records.table.publishers
    if not records.layout.publishers or names is None:
        return None
    known = names.count
    at = records.start + records.layout.publishers
    if known == 1 and _are_first(pointer(records.data), at, records.count):
        return PublisherName(names.name(0))
    places = bytearray(4 * records.count)
    _place(pointer(records.data), at, records.count, known, pointer(places))
    return PublisherColumn([*(PublisherName(names.name(number)) for number in range(known)), None], places)


def _are_first(raw: Buffer, at: int, count: int) -> bool:
    """Return whether all numbers of a column are 0."""
    for i in range(count):  # noqa: SIM110
        if get32(raw, at + 4 * i):
            return False
    return True


def _place(raw: Buffer, at: int, count: int, known: int, out: bytearray) -> int:
    for i in range(count):
        number = get32(raw, at + 4 * i)
        if number == _NOBODY:
            number = known
        if number > known:
            raise StorageError("a batch of another broker names a publisher that it does not have")
        put32(out, 4 * i, number)
    return 0
