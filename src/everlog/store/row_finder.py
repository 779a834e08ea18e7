"""Finds the rows of chosen topics in a sealed segment by its row postings (see `row_postings`).

The postings may be a mapped file: only the entries, rows and names of the chosen topics are touched, and each is
trusted only if its check is right. Otherwise the result is None, and the caller reads the segment batch by batch. Any
thread may ask; the interpreter lock is free meanwhile.
"""

import cython

from everlog.base import StorageError, UsageError

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import check_of, copy, get32, get64, pointer, u32s, u64s
    from everlog.store.mapped_memory import address, ahead, faulted, unguard
    from everlog.store.row_postings import entry_check

_MAGIC = 0x4C525645
_VERSION = 1
_HEADER_BYTES = 32
_ENTRY_BYTES = 12
_MARK_BYTES = 20
_DIGIT_BITS = 11
_DIGITS = 1 << 11
_AHEAD = 8  # topics: how far ahead lists and names are prefetched


class RowFinder:
    """The row postings of a segment in a buffer."""

    def __init__(self, postings: object) -> None:
        self.postings = memoryview(postings)  # type: ignore[arg-type]
        self.size = len(self.postings)
        if self.size < _HEADER_BYTES:
            raise StorageError(f"{self.size} bytes are too few for row postings")
        self.raw = address(self.postings)
        header = bytearray(_HEADER_BYTES)
        start = pointer(header)
        with cython.nogil:
            lost = self._copy_header(start)
            unguard()
        self.topics = get32(start, 8)
        self.rows = get32(start, 12)
        self.rows_at = _HEADER_BYTES + _ENTRY_BYTES * self.topics
        self.names_at = self.rows_at + 4 * self.rows
        self.name_bytes = self.size - self.names_at
        if lost or get32(start, 0) != _MAGIC or check_of(start, 0, 28, 0) != get32(start, 28):
            raise StorageError("these are not row postings", hint="run: everlog repair DATA_DIR")
        if get32(start, 4) != _VERSION:
            raise StorageError("row postings of an unknown version", hint="read them with a newer Everlog")
        if self.names_at + get64(start, 16) != self.size:
            raise StorageError("the row postings are cut short", hint="run: everlog repair DATA_DIR")

    def _copy_header(self, target: bytearray) -> int:
        if faulted():
            return 1
        copy(target, 0, self.raw, 0, _HEADER_BYTES)
        return 0

    def count(self, ids: bytearray) -> int:
        """Return how many rows these topics have by their unchecked entries, or -1 if those can't be read."""
        wanted = len(ids) // 4
        chosen = u32s(ids)
        self._check_ids(chosen, wanted)
        with cython.nogil:
            total = self._count(chosen, wanted)
            unguard()
        return total

    def choose(self, ids: bytearray) -> "tuple[TopicTable, int] | None":
        """Return a table of these topics' names in the order of the ids (u32s, rising), and how many rows they have."""
        wanted = len(ids) // 4
        chosen = u32s(ids)
        self._check_ids(chosen, wanted)
        holder = bytearray(_MARK_BYTES)
        mark = pointer(holder)
        ends = bytearray(8 * (wanted + 1))
        end = u64s(ends)
        with cython.nogil:
            total = self._measure(chosen, wanted, end)
            unguard()
        if total < 0:
            return None
        names = bytearray(end[wanted] + 1)
        room = pointer(names)
        with cython.nogil:
            total = self._copy_names(chosen, wanted, end, room, mark)
            unguard()
        if total < 0:
            return None
        table = TopicTable()
        for k in range(wanted):
            if table.find_or_add(room, end[k], end[k + 1] - end[k]) != k:
                return None  # two topics with one name
        return table, total

    def find(self, ids: bytearray, first: int, stop: int) -> bytearray | None:
        """Return these topics' rows from `first` to before `stop`, rising: u64s of row << 32 | place among the ids.

        `choose` has checked the entries; whoever fetches the rows checks that each has its topic.
        """
        if not 0 <= first <= stop <= self.rows:
            raise UsageError(f"no rows {first} to {stop} among {self.rows}")
        wanted = len(ids) // 4
        chosen = u32s(ids)
        self._check_ids(chosen, wanted)
        ranges = bytearray(8 * wanted)
        bounds = u32s(ranges)
        with cython.nogil:
            total = self._bound(chosen, wanted, first, stop, bounds)
            unguard()
        if total < 0:
            return None
        found = bytearray(8 * total)
        rows = u64s(found)
        with cython.nogil:
            lost = self._fill(wanted, bounds, rows)
            unguard()
        if lost:
            return None
        if wanted > 1:
            return sort_rows(found, first, stop)
        return found

    def _check_ids(self, chosen: memoryview, wanted: int) -> int:
        for k in range(wanted):
            if chosen[k] >= self.topics or (k > 0 and chosen[k] <= chosen[k - 1]):
                raise UsageError(f"topic ids must rise and be below {self.topics}")
        return 0

    def _begin(self, topic: int, field: int) -> int:
        """Return where a topic's rows (field 0) or name (field 4) begin, which is where the topic before ends."""
        if topic == 0:
            return 0
        return get32(self.raw, _HEADER_BYTES + _ENTRY_BYTES * (topic - 1) + field)

    def _end(self, topic: int, field: int) -> int:
        return get32(self.raw, _HEADER_BYTES + _ENTRY_BYTES * topic + field)

    def _inside(self, topic: int) -> bool:
        """Return whether a topic's rows and name lie inside the postings."""
        if self._begin(topic, 0) > self._end(topic, 0) or self._end(topic, 0) > self.rows:
            return False
        return self._begin(topic, 4) <= self._end(topic, 4) and self._end(topic, 4) <= self.name_bytes

    def _checked(self, topic: int, mark: bytearray) -> bool:
        """Return whether a topic's entry, rows and name lie inside the postings and are as written."""
        if not self._inside(topic):
            return False
        begin = self._begin(topic, 0)
        end = self._end(topic, 0)
        name_begin = self._begin(topic, 4)
        name_end = self._end(topic, 4)
        check = entry_check(mark, topic, begin, end, name_begin, name_end)
        check = check_of(self.raw, self.rows_at + 4 * begin, 4 * (end - begin), check)
        check = check_of(self.raw, self.names_at + name_begin, name_end - name_begin, check)
        return check == self._end(topic, 8)

    def _count(self, chosen: memoryview, wanted: int) -> int:
        if faulted():
            return -1
        total = 0
        for k in range(wanted):
            total += self._end(chosen[k], 0) - self._begin(chosen[k], 0)
        return total

    def _measure(self, chosen: memoryview, wanted: int, end: memoryview) -> int:
        """Note where each name will end among the chosen; return -1 if an entry points outside."""
        if faulted():
            return -1
        for k in range(wanted):
            topic = chosen[k]
            if not self._inside(topic):
                return -1
            end[k + 1] = end[k] + self._end(topic, 4) - self._begin(topic, 4)
        return 0

    def _copy_names(self, chosen: memoryview, wanted: int, end: memoryview, room: bytearray, mark: bytearray) -> int:
        """Copy the names, checked, and return how many rows the topics have, or -1 if an entry is damaged."""
        if faulted():
            return -1
        total = 0
        for k in range(wanted):
            topic = chosen[k]
            if k + _AHEAD < wanted:
                ahead(self.raw, self.rows_at + 4 * self._begin(chosen[k + _AHEAD], 0))
                ahead(self.raw, self.names_at + self._begin(chosen[k + _AHEAD], 4))
            begin = self._begin(topic, 4)
            if not self._checked(topic, mark) or self._end(topic, 4) - begin != end[k + 1] - end[k]:
                return -1
            copy(room, end[k], self.raw, self.names_at + begin, end[k + 1] - end[k])
            total += self._end(topic, 0) - self._begin(topic, 0)
        return total

    def _bound(self, chosen: memoryview, wanted: int, first: int, stop: int, bounds: memoryview) -> int:
        """Note the part of each list from `first` to before `stop`; return how many rows, or -1 if an entry is bad."""
        if faulted():
            return -1
        total = 0
        for k in range(wanted):
            topic = chosen[k]
            if k + _AHEAD < wanted:
                ahead(self.raw, self.rows_at + 4 * self._begin(chosen[k + _AHEAD], 0))
            if not self._inside(topic):
                return -1
            begin = self._begin(topic, 0)
            end = self._end(topic, 0)
            bounds[2 * k] = self._lower(begin, end, first)
            bounds[2 * k + 1] = self._lower(bounds[2 * k], end, stop)
            total += bounds[2 * k + 1] - bounds[2 * k]
        return total

    def _lower(self, begin: int, end: int, row: int) -> int:
        """Return the first place from `begin` on that holds this row or a later one."""
        while begin < end:
            middle = (begin + end) >> 1
            if get32(self.raw, self.rows_at + 4 * middle) < row:
                begin = middle + 1
            else:
                end = middle
        return begin

    def _fill(self, wanted: int, bounds: memoryview, rows: memoryview) -> int:
        if faulted():
            return 1
        at = 0
        for k in range(wanted):
            for place in range(bounds[2 * k], bounds[2 * k + 1]):
                row = get32(self.raw, self.rows_at + 4 * place)
                rows[at] = row << 32 | k
                at += 1
        return 0


