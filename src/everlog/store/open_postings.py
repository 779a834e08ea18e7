"""Row postings in memory that grow with a segment: for each topic the numbers of its rows, rising.

A topic's rows stand in slices of 1, 2, 4, … up to 1,024 rows; the word after a full slice says where the next one
begins. So a list grows without being moved, and a reader skips a slice at a time; a record costs 4 to 10 bytes and a
topic 16, plus a quarter as room to grow. The head of a list, in u32s: where its first slice begins, where the next row
goes, where the current slice ends, how many rows there are. Not for two threads at once.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import Records
    from everlog.base.memory import get32, pointer, u32s, u64s
    from everlog.store.row_finder import sort_rows

_HEAD_WORDS = 4
_SLICE_ROWS = 1024
_FIRST_WORDS = 128
_ROW_BYTES = 25  # in the batch that is made, without properties and payload


class OpenPostings:
    """The postings of one segment; rows count from 0 and are added batch by batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.topics = 0
        self.used = 0
        self.heads = bytearray(4 * _FIRST_WORDS)
        self.words = bytearray(4 * _FIRST_WORDS)

    @property
    def memory_bytes(self) -> int:
        """How much memory the postings take."""
        return len(self.heads) + len(self.words)

    def add(self, records: Records) -> int:
        """Take in the next batch, which was verified, and return how many rows there are then."""
        raw = pointer(records.data)
        at = records.start + records.layout.topics
        known = records.table.count
        topics = self.topics
        for i in range(records.count):
            topic = get32(raw, at + 4 * i)
            if topic >= known:
                raise UsageError(f"a batch uses topic {topic} of a segment with {known} topics")
            if topic >= topics:
                topics = topic + 1
        if self.rows + records.count > 0xFFFFFFFF:
            raise UsageError("row postings hold at most 2**32 rows")
        self._reserve(topics)
        self.topics = topics
        head = u32s(self.heads)
        word = u32s(self.words)
        row = self.rows
        for i in range(records.count):
            h = _HEAD_WORDS * get32(raw, at + 4 * i)
            place = head[h + 1]
            if place == head[h + 2]:
                place = self._begin_slice(head, h)
                word = u32s(self.words)
            word[place] = row
            head[h + 1] = place + 1
            head[h + 3] += 1
            row += 1
        self.rows = row
        return row

    def _reserve(self, topics: int) -> int:
        need = 4 * _HEAD_WORDS * topics
        if need > len(self.heads):
            self.heads = self.heads + bytes(need + need // 4 - len(self.heads))
        return 0

    def _begin_slice(self, head: memoryview, h: int) -> int:
        """Begin a new slice for a topic whose slices are full, and return where."""
        rows = head[h + 3]
        size = min(rows + 1, _SLICE_ROWS)  # full slices hold 1, 3, 7, … rows
        start = self.used
        self.used += size + 1
        if 4 * self.used > len(self.words):
            self.words = self.words + bytes(len(self.words) // 16 * 4 + 4 * (_SLICE_ROWS + 1))
        if rows == 0:
            head[h] = start
        else:
            u32s(self.words)[head[h + 2]] = start
        head[h + 1] = start
        head[h + 2] = start + size
        return start

    def count(self, ids: bytearray) -> int:
        """Return how many rows these topics (u32s) have."""
        chosen = u32s(ids)
        head = u32s(self.heads)
        total = 0
        for k in range(len(ids) // 4):
            if chosen[k] < self.topics:
                total += head[_HEAD_WORDS * chosen[k] + 3]
        return total

    def find(self, ids: bytearray, first: int, stop: int) -> bytearray:
        """Return the rows of these topics from `first` to before `stop`, rising: u64s of row << 32 | topic id."""
        if not 0 <= first <= stop <= self.rows:
            raise UsageError(f"no rows {first} to {stop} among {self.rows}")
        chosen = u32s(ids)
        wanted = len(ids) // 4
        total = 0
        for k in range(wanted):
            total += self._walk(chosen[k], first, stop, None, 0)
        found = bytearray(8 * total)
        at = 0
        for k in range(wanted):
            at += self._walk(chosen[k], first, stop, found, at)
        return sort_rows(found, first, stop) if wanted > 1 and total > 1 else found

    def _walk(self, topic: int, first: int, stop: int, found: bytearray | None, at: int) -> int:
        """Count a topic's rows from `first` to before `stop`, and write them to `found` if there is room."""
        if topic >= self.topics:
            return 0
        head = u32s(self.heads)
        word = u32s(self.words)
        left = head[_HEAD_WORDS * topic + 3]
        place = head[_HEAD_WORDS * topic]
        size = 1
        total = 0
        while left > 0:
            here = min(size, left)
            if word[place + here - 1] >= first:
                begin = place if word[place] >= first else self._lower(place, place + here, first)
                end = place + here
                if word[end - 1] >= stop:
                    end = self._lower(begin, end, stop)
                if found is not None:
                    self._write(topic, begin, end, found, at + total)
                total += end - begin
                if end < place + here:
                    break
            left -= here
            if left > 0:
                place = word[place + size]
                size = min(2 * size, _SLICE_ROWS)
        return total

    def _lower(self, begin: int, end: int, row: int) -> int:
        """Return the first place from `begin` on that holds this row or a later one."""
        word = u32s(self.words)
        while begin < end:
            middle = (begin + end) >> 1
            if word[middle] < row:
                begin = middle + 1
            else:
                end = middle
        return begin

    def _write(self, topic: int, begin: int, end: int, found: bytearray, at: int) -> int:
        word = u32s(self.words)
        out = u64s(found)
        for place in range(begin, end):
            row = word[place]
            out[at] = row << 32 | topic
            at += 1
        return 0


def pick(
    found: bytearray, start: int, stop: int, first: int, records: Records, max_bytes: int
) -> "tuple[bytearray, int]":
    """Return the rows `start` to before `stop` of what `find` found as u32s, counted from row `first`, and their bytes.

    They are rows of a verified batch; fewer if `max_bytes` is reached, but at least one.
    """
    if not 0 <= start < stop <= len(found) // 8:
        raise UsageError(f"no rows {start} to {stop} among the {len(found) // 8} that were found")
    rows = bytearray(4 * (stop - start))
    source = u64s(found)
    target = u32s(rows)
    raw = pointer(records.data)
    payloads = records.start + records.layout.payload_ends
    properties = records.start + records.layout.property_ends
    size = 0
    taken = 0
    for k in range(start, stop):
        row = (source[k] >> 32) - first
        if not 0 <= row < records.count:
            raise UsageError(f"row {row} is not in a batch of {records.count}")
        more = _ROW_BYTES + get32(raw, payloads + 4 * row + 4) - get32(raw, payloads + 4 * row)
        if records.with_properties:
            more += get32(raw, properties + 4 * row + 4) - get32(raw, properties + 4 * row)
        if taken and size + more > max_bytes:
            break
        target[taken] = row
        taken += 1
        size += more
    return rows[: 4 * taken], size
