"""What a reader wants of one sealed segment: nothing, everything, a large part, or rows that its lists name.

Rows are looked up a window at a time, so that a reader's memory follows what it pulls and not what the segment holds.
Owned by one reader.
"""

from bisect import bisect_left
from collections.abc import Sequence

from everlog.base import Records, TopicTable
from everlog.store.rowfinder import to_flags
from everlog.store.sealed import SealedSegment
from everlog.store.wanted import Wanted
from everlog.topics import Filter

SPARSE = 4  # fewer than one row in so many wanted: fetch rows one by one; else read all and leave rows out
WINDOW_ROWS = 4096  # found at once, at least


class Selection:
    """The part of a segment that some filters want. `ids` is None unless rows are to be fetched one by one."""

    def __init__(self, segment: SealedSegment, filters: Sequence[Filter]) -> None:
        """StorageError when the index can't be trusted."""
        self.segment = segment
        self.ids: bytearray | None = None
        self.wanted: Wanted | None = None
        topics = segment.match(filters)
        self.is_empty = not topics
        self.is_all = len(topics) == segment.index.topic_count
        self.fits = True  # False once the segment turned out not to be what its index says
        self._table = TopicTable()
        self._total = 0
        self._found = memoryview(b"").cast("Q")
        self._rows = bytearray()
        self._first = self._stop = 0  # rows that the window covers
        if self.is_empty or self.is_all:
            return
        ids = bytearray(topics.to_array().tobytes())
        if segment.finder.count(ids) * SPARSE > segment.finder.rows:
            self.wanted = Wanted(segment.table, to_flags(ids, segment.index.topic_count))
            return
        chosen = segment.finder.choose(ids)
        if chosen is None:
            self.fits = False
            return
        self._table, self._total = chosen
        self.ids = ids

    def take(self, offset: int, max_records: int, max_bytes: int) -> tuple[Records | None, int]:
        """The next wanted records from an offset on, as one batch, and the offset behind them.

        None with the segment's end when there are no more; None with the offset itself, and `fits` False, when rows
        are not what the lists say.
        """
        assert self.ids is not None
        segment = self.segment
        row = segment.row_at(offset)
        while row < segment.finder.rows:
            if not self._first <= row < self._stop and not self._look(row, max_records):
                self.fits = False
                return None, offset
            place = bisect_left(self._found, row << 32)
            if place < len(self._found):
                stop = min(len(self._found), place + max_records)
                records = segment.taker.take(self._rows, place, stop, self.ids, self._table, max_bytes)
                if records is None:
                    self.fits = False
                    return None, offset
                is_last = place + len(records) == len(self._found) and self._stop == segment.finder.rows
                return records, segment.end_offset if is_last else records.end_offset
            row = self._stop
        return None, segment.end_offset

    def _look(self, row: int, max_records: int) -> bool:
        """Move the window to a row; wide enough that looking costs little beside fetching."""
        assert self.ids is not None
        finder = self.segment.finder
        several = max(WINDOW_ROWS, 4 * max_records, len(self.ids))
        span = several * finder.rows // max(self._total, 1)
        stop = min(finder.rows, row + max(span, 1))
        rows = finder.find(self.ids, row, stop)
        if rows is None:
            return False
        self._found = memoryview(b"").cast("Q")
        self._rows = rows
        self._found = memoryview(rows).cast("Q")
        self._first, self._stop = row, stop
        return True
