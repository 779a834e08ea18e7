"""A batch of messages as columns in one block of bytes, the same in memory and on disk.

`Records` reads one that `RecordBuilder` or `gather` made. The layout is `docs/formats/batch.md`. Every byte is covered
by a check: the header's covers the header, the columns and the names; each record's own covers its time, flags,
properties and payload, so that a reader verifies only what it takes.
"""

import cython

from everlog.base.errors import StorageError

if not cython.compiled:
    from everlog.base.memory import Buffer, check_of, get32, get64, pointer, put32, put64
    from everlog.base.topic_table import TopicTable

MAGIC = 0x424C5645  # "EVLB"
VERSION = 2
_PAYLOADS_LAST = 1  # the version before, which is read and no longer written
HEADER_BYTES = 64
MAX_BATCH_BYTES = 0x7FFFFFFF

# Bits of the header's flags.
WITH_PROPERTIES = 0x01
WITH_OFFSETS = 0x02  # the records are a selection: a column says how far each is from the base offset
WITH_PUBLISHERS = 0x04  # a column says who has published each
WITH_PACKET_IDS = 0x08  # a column has the packet ids of QoS 2 messages of durable sessions

NO_PUBLISHER = 0xFFFFFFFF  # in the column of publishers: nobody, or nobody knows

# The same as numbers of C.
_HEADER = HEADER_BYTES
_PROPERTIES = WITH_PROPERTIES
_OFFSETS = WITH_OFFSETS
_PUBLISHERS = WITH_PUBLISHERS
_PACKET_IDS = WITH_PACKET_IDS
_NOBODY = NO_PUBLISHER
_PUBLISHER_HEAD = 16  # before the column of publishers: how many are new, the first new id, bytes of names, zero
_NEWEST = VERSION

_MARK_BYTES = 12
_UNLOCKED_BYTES = 64 << 10  # a batch of this size is checked without the interpreter's lock
_NEWER = "read it with a newer Everlog"


def padded(size: int) -> int:
    """Return a size rounded up to whole 8-byte words; every column starts at one."""
    return (size + 7) & ~7


