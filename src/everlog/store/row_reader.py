"""Fetches single rows from a sealed segment's file into a compact batch, and verifies each by itself.

The segment may be a mapped file: of each row only its own words of the columns and its own bytes are touched. A batch
is trusted if its header agrees with the batch index and with its own size; a row if its topic is the one it was looked
up by and its check, which covers time, flags, properties and payload, is right. Otherwise the result is None, and the
caller reads the segment batch by batch, which tells damage from bad postings. That check does not cover who has
published a row: if that is asked for, the columns of each batch that is touched are checked as a whole. Any thread may
ask; the interpreter lock is free while rows are fetched.
"""

from itertools import accumulate

import cython

from everlog.base import StorageError, UsageError, row_column

if not cython.compiled:
    from everlog.base import Layout, Records, TopicTable
    from everlog.base.batch_merge import BatchWriter
    from everlog.base.memory import check_of, copy, get32, get64, pointer, put32, u32s, u64s
    from everlog.base.records import marked, padded
    from everlog.store.mapped_memory import address, ahead, faulted, unguard

_MAGIC = 0x424C5645
_VERSION = 2
_PAYLOADS_LAST = 1  # the version before
_LOW = 0xFFFFFFFF
_HEADER_BYTES = 64
_WITH_PROPERTIES = 0x01
_WITH_OFFSETS = 0x02
_WITH_PUBLISHERS = 0x04
_WITH_PACKET_IDS = 0x08
_PUBLISHER_HEAD = 16
_ROW_BYTES = 25  # in the batch that is made, without properties and payload
_AHEAD = 16  # rows: how far ahead payloads are prefetched

_NO_PUBLISHER = 0xFFFFFFFF

# What is noted of a row: where payload and properties stand, their sizes, time, offset, check, flags, publisher.
_NOTE_WORDS = 9
# What is kept of the current batch: its first time, where its columns stand, how large properties and payloads are.
_PLACE_WORDS = 12


