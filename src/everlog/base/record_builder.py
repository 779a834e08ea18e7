"""Gathers the messages of many connections into columns and makes a batch of them (`docs/formats/batch.md`)."""

from typing import Any

import cython

from everlog.base.errors import UsageError

if not cython.compiled:
    from everlog.base.block_pool import BlockPool
    from everlog.base.columns import DROPPED, FOR_SESSIONS, FOR_SPILL, HAS_ALIAS, MessageColumns
    from everlog.base.memory import Buffer, address, check_of, copy, get32, pointer, pointer_at, resize, room, u32s
    from everlog.base.publisher_name import PublisherColumn, PublisherName
    from everlog.base.publisher_rows import PublisherRows, write_names
    from everlog.base.records import (
        HEADER_BYTES,
        MAX_BATCH_BYTES,
        WITH_PROPERTIES,
        Layout,
        Records,
        marked,
        pad,
        property_size,
    )
    from everlog.base.topic_table import TopicTable

_KEPT_BYTES = 4 << 20
_HANDED_BYTES = 64 << 10  # of payloads; with fewer, a batch is a copy, and the block stays with the builder
_MARK_BYTES = 12
_PAGE_BYTES = 4096
_ROW_BYTES = 32  # that a row has in all columns, at the most


class RecordBuilder:
    """Columns that gather messages until they are taken as one batch. Not for use by two threads at once.

    The topic ids of a batch are the segment's own: `table` holds its names, and a batch carries those that are new in
    it. A segment starts with no names. From the first message on that names its publisher, all batches of the segment
    have a column of publishers, whose ids and names are the segment's as well.

    Payloads go to where they stand in a batch: into a block, behind the room for a header. The block of a large batch
    is handed on as the batch, so that its payloads are copied once between a socket and the disk. With a `pool`, blocks
    are its own; the next batch begins in the same one, behind the last, and where its place in a page of memory is what
    it will be in the file (`place`), so that whole pages can be written from there.

    Unless `checked`, records have no checks of their own: such batches are used in memory and never stored.
    """

    def __init__(self, checked: bool = True, pool: BlockPool | None = None) -> None:
        self.checked = checked
        self.pool = pool
        self.least_bytes = _HANDED_BYTES if pool is None else pool.least_bytes  # with fewer, a batch is a copy
        self.place = 0  # in its file, of the first byte of the next batch that is begun
        self.begin = 0  # in the block, of the open batch
        self.slack = 0  # where the first batch of a pool's block could begin
        self.free = 0  # in the block, behind the batches that were handed on in it
        self.is_pooled = False  # the block is the pool's: batches may be in it, and it keeps its size
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
        self.block = bytearray(HEADER_BYTES)
        self.mark = bytearray(_MARK_BYTES)
        self.who = PublisherRows()
        self.start_segment()

    def start_segment(self) -> None:
        """Start a segment, whose first batch must name all of its topics."""
        if self.count:
            raise UsageError("a segment can only start between batches: take the open batch first")
        self.table = TopicTable(0, 1 << 30, 1 << 31)
        self.named = 0
        self.who.start_segment()
        self.source_table: Any = None
        self.source_generation = -1
        self.ids = bytearray()
        self.one_source = True  # a name without an id of this segment is not in its table

    def continue_segment(self, names: list[bytes], last_time: int, publishers: list[bytes] | None = None) -> None:
        """Go on in a segment whose batches already named these topics and publishers and end at this time."""
        self.start_segment()
        for name in names:
            self.table.intern(name)
        self.one_source = len(names) == 0
        if publishers is not None:
            self.who.continue_segment(self.table, publishers)
        self.named = self.table.count
        self.last_time = last_time

    def renew_table(self) -> None:
        """Go on with a table of its own that has the same names: what follows is another segment's."""
        self.table = self.table.duplicate()

    def _clear(self) -> int:
        """Empty the columns, and keep them for the next batch unless a large one left them large."""
        self.count = 0
        self.property_bytes = 0
        self.payload_bytes = 0
        self.who.clear()
        if len(self.properties) > _KEPT_BYTES:
            self.properties = bytearray()
        if len(self.block) > _KEPT_BYTES and not self.is_pooled:
            self.block = bytearray(HEADER_BYTES)
        return 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """How many bytes the batch will have, without names and padding."""
        return HEADER_BYTES + self.content_bytes()

    def content_bytes(self) -> int:
        """Return how many of these bytes are records: 0 when there is none."""
        return (21 + self.who.width(self.table)) * self.count + self.property_bytes + self.payload_bytes

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        wanted: int = 0,
        publisher: PublisherName | PublisherColumn | None = None,
    ) -> int:
        """Take in messages `start` to before `stop`, which arrived at `now_us`, and return how many were taken.

        The columns' topic ids are those of `table`. With `routes` (a byte for each topic id and QoS, at 4 * id + QoS)
        only the messages whose byte is `wanted` are taken. Where the byte at 4 * id + 3 has the bit 1 << QoS they get
        the flag FOR_SPILL, and where it has 8 << QoS they get FOR_SESSIONS. `publisher` is who sent all of them, or a
        column that says who sent which.
        """
        if columns.source is None or not 0 <= start <= stop <= columns.capacity:
            raise UsageError(f"no messages {start} to {stop} in columns of {columns.capacity}")
        count = stop - start
        if count == 0:
            return 0
        if now_us < self.last_time:
            now_us = self.last_time  # times never go back within a shard, so that a time finds one position
        if self.count == 0:
            self.first_time = now_us
        elif now_us - self.first_time > 0xFFFFFFFF:
            raise UsageError("a batch spans at most 71 minutes: take it before appending more")
        self.last_time = now_us
        if self.is_pooled and self.count == 0:
            self.begin = self._aligned(self.free)
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
            raise UsageError(f"the columns end at {previous}, beyond their source")
        self._reserve(count, property_bytes, payload_bytes)
        times = u32s(self.times)
        topics = u32s(self.topics)
        flags = pointer(self.flags)
        property_ends = u32s(self.property_ends)
        payload_ends = u32s(self.payload_ends)
        checks = u32s(self.checks)
        properties = pointer(self.properties)
        payloads = pointer(self.block)
        payloads_at = self.begin + HEADER_BYTES
        ids = u32s(self.ids)
        route = pointer(routes if routes is not None else b"")
        mark = pointer(self.mark)
        filtered = routes is not None
        checked = self.checked
        delta = now_us - self.first_time
        at = self.count
        property_at = self.property_bytes
        payload_at = self.payload_bytes
        for i in range(start, stop):
            topic = in_topics[i]
            flag = in_flags[i]
            if flag & DROPPED or (filtered and route[4 * topic + (flag >> 1 & 3)] != wanted):
                continue
            if ids[topic] == 0xFFFFFFFF:
                ids[topic] = self._name(table, topic)
            begin = in_properties[i]
            middle = in_payloads[i]
            size = in_ends[i] - middle
            stored = flag & 0x17  # DUP and the alias belong to the connection, not to the message
            if filtered and route[4 * topic + 3]:
                marks = route[4 * topic + 3] >> (flag >> 1 & 3)
                if marks & 0x01:
                    stored |= FOR_SPILL
                elif marks & 0x08:
                    stored |= FOR_SESSIONS
            check = marked(mark, now_us, stored) if checked else 0
            if middle > begin:
                room = middle - begin
                if flag & HAS_ALIAS:
                    room = self._without_alias(source, begin, middle, properties, property_at)
                else:
                    copy(properties, property_at, source, begin, room)
                if checked:
                    check = check_of(properties, property_at, room, check)
                property_at += room
            copy(payloads, payloads_at + payload_at, source, middle, size)
            payload_at += size
            times[at] = delta
            topics[at] = ids[topic]
            flags[at] = stored
            checks[at] = check_of(source, middle, size, check) if checked else 0
            at += 1
            property_ends[at] = property_at
            payload_ends[at] = payload_at
        taken = at - self.count
        if taken and (publisher is not None or self.table.publishers is not None):
            self.who.note(self.table, self.count, at, columns, start, stop, routes, wanted, publisher)
        self.count = at
        self.property_bytes = property_at
        self.payload_bytes = payload_at
        return taken

    def _bind(self, table: TopicTable) -> int:
        """Make the map from the source's topic ids to the segment's large enough, or anew for another source table."""
        if self.source_table is not table or self.source_generation != table.generation:
            self.source_table = table
            self.source_generation = table.generation
            self.ids = bytearray()
            self.one_source = self.table.count == 0
        if len(self.ids) < 4 * table.count:
            self.ids.extend(b"\xff" * (4 * max(table.count, 64) - len(self.ids) + len(self.ids) // 8 * 4))
        return 0

    def _name(self, table: TopicTable, topic: int) -> int:
        ends = u32s(table.ends)
        if self.one_source and table.in_order:
            return self.table.append(pointer(table.names), ends[topic], ends[topic + 1] - ends[topic])
        return self.table.find_or_add(pointer(table.names), ends[topic], ends[topic + 1] - ends[topic])

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
        size = HEADER_BYTES + self.payload_bytes + payload_bytes
        if self.begin + size > self._room_end():
            if self.pool is not None and (self.is_pooled or size > self.least_bytes):
                self._move(size, 0)
            else:
                resize(self.block, len(self.block) + max(payload_bytes, len(self.block)))
        return 0

    def _move(self, size: int, first: int) -> int:
        """Go on in another block of the pool, with the payloads that were gathered from their byte `first` on."""
        block, begin = self.block, self.begin
        assert self.pool is not None
        self.block = self.pool.take(size)
        self.is_pooled = True
        self.free = 0
        self.begin = self.slack = self._aligned(0)
        copy(
            pointer(self.block), self.begin + HEADER_BYTES,
            pointer(block), begin + HEADER_BYTES + first, self.payload_bytes - first,
        )  # fmt: skip
        return 0

    def _aligned(self, at: int) -> int:
        """Return the first byte of the block from `at` on whose place in its page is that of `place` in the file."""
        return at + (self.place - address(self.block) - at) % _PAGE_BYTES

    def has_room(self, columns: MessageColumns, start: int, stop: int) -> bool:
        """Return whether messages fit into the block of a large batch that is open; else it should be taken first."""
        if not self.is_pooled or self.payload_bytes < self.least_bytes or not 0 <= start < stop <= columns.capacity:
            return True
        more = u32s(columns.payload_ends)[stop - 1] - u32s(columns.property_starts)[start] + _ROW_BYTES * (stop - start)
        return self.begin + HEADER_BYTES + self.content_bytes() + more + _PAGE_BYTES <= self._room_end()

    def _room_end(self) -> int:
        """Return where the block's room ends: as much of a pool's block is used wherever it lies in memory.

        Else the same messages would not always be the same batches.
        """
        return len(self.block) - _PAGE_BYTES + self.slack if self.is_pooled else len(self.block)

    def _without_alias(self, source: Buffer, begin: int, middle: int, target: bytearray, at: int) -> int:
        """Copy a property section, checked when parsed, without its topic alias; return the bytes copied."""
        out = at
        position = begin
        while position < middle:
            size = property_size(source, position)
            if source[position] != 0x23:  # topic alias
                copy(target, out, source, position, size)
                out += size
            position += size
        return out - at

    def take(self, base_offset: int, rows: int = -1) -> Records:
        """Take the first `rows` that were gathered (all by default) as a batch at this offset; the rest stays."""
        count = self.count if rows < 0 else rows
        if count == 0 or count > self.count:
            raise UsageError(f"there are not {count} records to take" if count else "there is nothing to take")
        last_time = self.last_time
        property_bytes = self.property_bytes
        payload_bytes = self.payload_bytes
        if count < self.count:
            last_time = self.first_time + get32(pointer(self.times), 4 * count - 4)
            property_bytes = get32(pointer(self.property_ends), 4 * count)
            payload_bytes = get32(pointer(self.payload_ends), 4 * count)
        new = self.table.count - self.named
        names_at = 0
        if new:
            names_at = u32s(self.table.ends)[self.named]
        name_bytes = self.table.name_bytes - names_at if new else 0
        kind = WITH_PROPERTIES if property_bytes else 0
        plan = self.who.layout(self.table, count, new, name_bytes, property_bytes, payload_bytes, kind)
        if plan.end > MAX_BATCH_BYTES:
            raise UsageError(f"a batch of {plan.end} bytes is too large: take it earlier")
        begin = self.begin if self._is_handed(plan) else 0
        block = self._block(plan)
        out = pointer_at(block, begin)
        pad(out, HEADER_BYTES + payload_bytes)
        self._column(out, plan.times, pointer(self.times), 4 * count)
        self._column(out, plan.topics, pointer(self.topics), 4 * count)
        self._column(out, plan.flags, pointer(self.flags), count)
        if property_bytes:
            self._column(out, plan.property_ends, pointer(self.property_ends), 4 * (count + 1))
        self._column(out, plan.payload_ends, pointer(self.payload_ends), 4 * (count + 1))
        self._column(out, plan.checks, pointer(self.checks), 4 * count)
        if new:
            write_names(out, plan.name_ends, plan.names, self.table, self.named)
        if plan.publishers or plan.packet_ids:
            self.who.write(out, plan, self.table)
        self._column(out, plan.properties, pointer(self.properties), property_bytes)
        plan.seal(out, base_offset, self.first_time, last_time, self.named)
        records = self._made(block, begin, base_offset, plan, last_time)
        self.named = self.table.count
        if count < self.count:
            self._drop(count, property_bytes, payload_bytes)
        else:
            self._clear()
        return records

    def _is_handed(self, plan: Layout) -> bool:
        """Return whether the block is handed on as the batch."""
        if plan.payload_bytes < self.least_bytes:
            return False
        return self.begin + plan.end <= self._room_end() if self.is_pooled else self.pool is None

    def _block(self, plan: Layout) -> bytearray:
        """Return a block with the batch's payloads: a copy of its size, or for a large batch the builder's own.

        The payloads that the batch does not have begin the builder's next one.
        """
        own = self.block
        rest = self.payload_bytes - plan.payload_bytes
        handed = self._is_handed(plan)
        block = own
        if not handed:
            block = room(plan.end)
            copy(pointer(block), HEADER_BYTES, pointer(own), self.begin + HEADER_BYTES, plan.payload_bytes)
        if self.pool is not None:
            self.place += plan.end + self.pool.gap_bytes
        if self.is_pooled:
            if rest:
                self._move(HEADER_BYTES + rest, plan.payload_bytes)
            elif handed:
                self.begin = self.free = self.begin + plan.end
        elif handed:
            self.block = room(len(own))
            copy(pointer(self.block), HEADER_BYTES, pointer(own), HEADER_BYTES + plan.payload_bytes, rest)
            resize(block, plan.end)
        elif rest:
            del self.block[HEADER_BYTES : HEADER_BYTES + plan.payload_bytes]
        return block

    def _made(self, block: bytearray, begin: int, base_offset: int, plan: Layout, last_time: int) -> Records:
        """Return the batch in a block that was just written, without reading it again."""
        records = Records.__new__(Records)
        records.data = block
        records.start = begin
        records.table = self.table
        records.layout = plan
        records.size = plan.end
        records.base_offset = base_offset
        records.end_offset = base_offset + plan.count
        records.count = plan.count
        records.first_time = self.first_time
        records.last_time = last_time
        records.with_offsets = False
        records.with_properties = plan.property_bytes > 0
        records.new_topics, records.first_new_topic, records.name_bytes = plan.new, self.named, plan.name_bytes
        records.property_bytes, records.payload_bytes = plan.property_bytes, plan.payload_bytes
        return records

    def _drop(self, count: int, property_bytes: int, payload_bytes: int) -> int:
        """Drop the first rows from the columns; what stays begins anew."""
        del self.times[: 4 * count], self.topics[: 4 * count], self.flags[:count], self.checks[: 4 * count]
        del self.property_ends[: 4 * count], self.payload_ends[: 4 * count]
        del self.properties[:property_bytes]
        self.who.drop(count)
        self.capacity -= count
        self.count -= count
        self.property_bytes -= property_bytes
        self.payload_bytes -= payload_bytes
        times = u32s(self.times)
        property_ends = u32s(self.property_ends)
        payload_ends = u32s(self.payload_ends)
        ahead = times[0]
        self.first_time += ahead
        for i in range(self.count):
            times[i] -= ahead
        for i in range(self.count + 1):
            property_ends[i] -= property_bytes
            payload_ends[i] -= payload_bytes
        return 0

    def _column(self, out: bytearray, at: int, source: Buffer, size: int) -> int:
        """Write a column and zero its padding."""
        copy(out, at, source, 0, size)
        return pad(out, at + size)