class Layout:
    """Positions of the columns of a batch, counted from its first byte, and what its header says of them.

    `columns` to before `columns_end` is what the header's check covers beside the header: every column, and the names.
    `publishers` and `packet_ids` are 0 in a batch without such columns.
    """

    def __init__(
        self,
        count: int,
        new: int,
        name_bytes: int,
        property_bytes: int,
        payload_bytes: int,
        kind: int,
        version: int = VERSION,
        new_publishers: int = 0,
        publisher_bytes: int = 0,
        first_publisher: int = 0,
    ) -> None:
        self.count = count
        self.new = new
        self.name_bytes = name_bytes
        self.property_bytes = property_bytes
        self.payload_bytes = payload_bytes
        self.kind = kind
        self.columns = _HEADER
        if version != _PAYLOADS_LAST:
            self.payloads = _HEADER
            self.columns += padded(payload_bytes)
        self.times = self.columns
        self.topics = self.times + padded(4 * count)
        self.flags = self.topics + padded(4 * count)
        self.property_ends = self.flags + padded(count)
        self.payload_ends = self.property_ends + (padded(4 * (count + 1)) if kind & _PROPERTIES else 0)
        self.checks = self.payload_ends + padded(4 * (count + 1))
        self.offsets = self.checks + padded(4 * count)
        self.name_ends = self.offsets + (padded(4 * count) if kind & _OFFSETS else 0)
        self.packet_ids = 0
        if kind & _PACKET_IDS:
            self.packet_ids = self.name_ends
            self.name_ends += padded(2 * count)
        self.names = self.name_ends + (padded(4 * (new + 1)) if new else 0)
        self.columns_end = self.names + padded(name_bytes)
        self.publishers = 0
        if kind & _PUBLISHERS:
            self.publishers = self.columns_end + _PUBLISHER_HEAD
        self.name_publishers(new_publishers, publisher_bytes, first_publisher)
        if version == _PAYLOADS_LAST:
            self.payloads = self.end
            self.end += padded(payload_bytes)

    def name_publishers(self, new: int, name_bytes: int, first: int) -> int:
        """Place what follows the topics' names, given how many publishers are new and how long their names are."""
        self.new_publishers = new
        self.publisher_bytes = name_bytes
        self.first_publisher = first
        if self.publishers:
            self.columns_end = self.publisher_names() + padded(name_bytes)
        self.properties = self.columns_end
        self.end = self.properties + padded(self.property_bytes)
        return 0

    def publisher_ends(self) -> int:
        """Return where the ends of the new publishers' names stand."""
        return self.publishers + padded(4 * self.count)

    def publisher_names(self) -> int:
        """Return where the names of the new publishers stand."""
        ends = self.publisher_ends()
        return ends + (padded(4 * (self.new_publishers + 1)) if self.new_publishers else 0)

    def seal(self, out: bytearray, base_offset: int, first_time: int, last_time: int, first_new_topic: int) -> int:
        """Write the header of a block that is filled otherwise, padding too."""
        put32(out, 0, MAGIC)
        put32(out, 4, _NEWEST | self.kind << 16)
        put32(out, 8, self.end)
        put64(out, 16, base_offset)
        put32(out, 24, self.count)
        put32(out, 28, self.new)
        put64(out, 32, first_time)
        put64(out, 40, last_time)
        put32(out, 48, first_new_topic)
        put32(out, 52, self.name_bytes)
        put32(out, 56, self.property_bytes)
        put32(out, 60, self.payload_bytes)
        if self.publishers:
            head = self.publishers - _PUBLISHER_HEAD
            put32(out, head, self.new_publishers)
            put32(out, head + 4, self.first_publisher)
            put32(out, head + 8, self.publisher_bytes)
            put32(out, head + 12, 0)
        put32(out, 12, self.check(out, 0))
        return 0

    def check(self, raw: Buffer, start: int) -> int:
        """Return the check of header, columns and names of the batch that begins at `start`."""
        check = check_of(raw, start + 16, _HEADER - 16, 0)
        return check_of(raw, start + self.columns, self.columns_end - self.columns, check)


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
        if start < 0 or size - start < _HEADER:
            raise StorageError(f"{size - start} bytes are too few for a batch")
        raw = pointer(data)
        self.layout = _layout_at(raw, start)
        if self.layout.publishers:
            _read_publishers(self.layout, raw, start, size)
        self.with_properties = bool(self.layout.kind & _PROPERTIES)
        self.with_offsets = bool(self.layout.kind & _OFFSETS)
        self.size = get32(raw, start + 8)
        self.base_offset = get64(raw, start + 16)
        self.count = self.layout.count
        self.new_topics = self.layout.new
        self.first_time = get64(raw, start + 32)
        self.last_time = get64(raw, start + 40)
        self.first_new_topic = get32(raw, start + 48)
        self.name_bytes = self.layout.name_bytes
        self.property_bytes = self.layout.property_bytes
        self.payload_bytes = self.layout.payload_bytes
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
        return self.layout.check(raw, self.start) == get32(raw, self.start + 12)

    def verify(self) -> bool:
        """Return whether every byte of the batch is as written."""
        raw = pointer(self.data)
        holder = bytearray(_MARK_BYTES)
        mark = pointer(holder)
        if self.size < _UNLOCKED_BYTES:
            return self._whole(raw, mark)
        with cython.nogil:  # other threads go on meanwhile
            whole = self._whole(raw, mark)
        return whole  # noqa: RET504

    def _whole(self, raw: Buffer, mark: bytearray) -> bool:
        if self.layout.check(raw, self.start) != get32(raw, self.start + 12):
            return False
        if self.with_offsets and not self._offsets_rise(raw):
            return False
        properties = self.start + self.layout.properties
        payloads = self.start + self.layout.payloads
        ends = self.start + self.layout.payload_ends
        property_ends = self.start + self.layout.property_ends
        checks = self.start + self.layout.checks
        times = self.start + self.layout.times
        flags = self.start + self.layout.flags
        before = 0
        property_before = 0
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
        return self._is_padded(raw, self.layout.properties + self.property_bytes) and self._is_padded(
            raw, self.layout.payloads + self.payload_bytes
        )

    def _is_padded(self, raw: Buffer, at: int) -> bool:
        """Return whether the bytes from a position, the end of a column, to the next whole word are zero."""
        for i in range(self.start + at, self.start + padded(at)):  # noqa: SIM110
            if raw[i]:
                return False
        return True

    def _offsets_rise(self, raw: Buffer) -> bool:
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

    def publisher(self, i: int) -> int:
        """Return the id of who published record `i`, or NO_PUBLISHER."""
        if not 0 <= i < self.count:
            raise IndexError(f"no record {i} in a batch of {self.count}")
        if not self.layout.publishers:
            return _NOBODY
        return get32(pointer(self.data), self.start + self.layout.publishers + 4 * i)

    def packet_id(self, i: int) -> int:
        """Return the packet id that came with record `i`, 0 unless it is kept."""
        if not 0 <= i < self.count:
            raise IndexError(f"no record {i} in a batch of {self.count}")
        if not self.layout.packet_ids:
            return 0
        at = self.start + self.layout.packet_ids + 2 * i
        raw = pointer(self.data)
        return int(raw[at] | raw[at + 1] << 8)

    def new_publishers(self) -> list[bytes]:
        """Return the names of the publishers that this batch is the first to name, in the order of their ids."""
        if not self.layout.publishers or not self.layout.new_publishers:
            return []
        raw = pointer(self.data)
        at = self.start + self.layout.publisher_ends()
        base = self.start + self.layout.publisher_names()
        return [
            bytes(self.data[base + get32(raw, at + 4 * i) : base + get32(raw, at + 4 * i + 4)])
            for i in range(self.layout.new_publishers)
        ]

    def view(self) -> Buffer | memoryview:
        """Return the batch as it is written, without a copy."""
        if self.start == 0 and len(self.data) == self.size:
            return self.data
        return memoryview(self.data)[self.start : self.start + self.size]

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
    put32(out, 12, records.layout.check(out, 0))
    return Records(bytes(block), 0, records.table)