class RowReader:
    """A segment's file in a buffer, with the columns of its batch index."""

    def __init__(
        self, log: object, offsets: memoryview, positions: memoryview, sizes: memoryview, counts: memoryview
    ) -> None:
        self.log = memoryview(log)  # type: ignore[arg-type]
        self.size = len(self.log)
        self.batches = len(counts)
        if self.size < _HEADER_BYTES or self.batches == 0:
            raise StorageError("there is nothing to take rows from")
        self.raw = address(self.log)
        starts = list(accumulate(counts, initial=0))
        self.rows = starts[self.batches]
        if self.rows > _LOW:
            raise StorageError(f"{self.rows} rows are too many for row postings")
        self.columns = (
            bytearray(memoryview(offsets).cast("B")),
            bytearray(memoryview(positions).cast("B")),
            bytearray(memoryview(sizes).cast("B")),
            bytearray(memoryview(counts).cast("B")),
            row_column(starts),
        )
        self.offset_of = u64s(self.columns[0])
        self.position_of = u64s(self.columns[1])
        self.size_of = u32s(self.columns[2])
        self.count_of = u32s(self.columns[3])
        self.start_of = u32s(self.columns[4])

    def start_row(self, batch: int) -> int:
        """Return the number of a batch's first row; for the number of batches, the number of rows."""
        if not 0 <= batch <= self.batches:
            raise UsageError(f"no batch {batch} among {self.batches}")
        return self.start_of[batch]

    def offset(self, row: int) -> int:
        """Return the offset of a row."""
        if not 0 <= row < self.rows:
            raise UsageError(f"no row {row} among {self.rows}")
        batch = self._batch_of(row)
        return self.offset_of[batch] + row - self.start_of[batch]

    def take(
        self,
        found: bytearray,
        first: int,
        stop: int,
        ids: bytearray,
        table: TopicTable,
        max_bytes: int,
        publishers: bool = False,
    ) -> Records | None:
        """Return rows `first` to before `stop` of what `RowFinder.find` found; fewer at `max_bytes`, but at least one.

        The topic ids of the batch are places among `ids`, whose names `table` holds. It also ends before a record
        that is 71 minutes later than its first, which one batch can't hold. If `publishers` are asked for, they are
        those of `table`, too.
        """
        if not 0 <= first < stop <= len(found) // 8:
            raise UsageError(f"no rows {first} to {stop} among the {len(found) // 8} that were found")
        rows = u64s(found)
        chosen = u32s(ids)
        if rows[stop - 1] >> 32 >= self.rows:
            raise UsageError(f"no row {rows[stop - 1] >> 32} among {self.rows}")
        notes = bytearray(8 * _NOTE_WORDS * (stop - first))
        note = u64s(notes)
        places = bytearray(8 * _PLACE_WORDS)
        place = u64s(places)
        wanted = len(ids) // 4
        with cython.nogil:
            count = self._locate(rows, first, stop, chosen, wanted, max_bytes, place, note, publishers)
            unguard()
        if count <= 0:
            return None
        payload_bytes = 0
        property_bytes = 0
        for k in range(count):
            payload_bytes += note[_NOTE_WORDS * k + 1]
            property_bytes += note[_NOTE_WORDS * k + 3]
        kind = _WITH_OFFSETS | (property_bytes > 0) | (_WITH_PUBLISHERS if publishers else 0)
        plan = Layout(count, 0, 0, property_bytes, payload_bytes, kind)
        if plan.end > 0x7FFFFFFF:
            raise UsageError(f"a batch of {plan.end} bytes is too large: take fewer rows")
        writer = BatchWriter(plan)
        writer.base_offset = note[5]
        writer.first_time = note[4]
        writer.last_time = note[_NOTE_WORDS * (count - 1) + 4]
        out = pointer(writer.block)
        holder = bytearray(12)
        mark = pointer(holder)
        with cython.nogil:
            lost = self._fetch(rows, first, count, note, plan, property_bytes > 0, out, mark)
            unguard()
        if lost:
            return None
        return writer.finish(table, 0)

    def _batch_of(self, row: int) -> int:
        low = 0
        high = self.batches
        while high - low > 1:
            middle = (low + high) >> 1
            if self.start_of[middle] <= row:
                low = middle
            else:
                high = middle
        return low

    def _open(self, batch: int, place: memoryview) -> bool:
        """Note where a batch's columns stand; return False if its header disagrees with the index."""
        raw = self.raw
        at = self.position_of[batch]
        size = self.size_of[batch]
        if size < _HEADER_BYTES or at > self.size or size > self.size - at:
            return False
        kind = get32(raw, at + 4)
        count = get32(raw, at + 24)
        version = kind & 0xFFFF
        known = _WITH_PROPERTIES
        if version == _VERSION:
            known |= _WITH_PUBLISHERS | _WITH_PACKET_IDS
        if get32(raw, at) != _MAGIC or version not in (_PAYLOADS_LAST, _VERSION) or kind >> 16 & ~known:
            return False
        if get32(raw, at + 8) != size or get64(raw, at + 16) != self.offset_of[batch] or count != self.count_of[batch]:
            return False
        new = get32(raw, at + 28)
        end = at + _HEADER_BYTES
        place[0] = get64(raw, at + 32)
        place[10] = get32(raw, at + 60)
        if version != _PAYLOADS_LAST:
            place[8] = end
            end += padded(place[10])
        place[1] = end
        end += padded(4 * count)
        place[2] = end
        end += padded(4 * count)
        place[3] = end
        end += padded(count)
        place[4] = 0
        if kind >> 16 & _WITH_PROPERTIES:
            place[4] = end
            end += padded(4 * (count + 1))
        place[5] = end
        end += padded(4 * (count + 1))
        place[6] = end
        place[11] = 0
        end += padded(4 * count) + (padded(4 * (new + 1)) if new else 0) + padded(get32(raw, at + 52))
        place[9] = get32(raw, at + 56)
        if kind >> 16 & _WITH_PACKET_IDS:
            end += padded(2 * count)
        if kind >> 16 & _WITH_PUBLISHERS:
            begin = at + size - padded(place[9])  # the publishers' names end where the properties begin
            place[11] = end + _PUBLISHER_HEAD
            if begin < end + _PUBLISHER_HEAD + padded(4 * count):
                return False
            end = begin
        place[7] = end
        end += padded(place[9])
        if version == _PAYLOADS_LAST:
            place[8] = end
            end += padded(place[10])
        return end == at + size

    def _is_whole(self, batch: int, place: memoryview) -> bool:
        """Return whether header, columns and names of an open batch are as written."""
        raw = self.raw
        at = self.position_of[batch]
        check = check_of(raw, at + 16, _HEADER_BYTES - 16, 0)
        return check_of(raw, place[1], place[7] - place[1], check) == get32(raw, at + 12)

    def _locate(
        self,
        rows: memoryview,
        first: int,
        stop: int,
        chosen: memoryview,
        wanted: int,
        max_bytes: int,
        place: memoryview,
        note: memoryview,
        publishers: bool,
    ) -> int:
        """Note where each row stands; return how many were noted, or -1 if something disagrees."""
        if faulted():
            return -1
        raw = self.raw
        batch = self._batch_of(rows[first] >> 32)
        opened = -1
        previous = -1
        total = _HEADER_BYTES
        first_time = 0
        n = 0
        for k in range(first, stop):
            row = rows[k] >> 32
            which = rows[k] & _LOW
            if row <= previous or row >= self.rows or which >= wanted:
                return -1
            previous = row
            while row >= self.start_of[batch + 1]:
                batch += 1
            if batch != opened:
                if not self._open(batch, place) or (publishers and not self._is_whole(batch, place)):
                    return -1
                opened = batch
            if k + _AHEAD < stop:
                later = (rows[k + _AHEAD] >> 32) - self.start_of[batch]
                if 0 <= later < self.count_of[batch]:
                    ahead(raw, place[5] + 4 * later)
                    ahead(raw, place[2] + 4 * later)
                    ahead(raw, place[1] + 4 * later)
                    ahead(raw, place[6] + 4 * later)
                    ahead(raw, place[3] + later)
            row -= self.start_of[batch]
            begin = get32(raw, place[5] + 4 * row)
            end = get32(raw, place[5] + 4 * row + 4)
            if get32(raw, place[2] + 4 * row) != chosen[which] or begin > end or end > place[10]:
                return -1
            note[n] = place[8] + begin
            note[n + 1] = end - begin
            note[n + 2] = 0
            note[n + 3] = 0
            if place[4]:
                begin = get32(raw, place[4] + 4 * row)
                end = get32(raw, place[4] + 4 * row + 4)
                if begin > end or end > place[9]:
                    return -1
                note[n + 2] = place[7] + begin
                note[n + 3] = end - begin
            time_us = place[0] + get32(raw, place[1] + 4 * row)
            if k == first:
                first_time = time_us
            if time_us < first_time:
                return -1
            total += _ROW_BYTES + note[n + 1] + note[n + 3]
            if k > first and (total > max_bytes or time_us - first_time > _LOW):
                return k - first
            note[n + 4] = time_us
            note[n + 5] = self.offset_of[batch] + row
            note[n + 6] = get32(raw, place[6] + 4 * row)
            note[n + 7] = raw[place[3] + row]
            note[n + 8] = _NO_PUBLISHER
            if publishers and place[11]:
                note[n + 8] = get32(raw, place[11] + 4 * row)
            n += _NOTE_WORDS
        return stop - first

    def _fetch(
        self,
        rows: memoryview,
        first: int,
        count: int,
        note: memoryview,
        plan: Layout,
        with_properties: bool,
        out: bytearray,
        mark: bytearray,
    ) -> int:
        """Copy the noted rows into the batch and verify what was copied; return -1 if one is damaged."""
        if faulted():
            return -1
        raw = self.raw
        property_at = 0
        payload_at = 0
        n = 0
        for k in range(count):
            if k + _AHEAD < count:
                ahead(raw, note[n + _AHEAD * _NOTE_WORDS])
                ahead(raw, note[n + _AHEAD * _NOTE_WORDS] + 64)
                ahead(raw, note[n + _AHEAD * _NOTE_WORDS] + 128)
            check = marked(mark, note[n + 4], note[n + 7])
            if with_properties:
                copy(out, plan.properties + property_at, raw, note[n + 2], note[n + 3])
                check = check_of(out, plan.properties + property_at, note[n + 3], check)
                put32(out, plan.property_ends + 4 * k, property_at)
                property_at += note[n + 3]
            copy(out, plan.payloads + payload_at, raw, note[n], note[n + 1])
            if check_of(out, plan.payloads + payload_at, note[n + 1], check) != note[n + 6]:
                return -1
            put32(out, plan.payload_ends + 4 * k, payload_at)
            payload_at += note[n + 1]
            put32(out, plan.times + 4 * k, note[n + 4] - note[4])
            put32(out, plan.topics + 4 * k, rows[first + k] & _LOW)
            out[plan.flags + k] = note[n + 7]
            put32(out, plan.checks + 4 * k, note[n + 6])
            put32(out, plan.offsets + 4 * k, note[n + 5] - note[5])
            if plan.publishers:
                put32(out, plan.publishers + 4 * k, note[n + 8])
            n += _NOTE_WORDS
        put32(out, plan.payload_ends + 4 * count, payload_at)
        if with_properties:
            put32(out, plan.property_ends + 4 * count, property_at)
        return 0
