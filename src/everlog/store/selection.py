"""What a reader wants of one sealed segment: nothing, everything, a large part, or rows found by its postings.

Rows are looked up a window at a time, so that a reader's memory depends on what it reads, not on what the segment
holds. Owned by one reader.
"""

from bisect import bisect_left

from everlog.base import Records, StorageError, row_column
from everlog.store.choice import Choice
from everlog.store.row_finder import to_flags
from everlog.store.sealed_segment import SealedSegment
from everlog.topics import Filter

SPARSE = 4  # if fewer than one row in so many is wanted, rows are fetched one by one
WINDOW_ROWS = 4096  # found at once, at least
SHARED_CHOICES = 16  # per segment; beyond it the oldest is dropped
SHARED_TOPICS = 65_536  # a choice of more topics is its reader's alone


def choose(segment: SealedSegment, filters: tuple[Filter, ...]) -> Choice:
    """Return what the filters want of a segment; raise StorageError if its index can't be trusted."""
    known = segment.choices.get(filters)
    if known is not None:
        return known
    choice = _choose(segment, filters)
    if choice.table is not None and len(choice.table) <= SHARED_TOPICS:
        segment.choices[filters] = choice
        for oldest in list(segment.choices)[:-SHARED_CHOICES]:
            segment.choices.pop(oldest, None)
    return choice


def _choose(segment: SealedSegment, filters: tuple[Filter, ...]) -> Choice:
    topics = segment.match(filters)
    if not topics:
        return Choice(is_empty=True)
    if len(topics) == segment.index.topic_count:
        return Choice(is_all=True)
    ids = row_column(topics.to_array())
    if segment.finder.count(ids) * SPARSE > segment.finder.rows:
        return Choice(mask=to_flags(ids, segment.index.topic_count))
    chosen = segment.finder.choose(ids)
    if chosen is None:
        raise StorageError(f"the row postings of the segment at offset {segment.view.base_offset} fail their check")
    chosen[0].publishers = segment.table.publishers
    return Choice(ids=ids, table=chosen[0], total=chosen[1])


class Selection:
    """The part of a segment that some filters want, and the window of its rows that a reader is in."""

    def __init__(self, segment: SealedSegment, filters: tuple[Filter, ...], publishers: bool = False) -> None:
        """Raise StorageError if the index can't be trusted. With `publishers`, records say who has published them."""
        self.segment = segment
        self._publishers = publishers
        self.choice = choose(segment, filters)
        self.fits = True  # False once the segment turned out not to be what its index says
        self._found = memoryview(b"").cast("Q")
        self._rows = bytearray()
        self._first = self._stop = 0  # rows that the window covers

    def take(self, offset: int, max_records: int, max_bytes: int) -> tuple[Records | None, int]:
        """Return the next wanted records from an offset on, as one batch, and the offset after them.

        If there are no more: None and the segment's end. If rows are not what the postings say: None and the offset
        itself, and `fits` becomes False.
        """
        segment, choice = self.segment, self.choice
        assert choice.ids is not None
        assert choice.table is not None
        row = segment.row_at(offset)
        while row < segment.finder.rows:
            if not self._first <= row < self._stop and not self._look(row, max_records):
                self.fits = False
                return None, offset
            place = bisect_left(self._found, row << 32)
            if place < len(self._found):
                stop = min(len(self._found), place + max_records)
                records = segment.row_reader.take(
                    self._rows, place, stop, choice.ids, choice.table, max_bytes, self._publishers
                )
                if records is None:
                    self.fits = False
                    return None, offset
                is_last = place + len(records) == len(self._found) and self._stop == segment.finder.rows
                return records, segment.end_offset if is_last else records.end_offset
            row = self._stop
        return None, segment.end_offset

    def _look(self, row: int, max_records: int) -> bool:
        """Move the window to a row, wide enough that looking costs little beside fetching."""
        choice, finder = self.choice, self.segment.finder
        assert choice.ids is not None
        several = max(WINDOW_ROWS, 4 * max_records, len(choice.ids))
        span = several * finder.rows // max(choice.total, 1)
        stop = min(finder.rows, row + max(span, 1))
        rows = finder.find(choice.ids, row, stop)
        if rows is None:
            return False
        self._found = memoryview(b"").cast("Q")
        self._rows = rows
        self._found = memoryview(rows).cast("Q")
        self._first, self._stop = row, stop
        return True
