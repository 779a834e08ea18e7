"""Makes a batch of columns that were kept elsewhere, such as in a table: the records are those that the log had.

A record's check covers time, flags, properties and payload, so the checks made here are those that the log had.
"""

import cython

from everlog.base.errors import UsageError

if not cython.compiled:
    from everlog.base.memory import Buffer, blank, check_of, copy, filled, get32, pointer, put32, u32s
    from everlog.base.records import WITH_OFFSETS, WITH_PROPERTIES, Layout, Records, marked, pad
    from everlog.base.topic_table import TopicTable

_MAX_BATCH_BYTES = 0x7FFFFFFF


def assemble(
    base_offset: int,
    first_time: int,
    offsets: Buffer | None,
    times: Buffer,
    topics: Buffer,
    flags: Buffer,
    property_ends: Buffer | None,
    properties: Buffer,
    payload_ends: Buffer,
    payloads: Buffer,
    table: TopicTable,
) -> Records:
    """Return a batch of columns as `docs/formats/batch.md` has them; topic ids are those of `table`.

    Without `offsets` they have no gap; without `property_ends` no record has properties.
    """
    count = len(flags)
    with_offsets = offsets is not None
    with_properties = property_ends is not None
    if count == 0 or len(times) != 4 * count or len(topics) != 4 * count:
        raise UsageError("columns of a batch have one value for each of its records, and there is one at least")
    _check_ends(payload_ends, count, len(payloads))
    if property_ends is not None:
        _check_ends(property_ends, count, len(properties))
    elif len(properties):
        raise UsageError("there are properties, and nothing says whose they are")
    _check_rows(topics, times, offsets, count, table.count)
    kind = (WITH_PROPERTIES if with_properties else 0) | (WITH_OFFSETS if with_offsets else 0)
    plan = Layout(count, 0, 0, len(properties), len(payloads), kind)
    if plan.end > _MAX_BATCH_BYTES:
        raise UsageError(f"a batch of {plan.end} bytes is too large: assemble fewer")
    block = blank(plan.end)
    out = pointer(block)
    _column(out, plan.times, pointer(times), 4 * count)
    _column(out, plan.topics, pointer(topics), 4 * count)
    _column(out, plan.flags, pointer(flags), count)
    if property_ends is not None:
        _column(out, plan.property_ends, pointer(property_ends), 4 * (count + 1))
    _column(out, plan.payload_ends, pointer(payload_ends), 4 * (count + 1))
    if offsets is not None:
        _column(out, plan.offsets, pointer(offsets), 4 * count)
    _column(out, plan.properties, pointer(properties), len(properties))
    _column(out, plan.payloads, pointer(payloads), len(payloads))
    _write_checks(out, plan, first_time, count, with_properties)
    plan.seal(out, base_offset, first_time, first_time + u32s(times)[count - 1], 0)
    return Records(filled(block), 0, table)


def _check_ends(ends: Buffer, count: int, limit: int) -> int:
    """Raise unless the ends rise from 0 to the last byte."""
    if len(ends) != 4 * (count + 1):
        raise UsageError(f"{len(ends) // 4} ends for {count} records")
    numbers = u32s(ends)
    before = 0
    if numbers[0] != 0 or numbers[count] != limit:
        raise UsageError("the ends of a column begin at 0 and end with its bytes")
    for i in range(count):
        if numbers[i + 1] < before:
            raise UsageError(f"record {i} ends before it begins")
        before = numbers[i + 1]
    return 0


def _check_rows(topics: Buffer, times: Buffer, offsets: Buffer | None, count: int, known: int) -> int:
    """Raise unless topics are known, times never go back and offsets rise."""
    ids = u32s(topics)
    deltas = u32s(times)
    if deltas[0] != 0:
        raise UsageError("the first record's time is the batch's")
    for i in range(count):
        if ids[i] >= known:
            raise UsageError(f"record {i} has topic id {ids[i]}, and there are {known} topics")
        if i > 0 and deltas[i] < deltas[i - 1]:
            raise UsageError(f"record {i} is older than the one before")
    if offsets is None:
        return 0
    if len(offsets) != 4 * count:
        raise UsageError(f"{len(offsets) // 4} offsets for {count} records")
    places = u32s(offsets)
    if places[0] != 0:
        raise UsageError("the first record's offset is the batch's")
    for i in range(1, count):
        if places[i] <= places[i - 1]:
            raise UsageError(f"the offset of record {i} does not follow the one before")
    return 0


def _column(out: bytearray, at: int, source: Buffer, size: int) -> int:
    """Write a column and zero its padding."""
    copy(out, at, source, 0, size)
    return pad(out, at + size)


def _write_checks(out: bytearray, plan: Layout, first_time: int, count: int, with_properties: bool) -> int:
    """Write each record's own check, of what already stands in the block."""
    holder = bytearray(12)
    mark = pointer(holder)
    before = 0
    property_before = 0
    for i in range(count):
        check = marked(mark, first_time + get32(out, plan.times + 4 * i), out[plan.flags + i])
        if with_properties:
            end = get32(out, plan.property_ends + 4 * i + 4)
            check = check_of(out, plan.properties + property_before, end - property_before, check)
            property_before = end
        end = get32(out, plan.payload_ends + 4 * i + 4)
        put32(out, plan.checks + 4 * i, check_of(out, plan.payloads + before, end - before, check))
        before = end
    return pad(out, plan.checks + 4 * count)
