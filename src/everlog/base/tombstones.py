"""Empties some records of a batch, by topic or by flag: offsets and times stay; all else of them goes.

An emptied record has the topic `GONE`, which no filter matches, only the flag DROPPED, and no publisher. Others keep
their checks. Publishers get new ids, and those that are left with nothing are named no more.
"""

import cython

from everlog.base.errors import UsageError
from everlog.base.records import VERSION

if not cython.compiled:
    from everlog.base.batch_merge import BatchWriter
    from everlog.base.columns import DROPPED
    from everlog.base.memory import copy, get32, pointer, put32, u32s
    from everlog.base.records import (
        NO_PUBLISHER,
        WITH_PACKET_IDS,
        WITH_PROPERTIES,
        WITH_PUBLISHERS,
        Layout,
        Records,
        marked,
    )
    from everlog.base.topic_table import TopicTable

GONE = b"$\0gone"  # MQTT forbids U+0000, and no wildcard stands for a level that begins with $


def is_emptied(records: Records, row: int) -> bool:
    """Return whether nothing but the offset and time is left of a record."""
    if not 0 <= row < records.count:
        raise IndexError(f"no record {row} in a batch of {records.count}")
    return bool(pointer(records.data)[records.start + records.layout.flags + row] & DROPPED)


def bytes_of_topics(records: Records, chosen: bytearray) -> int:
    """Return how many bytes of properties and payloads the chosen topics have in a verified batch."""
    known = len(chosen)
    choice = pointer(chosen)
    raw = pointer(records.data)
    topics = records.start + records.layout.topics
    payloads = records.start + records.layout.payload_ends
    properties = records.start + records.layout.property_ends
    total = 0
    for i in range(records.count):
        topic = get32(raw, topics + 4 * i)
        if topic >= known:
            raise UsageError(f"topic {topic} is used, and {known} topics were asked about")
        if choice[topic]:
            total += get32(raw, payloads + 4 * i + 4) - get32(raw, payloads + 4 * i)
            if records.with_properties:
                total += get32(raw, properties + 4 * i + 4) - get32(raw, properties + 4 * i)
    return total


def empty_topics(
    records: Records, ids: bytearray, gone: int, names: list[bytes], table: TopicTable, marks: int = 0
) -> Records:
    """Return a verified batch with other topic ids: `ids` has a new id for each old one, `gone` to empty it.

    Records with one of the flags `marks` are emptied too. `names` are those that are new in this batch, the
    last ones of `table` so far, whose ids the new ones are.
    """
    known = len(ids) // 4
    to = u32s(ids)
    raw = pointer(records.data)
    theirs = records.layout
    base = records.start
    count = records.count
    property_bytes = 0
    payload_bytes = 0
    for i in range(count):
        topic = get32(raw, base + theirs.topics + 4 * i)
        if topic >= known or to[topic] >= table.count:
            raise UsageError(f"there is no new id for topic {topic}")
        if to[topic] != gone and not (raw[base + theirs.flags + i] & marks):
            payload_bytes += get32(raw, base + theirs.payload_ends + 4 * i + 4)
            payload_bytes -= get32(raw, base + theirs.payload_ends + 4 * i)
            if records.with_properties:
                property_bytes += get32(raw, base + theirs.property_ends + 4 * i + 4)
                property_bytes -= get32(raw, base + theirs.property_ends + 4 * i)
    new = len(names)
    name_bytes = sum(map(len, names))
    kind = WITH_PROPERTIES if property_bytes else 0
    who = bytearray()
    first_publisher = 0
    brought: list[bytes] = []
    if theirs.publishers:
        kind |= WITH_PUBLISHERS
        if table.publishers is None:
            table.publishers = TopicTable(0, 1 << 30, 1 << 31)
        first_publisher = table.publishers.count
        who = _publishers(records, ids, gone, marks, table.publishers)
        brought = table.publishers.all_names(first_publisher)
    if theirs.packet_ids:
        kind |= WITH_PACKET_IDS
    writer = BatchWriter(
        Layout(
            count, new, name_bytes, property_bytes, payload_bytes, kind, VERSION,
            len(brought), sum(map(len, brought)), first_publisher,
        )
    )  # fmt: skip
    writer.base_offset = records.base_offset
    writer.first_time = records.first_time
    writer.last_time = records.last_time
    _fill(writer, records, ids, gone, marks)
    _name(writer, writer.plan.name_ends, writer.plan.names, names)
    if theirs.publishers:
        copy(pointer(writer.block), writer.plan.publishers, pointer(who), 0, 4 * count)
        _name(writer, writer.plan.publisher_ends(), writer.plan.publisher_names(), brought)
    return writer.finish(table, table.count - new)