def columns_range(header: Buffer) -> tuple[int, int]:
    """Return where in a batch its columns and names stand, given its first 64 bytes; raise if it is no batch."""
    if len(header) < _HEADER:
        raise StorageError(f"{len(header)} bytes are too few for a batch")
    plan = _layout_at(pointer(header), 0)
    return plan.columns, _columns_end(plan, pointer(header))


def checked_columns(header: Buffer, columns: bytes) -> tuple[memoryview, bytes] | None:
    """Return a batch's topic ids and flags, given its header and the bytes of `columns_range`; None if damaged."""
    raw = pointer(header)
    plan = _layout_at(raw, 0)
    if len(columns) != _columns_end(plan, raw) - plan.columns:
        return None
    check = check_of(raw, 16, _HEADER - 16, 0)
    if check_of(pointer(columns), 0, len(columns), check) != get32(raw, 12):
        return None
    topics = plan.topics - plan.columns
    flags = plan.flags - plan.columns
    return memoryview(columns[topics : topics + 4 * plan.count]).cast("I"), columns[flags : flags + plan.count]


def _layout_at(raw: Buffer, start: int) -> Layout:
    """Return the layout that a batch's header tells; raise StorageError if this is no header that we know."""
    if get32(raw, start) != MAGIC:
        raise StorageError("no batch begins here")
    version = get32(raw, start + 4) & 0xFFFF
    kind = get32(raw, start + 4) >> 16
    if version not in (_PAYLOADS_LAST, _NEWEST):
        raise StorageError(f"batch format version {version} is not known to this version of Everlog", hint=_NEWER)
    known = _PROPERTIES | _OFFSETS
    if version == _NEWEST:
        known |= _PUBLISHERS | _PACKET_IDS
    if kind & ~known:
        raise StorageError("the batch uses a feature this version of Everlog does not know", hint=_NEWER)
    return Layout(
        get32(raw, start + 24),
        get32(raw, start + 28),
        get32(raw, start + 52),
        get32(raw, start + 56),
        get32(raw, start + 60),
        kind,
        version,
    )


def _read_publishers(plan: Layout, raw: Buffer, start: int, size: int) -> int:
    """Complete a layout by what stands before the column of publishers, if that lies inside the data."""
    head = start + plan.publishers - _PUBLISHER_HEAD
    if head + _PUBLISHER_HEAD > size:
        raise StorageError("the batch is shorter than its header says")
    plan.name_publishers(get32(raw, head), get32(raw, head + 8), get32(raw, head + 4))
    return 0


def _columns_end(plan: Layout, header: Buffer) -> int:
    """Return where a batch's columns and names end, given its header alone."""
    if not plan.publishers:
        return plan.columns_end
    end = get32(header, 8) - padded(plan.property_bytes)  # nothing else follows them
    if end < plan.columns_end:
        raise StorageError("the batch is shorter than its header says")
    return end


def pad(out: bytearray, at: int) -> int:
    """Zero the bytes from a position, the end of a column, to the next whole word."""
    for i in range(at, padded(at)):
        out[i] = 0
    return 0


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
