"""A batch of messages as columns in one block of bytes, the same in memory and on disk.

`Records` reads one that `RecordBuilder` or `gather` made. The layout is `docs/formats/batch.md`. Every byte is covered
by a check: the header's covers the header, the columns and the topic names; each record's own covers its time, flags,
properties and payload, so that a reader verifies only what it takes.
"""

import cython

from everlog.base.errors import StorageError

if not cython.compiled:
    from everlog.base.memory import Buffer, check_of, get32, get64, pointer, put32, put64
    from everlog.base.topic_table import TopicTable

MAGIC = 0x424C5645  # "EVLB"
VERSION = 1
HEADER_BYTES = 64
MAX_BATCH_BYTES = 0x7FFFFFFF

# Bits of the header's flags.
WITH_PROPERTIES = 0x01
WITH_OFFSETS = 0x02  # the records are a selection: a column says how far each is from the base offset

_MARK_BYTES = 12
_NEWER = "read it with a newer Everlog"


def padded(size: int) -> int:
    """Return a size rounded up to whole 8-byte words; every column starts at one."""
    return (size + 7) & ~7


class Layout:
    """Positions of the columns of a batch, counted from its first byte."""

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


@cython.no_gc  # nothing in it refers back to it, and a log keeps many
@cython.cclass
class Records:
    """A batch in `data` at `start`, read column by column without a copy.

    Opening checks that every column lies inside the data; `verify` checks the contents. `table` has the names of the
    topics.
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
        """Return the offset of record `i` of the batch."""
        if self.with_offsets:
            return self.base_offset + get32(pointer(self.data), self.start + self.layout.offsets + 4 * i)
        return self.base_offset + i

    def verify_columns(self) -> bool:
        """Return whether header, columns and names are as written; if so, all ranges lie inside the batch."""
        raw = pointer(self.data)
        plan = self.layout
        return check_of(raw, self.start + 16, plan.properties - 16, 0) == get32(raw, self.start + 12)

    def verify(self) -> bool:
        """Return whether every byte of the batch is as written."""
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
        """Return a record as (offset, time, topic id, flags, properties, payload): convenient, not fast."""
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
        """Return every record in the form of `row`."""
        return [self.row(i) for i in range(self.count)]

    def new_names(self) -> list[bytes]:
        """Return the names of the topics that this batch is the first to use, in the order of their ids."""
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
        """Return the batch as it is written."""
        if self.start == 0 and len(self.data) == self.size:
            return self.data
        return bytes(self.data[self.start : self.start + self.size])


def rebased(records: Records, base_offset: int) -> Records:
    """Return a copy of a batch that has another base offset."""
    block = bytearray(records.to_bytes())
    out = pointer(block)
    put64(out, 16, base_offset)
    put32(out, 12, check_of(out, 16, records.layout.properties - 16, 0))
    return Records(bytes(block), 0, records.table)


def marked(mark: bytearray, time_us: int, flags: int) -> int:
    """Return the start of a record's check: its time and flags, to be trusted without the other rows."""
    put64(mark, 0, time_us)
    put32(mark, 8, flags)
    return check_of(mark, 0, 12, 0)


def property_size(source: Buffer, position: int) -> int:
    """Return the size of the checked PUBLISH property at a position, identifier included."""
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