def _publishers(records: Records, ids: bytearray, gone: int, marks: int, publishers: TopicTable) -> bytearray:
    """Return the column of publishers with the ids of another table, which gets the names of those that stay."""
    to = u32s(ids)
    raw = pointer(records.data)
    base = records.start
    theirs = records.layout
    old = records.table.publishers
    column = bytearray(4 * records.count)
    out = u32s(column)
    last = NO_PUBLISHER
    new = NO_PUBLISHER
    for i in range(records.count):
        out[i] = NO_PUBLISHER
        topic = to[get32(raw, base + theirs.topics + 4 * i)]
        if topic == gone or (raw[base + theirs.flags + i] & marks):
            continue
        who = get32(raw, base + theirs.publishers + 4 * i)
        if who != last:
            last = who
            new = NO_PUBLISHER
            if who != NO_PUBLISHER and old is not None and who < old.count:
                new = publishers.intern(old.name(who))
        out[i] = new
    return column


def _fill(writer: BatchWriter, records: Records, ids: bytearray, gone: int, marks: int) -> int:
    """Write every row."""
    to = u32s(ids)
    raw = pointer(records.data)
    out = pointer(writer.block)
    mark = pointer(writer.mark)
    plan = writer.plan
    theirs = records.layout
    base = records.start
    payload_at = 0
    property_at = 0
    copy(out, plan.times, raw, base + theirs.times, 4 * records.count)
    for i in range(records.count):
        topic = to[get32(raw, base + theirs.topics + 4 * i)]
        if raw[base + theirs.flags + i] & marks:
            topic = gone
        put32(out, plan.topics + 4 * i, topic)
        put32(out, plan.payload_ends + 4 * i, payload_at)
        if plan.packet_ids:
            kept = topic != gone
            out[plan.packet_ids + 2 * i] = raw[base + theirs.packet_ids + 2 * i] if kept else 0
            out[plan.packet_ids + 2 * i + 1] = raw[base + theirs.packet_ids + 2 * i + 1] if kept else 0
        if writer.with_properties:
            put32(out, plan.property_ends + 4 * i, property_at)
        if topic == gone:
            out[plan.flags + i] = DROPPED
            time_us = records.first_time + get32(raw, base + theirs.times + 4 * i)
            put32(out, plan.checks + 4 * i, marked(mark, time_us, DROPPED))
            continue
        out[plan.flags + i] = raw[base + theirs.flags + i]
        put32(out, plan.checks + 4 * i, get32(raw, base + theirs.checks + 4 * i))
        begin = get32(raw, base + theirs.payload_ends + 4 * i)
        size = get32(raw, base + theirs.payload_ends + 4 * i + 4) - begin
        copy(out, plan.payloads + payload_at, raw, base + theirs.payloads + begin, size)
        payload_at += size
        if writer.with_properties:
            begin = get32(raw, base + theirs.property_ends + 4 * i)
            size = get32(raw, base + theirs.property_ends + 4 * i + 4) - begin
            copy(out, plan.properties + property_at, raw, base + theirs.properties + begin, size)
            property_at += size
    put32(out, plan.payload_ends + 4 * records.count, payload_at)
    if writer.with_properties:
        put32(out, plan.property_ends + 4 * records.count, property_at)
    return 0


def _name(writer: BatchWriter, ends_at: int, names_at: int, names: list[bytes]) -> int:
    """Write names that are new in the batch: where each ends, and their bytes."""
    out = pointer(writer.block)
    at = 0
    for k in range(len(names)):
        name = names[k]
        put32(out, ends_at + 4 * k, at)
        copy(out, names_at + at, pointer(name), 0, len(name))
        at += len(name)
    if len(names):
        put32(out, ends_at + 4 * len(names), at)
    return 0
