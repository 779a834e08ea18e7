"""Makes a batch of other batches: finds which rows of one are wanted, and joins rows or whole batches.

`gather` serves two masters. Sealing merges a run of small batches of one segment into a large one: offsets have no gap,
so the result has no offsets column, and it carries the names that its parts carried. A filtered read takes some rows
of some batches: the result has an offsets column and no names, and its topic and publisher ids are the segment's;
packet ids are left out. A record's check covers the same fields wherever the record stands, so checks are copied,
never made anew.
"""

import cython

from everlog.base.errors import StorageError, UsageError

if not cython.compiled:
    from everlog.base.memory import Buffer, blank, check_of, copy, filled, get32, pointer, put32, u32s
    from everlog.base.records import Layout, Records, marked, pad
    from everlog.base.topic_table import TopicTable

_WITH_PROPERTIES = 0x01
_WITH_OFFSETS = 0x02
_WITH_PUBLISHERS = 0x04
_WITH_PACKET_IDS = 0x08
_NO_PUBLISHER = 0xFFFFFFFF
_MAX_BATCH_BYTES = 0x7FFFFFFF
_VERSION = 2
_HINT = "run: everlog verify DATA_DIR"


def select(records: Records, wanted: Buffer, first_row: int = 0, stop_row: int = -1) -> bytearray:
    """Return as u32s the rows from `first_row` to before `stop_row` (the end by default) of wanted topics."""
    stop = records.count if stop_row < 0 or stop_row > records.count else stop_row
    first = max(first_row, 0)
    rows = bytearray(4 * max(stop - first, 0))
    known = len(wanted)
    want = pointer(wanted)
    raw = pointer(records.data)
    at = records.start + records.layout.topics
    out = u32s(rows)
    found = 0
    for i in range(first, stop):
        topic = get32(raw, at + 4 * i)
        if topic >= known:
            raise UsageError(f"topic {topic} is used, and {known} topics were asked about")
        out[found] = i
        found += want[topic] != 0
    return rows[: 4 * found]


def gather(parts: list[tuple[Records, bytearray | None]], verified: bool = False) -> Records:
    """Return one batch of whole batches, or of rows (u32s, rising) of batches, all of one segment and in order.

    Whole batches must follow each other without a gap. Unless the parts are `verified` already, what is taken is
    checked, and StorageError raised if it is not what was written.
    """
    if not parts:
        raise UsageError("there is nothing to gather")
    picks = False
    count = 0
    property_bytes = 0
    payload_bytes = 0
    new = 0
    name_bytes = 0
    with_properties = False
    with_publishers = False
    with_ids = False
    new_publishers = 0
    publisher_bytes = 0
    first_publisher = 0
    first = parts[0][0]
    before = first
    at_least = 0
    for part, rows in parts:
        if part.table is not first.table:
            raise UsageError("batches of several segments can't be gathered into one")
        if part.base_offset < at_least:
            raise UsageError("parts are gathered in the order of their offsets")
        at_least = part.end_offset
        if not verified and not (part.verify_columns() if rows is not None else part.verify()):
            raise StorageError(f"the batch at offset {part.base_offset} is damaged", hint=_HINT)
        if rows is None:
            count += part.count
            property_bytes += part.property_bytes
            payload_bytes += part.payload_bytes
            new += part.new_topics
            name_bytes += part.name_bytes
        else:
            picks = True
            count += len(rows) // 4
            property_bytes += _chosen(part, rows, True)
            payload_bytes += _chosen(part, rows, False)
        with_properties = with_properties or (part.with_properties and property_bytes > 0)
        if part.layout.publishers:
            if not with_publishers:
                with_publishers = True
                first_publisher = part.layout.first_publisher
            new_publishers += part.layout.new_publishers
            publisher_bytes += part.layout.publisher_bytes
        with_ids = with_ids or part.layout.packet_ids > 0
    if not picks:
        for part, _rows in parts[1:]:
            _check_follows(before, part)
            before = part
        _check_publishers(parts)
    if count == 0:
        raise UsageError("there is nothing to gather")
    if picks:
        new = 0
        name_bytes = 0
        new_publishers = 0
        publisher_bytes = 0
        first_publisher = 0
        with_ids = False
    kind = (_WITH_PROPERTIES if with_properties else 0) | (_WITH_OFFSETS if picks else 0)
    kind |= (_WITH_PUBLISHERS if with_publishers else 0) | (_WITH_PACKET_IDS if with_ids else 0)
    plan = Layout(
        count, new, name_bytes, property_bytes, payload_bytes, kind, _VERSION,
        new_publishers, publisher_bytes, first_publisher,
    )  # fmt: skip
    if plan.end > _MAX_BATCH_BYTES:
        raise UsageError(f"a batch of {plan.end} bytes is too large: gather fewer")
    writer = BatchWriter(plan)
    for part, rows in parts:
        if rows is None:
            writer.whole(part, not picks)
        else:
            writer.some(part, rows, not verified)
    return writer.finish(first.table, 0 if picks else first.first_new_topic)


