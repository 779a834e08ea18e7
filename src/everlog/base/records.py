"""A batch of messages as columns in one block of bytes: the same in memory, on disk and in the bucket.

`RecordBuilder` gathers messages of many connections and seals them into a batch; `Records` reads one. The layout is
`docs/formats/batch.md`. Every byte is covered by a check: the header's covers the header, the columns and the topic
names; each record's own covers its time, flags, properties and payload, so a reader verifies only what it takes.
"""

from typing import Any

import cython

from everlog.base.errors import StorageError, UsageError

if not cython.compiled:
    from everlog.base.columns import HAS_ALIAS, MessageColumns
    from everlog.base.interning import TopicTable
    from everlog.base.memory import (
        Buffer,
        blank,
        check_of,
        copy,
        filled,
        get32,
        get64,
        pointer,
        put32,
        put64,
        u32s,
    )

MAGIC = 0x424C5645  # "EVLB"
VERSION = 1
HEADER_BYTES = 64
MAX_BATCH_BYTES = 0x7FFFFFFF

# Bits of the header's flags.
WITH_PROPERTIES = 0x01
WITH_OFFSETS = 0x02  # the records are a selection: a column says how far each is from the base offset

_KEPT_BYTES = 4 << 20
_MARK_BYTES = 12
_NEWER = "read it with a newer Everlog"


def padded(size: int) -> int:
    """A size rounded up to whole 8-byte words: every column starts on one."""
    return (size + 7) & ~7