def to_flags(ids: bytearray, total: int) -> bytearray:
    """Return a byte for each of `total` topics, 1 for those whose ids (u32s) are given."""
    flags = bytearray(total)
    flag = pointer(flags)
    chosen = u32s(ids)
    for k in range(len(ids) // 4):
        if chosen[k] < total:
            flag[chosen[k]] = 1
    return flags


def sort_rows(found: bytearray, first: int, stop: int) -> bytearray:
    """Return what was found from row `first` to before `stop` (u64s of row << 32 | anything) sorted by row."""
    total = len(found) // 8
    spare = bytearray(8 * total)
    rows = u64s(found)
    other = u64s(spare)
    counters = bytearray(4 * _DIGITS)
    counts = u32s(counters)
    shift = 0
    while stop - first >> shift:
        with cython.nogil:
            sort_digit(rows, other, total, first, shift, counts)
        rows, other = other, rows
        found, spare = spare, found
        shift += _DIGIT_BITS
    return found


def sort_digit(rows: memoryview, other: memoryview, total: int, first: int, shift: int, counts: memoryview) -> None:
    """Sort `rows` into `other` by the digit of (row - first) at `shift`: one stable pass of a radix sort."""
    for digit in range(_DIGITS):
        counts[digit] = 0
    for i in range(total):
        counts[((rows[i] >> 32) - first) >> shift & (_DIGITS - 1)] += 1
    place = 0
    for digit in range(_DIGITS):
        here = counts[digit]
        counts[digit] = place
        place += here
    for i in range(total):
        digit = ((rows[i] >> 32) - first) >> shift & (_DIGITS - 1)
        other[counts[digit]] = rows[i]
        counts[digit] += 1