def _check_follows(before: Records, part: Records) -> int:
    """Raise unless a whole batch can directly follow another."""
    if part.with_offsets or before.with_offsets or part.base_offset != before.end_offset:
        raise UsageError(f"offset {part.base_offset} does not follow {before.end_offset - 1}: name the rows to take")
    if part.first_new_topic != before.first_new_topic + before.new_topics:
        raise UsageError(f"the batch at offset {part.base_offset} does not go on with the names of the one before")
    return 0


def _check_publishers(parts: list[tuple[Records, bytearray | None]]) -> int:
    """Raise unless each batch goes on with the publishers' names of those before it."""
    known = -1
    for part, _rows in parts:
        if not part.layout.publishers:
            continue
        if known >= 0 and part.layout.first_publisher != known:
            raise UsageError(f"the batch at offset {part.base_offset} does not go on with the publishers before it")
        known = part.layout.first_publisher + part.layout.new_publishers
    return 0


def _chosen(part: Records, rows: bytearray, of_properties: bool) -> int:
    """Return the bytes of properties or payloads that the chosen rows have; raise if one is not in the batch."""
    if of_properties and not part.with_properties:
        return 0
    raw = pointer(part.data)
    chosen = u32s(rows)
    ends = part.start + (part.layout.property_ends if of_properties else part.layout.payload_ends)
    limit = part.property_bytes if of_properties else part.payload_bytes
    total = 0
    previous = -1
    for k in range(len(rows) // 4):
        row = chosen[k]
        if row <= previous or row >= part.count:
            raise UsageError(f"row {row} after row {previous} of a batch of {part.count}")
        previous = row
        begin = get32(raw, ends + 4 * row)
        end = get32(raw, ends + 4 * row + 4)
        if end < begin or end > limit:
            raise StorageError(f"row {row} at offset {part.offset(row)} lies outside its batch", hint=_HINT)
        total += end - begin
    return total


class BatchWriter:
    """A block that is being filled, and how far each of its columns is."""

    def __init__(self, plan: Layout) -> None:
        self.plan = plan
        self.with_properties = bool(plan.kind & _WITH_PROPERTIES)
        self.with_offsets = bool(plan.kind & _WITH_OFFSETS)
        self.block = blank(plan.end)
        self.mark = bytearray(12)
        self.at = 0
        self.names = 0
        self.name_at = 0
        self.publisher_names = 0
        self.publisher_at = 0
        self.property_at = 0
        self.payload_at = 0
        self.first_time = 0
        self.last_time = 0
        self.base_offset = 0

    def _open(self, part: Records, row: int) -> int:
        """Note where the result begins when this is its first row; refuse what its deltas can't hold."""
        raw = pointer(part.data)
        time_us = part.first_time + get32(raw, part.start + part.layout.times + 4 * row)
        if self.at == 0:
            self.first_time = time_us
            self.base_offset = part.offset(row)
        if time_us < self.first_time or part.last_time - self.first_time > 0xFFFFFFFF:
            raise UsageError("a batch spans at most 71 minutes: gather less")
        if part.end_offset - self.base_offset > 0xFFFFFFFF:
            raise UsageError("a batch spans at most 2**32 offsets: gather less")
        return 0

    def whole(self, part: Records, with_names: bool) -> int:
        """Add every row of a batch, column by column."""
        self._open(part, 0)
        raw = pointer(part.data)
        out = pointer(self.block)
        plan = self.plan
        theirs = part.layout
        base = part.start
        count = part.count
        at = self.at
        copy(out, plan.topics + 4 * at, raw, base + theirs.topics, 4 * count)
        copy(out, plan.flags + at, raw, base + theirs.flags, count)
        copy(out, plan.checks + 4 * at, raw, base + theirs.checks, 4 * count)
        self._shift(part, plan.times, theirs.times, part.first_time - self.first_time, count)
        self._shift(part, plan.payload_ends, theirs.payload_ends, self.payload_at, count + 1)
        if self.with_properties and part.with_properties:
            self._shift(part, plan.property_ends, theirs.property_ends, self.property_at, count + 1)
        elif self.with_properties:
            for i in range(at, at + count + 1):
                put32(out, plan.property_ends + 4 * i, self.property_at)
        if self.with_offsets:
            for i in range(count):
                put32(out, plan.offsets + 4 * (at + i), part.offset(i) - self.base_offset)
        if plan.publishers and theirs.publishers:
            copy(out, plan.publishers + 4 * at, raw, base + theirs.publishers, 4 * count)
        elif plan.publishers:
            for i in range(at, at + count):
                put32(out, plan.publishers + 4 * i, _NO_PUBLISHER)
        if plan.packet_ids and theirs.packet_ids:
            copy(out, plan.packet_ids + 2 * at, raw, base + theirs.packet_ids, 2 * count)
        elif plan.packet_ids:
            for i in range(plan.packet_ids + 2 * at, plan.packet_ids + 2 * (at + count)):
                out[i] = 0
        copy(out, plan.properties + self.property_at, raw, base + theirs.properties, part.property_bytes)
        copy(out, plan.payloads + self.payload_at, raw, base + theirs.payloads, part.payload_bytes)
        if with_names and part.new_topics:
            for i in range(part.new_topics + 1):
                end = get32(raw, base + theirs.name_ends + 4 * i) + self.name_at
                put32(out, plan.name_ends + 4 * (self.names + i), end)
            copy(out, plan.names + self.name_at, raw, base + theirs.names, part.name_bytes)
            self.names += part.new_topics
            self.name_at += part.name_bytes
        if with_names and theirs.publishers and theirs.new_publishers:
            for i in range(theirs.new_publishers + 1):
                end = get32(raw, base + theirs.publisher_ends() + 4 * i) + self.publisher_at
                put32(out, plan.publisher_ends() + 4 * (self.publisher_names + i), end)
            names = plan.publisher_names() + self.publisher_at
            copy(out, names, raw, base + theirs.publisher_names(), theirs.publisher_bytes)
            self.publisher_names += theirs.new_publishers
            self.publisher_at += theirs.publisher_bytes
        self.at += count
        self.property_at += part.property_bytes
        self.payload_at += part.payload_bytes
        self.last_time = part.last_time
        return 0

    def _shift(self, part: Records, to: int, source: int, more: int, count: int) -> int:
        """Copy a column of u32s with a number added to each."""
        raw = pointer(part.data)
        out = pointer(self.block)
        start = part.start + source
        target = to + 4 * self.at
        for i in range(count):
            put32(out, target + 4 * i, get32(raw, start + 4 * i) + more)
        return 0

    def some(self, part: Records, rows: bytearray, check: bool) -> int:
        """Add the chosen rows, which `_chosen` found to lie inside the batch."""
        chosen = u32s(rows)
        wanted = len(rows) // 4
        if wanted == 0:
            return 0
        self._open(part, chosen[0])
        raw = pointer(part.data)
        out = pointer(self.block)
        mark = pointer(self.mark)
        plan = self.plan
        theirs = part.layout
        base = part.start
        ahead = part.first_time - self.first_time  # may be negative when the batch's first rows are left out
        for k in range(wanted):
            row = chosen[k]
            at = self.at
            begin = get32(raw, base + theirs.payload_ends + 4 * row)
            size = get32(raw, base + theirs.payload_ends + 4 * row + 4) - begin
            begin += base + theirs.payloads
            copy(out, plan.payloads + self.payload_at, raw, begin, size)
            property_begin = 0
            property_size = 0
            if part.with_properties:
                property_begin = get32(raw, base + theirs.property_ends + 4 * row)
                property_size = get32(raw, base + theirs.property_ends + 4 * row + 4) - property_begin
                property_begin += base + theirs.properties
                copy(out, plan.properties + self.property_at, raw, property_begin, property_size)
            time = get32(raw, base + theirs.times + 4 * row)
            topic = get32(raw, base + theirs.topics + 4 * row)
            flag = raw[base + theirs.flags + row]
            expected = get32(raw, base + theirs.checks + 4 * row)
            if check:
                found = marked(mark, part.first_time + time, flag)
                found = check_of(raw, property_begin, property_size, found)
                if check_of(raw, begin, size, found) != expected:
                    raise StorageError(f"the record at offset {part.offset(row)} is damaged", hint=_HINT)
            put32(out, plan.times + 4 * at, time + ahead)
            put32(out, plan.topics + 4 * at, topic)
            out[plan.flags + at] = flag
            put32(out, plan.checks + 4 * at, expected)
            if plan.publishers:
                put32(out, plan.publishers + 4 * at, part.publisher(row))
            put32(out, plan.offsets + 4 * at, part.offset(row) - self.base_offset)
            put32(out, plan.payload_ends + 4 * at, self.payload_at)
            self.payload_at += size
            if self.with_properties:
                put32(out, plan.property_ends + 4 * at, self.property_at)
                self.property_at += property_size
            self.last_time = part.first_time + time
            self.at += 1
        put32(out, plan.payload_ends + 4 * self.at, self.payload_at)
        if self.with_properties:
            put32(out, plan.property_ends + 4 * self.at, self.property_at)
        return 0

    def finish(self, table: TopicTable, first_new_topic: int) -> Records:
        """Write padding, header and check; the block becomes the batch."""
        plan = self.plan
        out = pointer(self.block)
        pad(out, plan.times + 4 * plan.count)
        pad(out, plan.topics + 4 * plan.count)
        pad(out, plan.flags + plan.count)
        if self.with_properties:
            pad(out, plan.property_ends + 4 * (plan.count + 1))
        pad(out, plan.payload_ends + 4 * (plan.count + 1))
        pad(out, plan.checks + 4 * plan.count)
        if self.with_offsets:
            pad(out, plan.offsets + 4 * plan.count)
        if plan.packet_ids:
            pad(out, plan.packet_ids + 2 * plan.count)
        if plan.publishers:
            pad(out, plan.publishers + 4 * plan.count)
            if plan.new_publishers:
                pad(out, plan.publisher_ends() + 4 * (plan.new_publishers + 1))
            pad(out, plan.publisher_names() + plan.publisher_bytes)
        if plan.new:
            pad(out, plan.name_ends + 4 * (plan.new + 1))
        pad(out, plan.names + plan.name_bytes)
        pad(out, plan.properties + plan.property_bytes)
        pad(out, plan.payloads + plan.payload_bytes)
        plan.seal(out, self.base_offset, self.first_time, self.last_time, first_new_topic)
        return Records(filled(self.block), 0, table)