class RecordBuilder:
    """Gathers messages into columns until they are taken as one batch. Not for use by two threads at once.

    Topic ids of the batch are the segment's own: `table` holds its names, and a batch carries the names that are new
    in it. `start_segment` begins with no names.
    """

    def __init__(self) -> None:
        self.count = 0
        self.capacity = 0
        self.property_bytes = 0
        self.payload_bytes = 0
        self.first_time = 0
        self.last_time = 0
        self.times = bytearray()
        self.topics = bytearray()
        self.flags = bytearray()
        self.property_ends = bytearray(4)
        self.payload_ends = bytearray(4)
        self.checks = bytearray()
        self.properties = bytearray()
        self.payloads = bytearray()
        self.mark = bytearray(_MARK_BYTES)
        self.start_segment()

    def start_segment(self) -> None:
        """The next batch is the first of a segment, which must be able to stand alone."""
        if self.count:
            raise UsageError("a segment can only start between batches: take the open batch first")
        self.table = TopicTable(0, 1 << 30, 1 << 31)
        self.named = 0
        self.source_table: Any = None
        self.source_generation = -1
        self.ids = bytearray()

    def continue_segment(self, names: list[bytes], last_time: int) -> None:
        """The next batch follows batches that already named these topics and end at this time."""
        self.start_segment()
        for name in names:
            self.table.intern(name)
        self.named = self.table.count
        self.last_time = last_time

    def _clear(self) -> int:
        """Empty, with the columns kept for the next batch unless a large one left them large."""
        self.count = 0
        self.property_bytes = 0
        self.payload_bytes = 0
        if len(self.properties) > _KEPT_BYTES:
            self.properties = bytearray()
        if len(self.payloads) > _KEPT_BYTES:
            self.payloads = bytearray()
        return 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """How many bytes the batch will have, but for names and padding."""
        return HEADER_BYTES + 21 * self.count + self.property_bytes + self.payload_bytes

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        wanted: int = 0,
    ) -> int:
        """Take in messages `start` to `stop` that arrived at `now_us`; how many.

        `table` is what the columns' topic ids refer to. With `routes` (a byte for each topic id and QoS, at
        4 * id + QoS) only the messages whose byte is `wanted` are taken.
        """
        if columns.source is None or not 0 <= start <= stop <= columns.capacity:
            raise UsageError(f"no messages {start} to {stop} in columns of {columns.capacity}")
        count = stop - start
        if count == 0:
            return 0
        if now_us < self.last_time:
            now_us = self.last_time  # times never go back within a shard, so a time finds one position
        if self.count == 0:
            self.first_time = now_us
        elif now_us - self.first_time > 0xFFFFFFFF:
            raise UsageError("a batch spans at most 71 minutes: take it before appending more")
        self.last_time = now_us
        self._bind(table)
        known = table.count
        if routes is not None and len(routes) < 4 * known:
            raise UsageError(f"routes for {len(routes) // 4} of {known} topics")
        source = pointer(columns.source)
        in_topics = u32s(columns.topics)
        in_flags = pointer(columns.flags)
        in_properties = u32s(columns.property_starts)
        in_payloads = u32s(columns.payload_starts)
        in_ends = u32s(columns.payload_ends)
        previous = 0
        property_bytes = 0
        payload_bytes = 0
        for i in range(start, stop):
            begin, middle, end = in_properties[i], in_payloads[i], in_ends[i]
            if begin < previous or middle < begin or end < middle or in_topics[i] >= known:
                raise UsageError(f"message {i} of the columns has no valid topic and ranges")
            property_bytes += middle - begin
            payload_bytes += end - middle
            previous = end
        if previous > len(columns.source):
            raise UsageError(f"the columns end at {previous}, behind their source")
        self._reserve(count, property_bytes, payload_bytes)
        times = u32s(self.times)
        topics = u32s(self.topics)
        flags = pointer(self.flags)
        property_ends = u32s(self.property_ends)
        payload_ends = u32s(self.payload_ends)
        checks = u32s(self.checks)
        properties = pointer(self.properties)
        payloads = pointer(self.payloads)
        ids = u32s(self.ids)
        route = pointer(routes if routes is not None else b"")
        mark = pointer(self.mark)
        filtered = routes is not None
        delta = now_us - self.first_time
        at = self.count
        property_at = self.property_bytes
        payload_at = self.payload_bytes
        for i in range(start, stop):
            topic = in_topics[i]
            flag = in_flags[i]
            if flag & 0x80 or (filtered and route[4 * topic + (flag >> 1 & 3)] != wanted):  # 0x80: dropped
                continue
            if ids[topic] == 0xFFFFFFFF:
                ids[topic] = self._name(table, topic)
            begin = in_properties[i]
            middle = in_payloads[i]
            size = in_ends[i] - middle
            stored = flag & 0x17  # DUP and the alias belong to the connection, not to the message
            check = marked(mark, now_us, stored)
            if middle > begin:
                room = middle - begin
                if flag & HAS_ALIAS:
                    room = self._without_alias(source, begin, middle, properties, property_at)
                else:
                    copy(properties, property_at, source, begin, room)
                check = check_of(properties, property_at, room, check)
                property_at += room
            copy(payloads, payload_at, source, middle, size)
            payload_at += size
            times[at] = delta
            topics[at] = ids[topic]
            flags[at] = stored
            checks[at] = check_of(source, middle, size, check)
            at += 1
            property_ends[at] = property_at
            payload_ends[at] = payload_at
        taken = at - self.count
        self.count = at
        self.property_bytes = property_at
        self.payload_bytes = payload_at
        return taken

    def _bind(self, table: TopicTable) -> int:
        """Make the map from the source's topic ids to the segment's large enough, or anew for another source."""
        if self.source_table is not table or self.source_generation != table.generation:
            self.source_table = table
            self.source_generation = table.generation
            self.ids = bytearray()
        if len(self.ids) < 4 * table.count:
            self.ids.extend(b"\xff" * (4 * max(table.count, 64) - len(self.ids) + len(self.ids) // 8 * 4))
        return 0

    def _name(self, table: TopicTable, topic: int) -> int:
        return self.table.intern(table.name(topic))

    def _reserve(self, count: int, property_bytes: int, payload_bytes: int) -> int:
        need = self.count + count
        if need > self.capacity:
            grown = max(need, 2 * self.capacity, 64)
            more = grown - self.capacity
            self.capacity = grown
            self.times.extend(bytes(4 * more))
            self.topics.extend(bytes(4 * more))
            self.flags.extend(bytes(more))
            self.property_ends.extend(bytes(4 * more))
            self.payload_ends.extend(bytes(4 * more))
            self.checks.extend(bytes(4 * more))
        if self.property_bytes + property_bytes > len(self.properties):
            self.properties.extend(bytes(max(property_bytes, len(self.properties))))
        if self.payload_bytes + payload_bytes > len(self.payloads):
            self.payloads.extend(bytes(max(payload_bytes, len(self.payloads))))
        return 0

    def _without_alias(self, source: Buffer, begin: int, middle: int, target: bytearray, at: int) -> int:
        """Copy a property section without its topic alias; how many bytes that left. It was checked when parsed."""
        out = at
        position = begin
        while position < middle:
            size = property_size(source, position)
            if source[position] != 0x23:  # topic alias
                copy(target, out, source, position, size)
                out += size
            position += size
        return out - at

    def take(self, base_offset: int) -> "Records":
        """The batch of what was gathered, from this offset on; the builder is empty afterwards."""
        count = self.count
        if count == 0:
            raise UsageError("there is nothing to take")
        new = self.table.count - self.named
        names_at = 0
        if self.named < self.table.count:
            names_at = u32s(self.table.ends)[self.named]
        name_bytes = self.table.name_bytes - names_at if new else 0
        with_properties = self.property_bytes > 0
        plan = Layout(count, new, name_bytes, self.property_bytes, self.payload_bytes, with_properties)
        if plan.end > MAX_BATCH_BYTES:
            raise UsageError(f"a batch of {plan.end} bytes is too large: take it earlier")
        block = blank(plan.end)
        out = pointer(block)
        put32(out, 0, MAGIC)
        put32(out, 4, VERSION | (WITH_PROPERTIES if with_properties else 0) << 16)
        put32(out, 8, plan.end)
        put64(out, 16, base_offset)
        put32(out, 24, count)
        put32(out, 28, new)
        put64(out, 32, self.first_time)
        put64(out, 40, self.last_time)
        put32(out, 48, self.named)
        put32(out, 52, name_bytes)
        put32(out, 56, self.property_bytes)
        put32(out, 60, self.payload_bytes)
        self._column(out, plan.times, pointer(self.times), 4 * count)
        self._column(out, plan.topics, pointer(self.topics), 4 * count)
        self._column(out, plan.flags, pointer(self.flags), count)
        if with_properties:
            self._column(out, plan.property_ends, pointer(self.property_ends), 4 * (count + 1))
        self._column(out, plan.payload_ends, pointer(self.payload_ends), 4 * (count + 1))
        self._column(out, plan.checks, pointer(self.checks), 4 * count)
        if new:
            ends = u32s(self.table.ends)
            for i in range(new + 1):
                put32(out, plan.name_ends + 4 * i, ends[self.named + i] - names_at)
            self._column(out, plan.name_ends + 4 * (new + 1), pointer(b""), 0)
            copy(out, plan.names, pointer(self.table.names), names_at, name_bytes)
            self._column(out, plan.names + name_bytes, pointer(b""), 0)
        self._column(out, plan.properties, pointer(self.properties), self.property_bytes)
        self._column(out, plan.payloads, pointer(self.payloads), self.payload_bytes)
        put32(out, 12, check_of(out, 16, plan.properties - 16, 0))
        self.named = self.table.count
        records = Records(filled(block), 0, self.table)
        self._clear()
        return records

    def _column(self, out: bytearray, at: int, source: Buffer, size: int) -> int:
        """Write a column and zero its padding."""
        copy(out, at, source, 0, size)
        for i in range(at + size, padded(at + size)):
            out[i] = 0
        return 0


class Layout:
    """Where each column of a batch stands, counted from its first byte."""

    def __init__(
        self,
        count: int,
        new: int,
        name_bytes: int,
        property_bytes: int,
        payload_bytes: int,
        with_properties: bool,
        with_offsets: bool = False,
    ) -> None:
        self.times = HEADER_BYTES
        self.topics = self.times + padded(4 * count)
        self.flags = self.topics + padded(4 * count)
        self.property_ends = self.flags + padded(count)
        self.payload_ends = self.property_ends + (padded(4 * (count + 1)) if with_properties else 0)
        self.checks = self.payload_ends + padded(4 * (count + 1))
        self.offsets = self.checks + padded(4 * count)
        self.name_ends = self.offsets + (padded(4 * count) if with_offsets else 0)
        self.names = self.name_ends + (padded(4 * (new + 1)) if new else 0)
        self.properties = self.names + padded(name_bytes)
        self.payloads = self.properties + padded(property_bytes)
        self.end = self.payloads + padded(payload_bytes)


class Records:
    """A batch in `data` at `start`, read column by column without a copy.

    Opening checks that every column lies inside the data; `verify` checks the contents. `table` gives the names of the
    topic ids.
    """

    def __init__(self, data: Buffer, start: int, table: TopicTable) -> None:
        self.data = data
        self.start = start
        self.table = table
        size = len(data)
        if start < 0 or size - start < HEADER_BYTES:
            raise StorageError(f"{size - start} bytes are too few for a batch")
        raw = pointer(data)
        if get32(raw, start) != MAGIC:
            raise StorageError("no batch begins here")
        if get32(raw, start + 4) & 0xFFFF != VERSION:
            raise StorageError(
                f"batch format version {get32(raw, start + 4) & 0xFFFF} is not known to this version of Everlog",
                hint=_NEWER,
            )
        if get32(raw, start + 4) >> 16 & ~(WITH_PROPERTIES | WITH_OFFSETS):
            raise StorageError("the batch uses a feature this version of Everlog does not know", hint=_NEWER)
        self.with_properties = bool(get32(raw, start + 4) >> 16 & WITH_PROPERTIES)
        self.with_offsets = bool(get32(raw, start + 4) >> 16 & WITH_OFFSETS)
        self.size = get32(raw, start + 8)
        self.base_offset = get64(raw, start + 16)
        self.count = get32(raw, start + 24)
        self.new_topics = get32(raw, start + 28)
        self.first_time = get64(raw, start + 32)
        self.last_time = get64(raw, start + 40)
        self.first_new_topic = get32(raw, start + 48)
        self.name_bytes = get32(raw, start + 52)
        self.property_bytes = get32(raw, start + 56)
        self.payload_bytes = get32(raw, start + 60)
        self.layout = Layout(
            self.count,
            self.new_topics,
            self.name_bytes,
            self.property_bytes,
            self.payload_bytes,
            self.with_properties,
            self.with_offsets,
        )
        if self.count == 0 or self.layout.end != self.size or self.size > size - start:
            raise StorageError("the batch is shorter than its header says")
        self.end_offset = self.offset(self.count - 1) + 1

    def __len__(self) -> int:
        return self.count

    def offset(self, i: int) -> int:
        """The offset of record `i`, which is one of the batch."""
        if self.with_offsets:
            return self.base_offset + get32(pointer(self.data), self.start + self.layout.offsets + 4 * i)
        return self.base_offset + i

    def verify_columns(self) -> bool:
        """Whether header, columns and names are what was written; after that every range lies inside the batch."""
        raw = pointer(self.data)
        plan = self.layout
        return check_of(raw, self.start + 16, plan.properties - 16, 0) == get32(raw, self.start + 12)

    def verify(self) -> bool:
        """Whether every byte of the batch is what was written."""
        if not self.verify_columns():
            return False
        raw = pointer(self.data)
        plan = self.layout
        properties = self.start + plan.properties
        payloads = self.start + plan.payloads
        ends = self.start + plan.payload_ends
        property_ends = self.start + plan.property_ends
        checks = self.start + plan.checks
        times = self.start + plan.times
        flags = self.start + plan.flags
        holder = bytearray(_MARK_BYTES)
        mark = pointer(holder)
        before = 0
        property_before = 0
        if self.with_offsets and not self._offsets_rise():
            return False
        for i in range(self.count):
            end = get32(raw, ends + 4 * (i + 1))
            if end < before or end > self.payload_bytes:
                return False
            check = marked(mark, self.first_time + get32(raw, times + 4 * i), raw[flags + i])
            if self.with_properties:
                property_end = get32(raw, property_ends + 4 * (i + 1))
                if property_end < property_before or property_end > self.property_bytes:
                    return False
                check = check_of(raw, properties + property_before, property_end - property_before, check)
                property_before = property_end
            if check_of(raw, payloads + before, end - before, check) != get32(raw, checks + 4 * i):
                return False
            before = end
        for i in range(properties + self.property_bytes, payloads):
            if raw[i]:
                return False
        for i in range(payloads + self.payload_bytes, self.start + self.size):  # noqa: SIM110
            if raw[i]:
                return False
        return True

    def _offsets_rise(self) -> bool:
        raw = pointer(self.data)
        at = self.start + self.layout.offsets
        if get32(raw, at) != 0:
            return False
        for i in range(1, self.count):  # noqa: SIM110
            if get32(raw, at + 4 * i) <= get32(raw, at + 4 * i - 4):
                return False
        return True

    def row(self, i: int) -> tuple[int, int, int, int, bytes, bytes]:
        """One record as (offset, time, topic id, flags, properties, payload): for people and tests, not for speed."""
        if not 0 <= i < self.count:
            raise IndexError(f"no record {i} in a batch of {self.count}")
        raw = pointer(self.data)
        plan = self.layout
        at = self.start + plan.payload_ends + 4 * i
        payload = self.start + plan.payloads
        properties = b""
        if self.with_properties:
            here = self.start + plan.property_ends + 4 * i
            base = self.start + plan.properties
            properties = bytes(self.data[base + get32(raw, here) : base + get32(raw, here + 4)])
        return (
            self.offset(i),
            self.first_time + get32(raw, self.start + plan.times + 4 * i),
            get32(raw, self.start + plan.topics + 4 * i),
            raw[self.start + plan.flags + i],
            properties,
            bytes(self.data[payload + get32(raw, at) : payload + get32(raw, at + 4)]),
        )

    def rows(self) -> list[tuple[int, int, int, int, bytes, bytes]]:
        """Every record as `row` gives it."""
        return [self.row(i) for i in range(self.count)]

    def new_names(self) -> list[bytes]:
        """The names of the topics that this batch is the first to use, in the order of their ids."""
        if not self.new_topics:
            return []
        raw = pointer(self.data)
        plan = self.layout
        at = self.start + plan.name_ends
        base = self.start + plan.names
        return [
            bytes(self.data[base + get32(raw, at + 4 * i) : base + get32(raw, at + 4 * i + 4)])
            for i in range(self.new_topics)
        ]

    def to_bytes(self) -> Buffer:
        """The batch as it is written."""
        if self.start == 0 and len(self.data) == self.size:
            return self.data
        return bytes(self.data[self.start : self.start + self.size])


def marked(mark: bytearray, time_us: int, flags: int) -> int:
    """What a record's check begins with: its time and flags, so that they can be trusted without the other rows."""
    put64(mark, 0, time_us)
    put32(mark, 8, flags)
    return check_of(mark, 0, 12, 0)


def property_size(source: Buffer, position: int) -> int:
    """The bytes of the checked PUBLISH property at a position, its identifier included."""
    kind = source[position]
    if kind == 0x01:
        return 2
    if kind == 0x02:
        return 5
    if kind == 0x23:
        return 3
    if kind == 0x0B:
        end = position + 1
        while source[end] & 0x80:
            end += 1
        return end + 1 - position
    size = 3 + (source[position + 1] << 8 | source[position + 2])
    if kind == 0x26:
        size += 2 + (source[position + size] << 8 | source[position + size + 1])
    return size
