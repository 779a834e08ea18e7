"""What a reader wants of a segment that has row postings in memory, found a window of rows at a time.

Rows of several batches are returned as one batch; a batch without any is not read at all. Owned by one reader.
"""

from bisect import bisect_left

from everlog.base import Records, gather
from everlog.commitlog import ShardLog
from everlog.store.open_postings import pick
from everlog.store.recent_batches import RecentBatches
from everlog.store.selection import SPARSE, WINDOW_ROWS
from everlog.store.topic_mask import SharedPostings, matching_ids
from everlog.store.unsealed_segment import UnsealedSegment
from everlog.topics import Filter

AHEAD_BYTES = 64 << 10  # read from the log at once if the next batch is wanted too
TOUCH_BYTES = 4 << 20  # of batches whose rows go into one batch
SPAN_US = 0xFFFFFFFF  # what the times of one batch can span


class OpenSelection:
    """The rows of a segment that some filters want, and the window of them that a reader is in."""

    def __init__(
        self,
        segment: UnsealedSegment,
        filters: tuple[Filter, ...],
        shared: SharedPostings,
        log: ShardLog,
        recent: RecentBatches,
        shard: int,
        publishers: bool = False,
    ) -> None:
        self.segment = segment
        self._filters = filters
        self._shared = shared
        self._log = log
        self._recent = recent
        self._shard = shard
        self._publishers = publishers
        self._ids = bytearray()
        self._topics = 0  # so many topics were known when the ids were chosen
        self._rows = bytearray()
        self._found = memoryview(b"").cast("Q")
        self._first = self._stop = 0  # rows that the window covers
        self._ahead: list[Records] = []  # within one `take`, the current batch and those read with it

    def is_sparse(self) -> bool:
        """Return whether so few rows are wanted that finding them pays."""
        self._choose()
        postings = self.segment.postings
        return postings.count(self._ids) * SPARSE <= postings.rows

    def take(self, offset: int, max_records: int, max_bytes: int) -> tuple[Records | None, int, int]:
        """Return the next wanted records from an offset on, the offset after them, and how many bytes were read.

        There are None if the postings have no more, or turn out not to fit the segment.
        """
        segment = self.segment
        base = segment.base_offset
        covered = segment.covered - base
        row = offset - base
        parts: list[tuple[Records, bytearray]] = []
        touched = 0
        while row < covered and max_records > 0 and max_bytes > 0 and touched < TOUCH_BYTES:
            if not self._first <= row < self._stop:
                self._look(row, covered, max_records)
            place = bisect_left(self._found, row << 32)
            if place == len(self._found):
                row = self._stop
                continue
            row = self._found[place] >> 32
            if not parts and (found := self._single(row, place, max_records, max_bytes)) is not None:
                return found, found.end_offset, 0
            records = self._batch(base + row)
            if records is None:
                segment.is_usable = False
                break
            if parts and records.last_time - parts[0][0].first_time > SPAN_US:
                break
            first = records.base_offset - base
            stop = bisect_left(self._found, records.end_offset - base << 32, place)
            rows, size = pick(self._rows, place, min(stop, place + max_records), first, records, max_bytes)
            if parts and parts[-1][0] is records:  # the window ended inside the batch
                parts[-1] = (records, parts[-1][1] + rows)
            else:
                parts.append((records, rows))
                touched += records.size
            max_records -= len(rows) // 4
            max_bytes -= size
            row = first + int.from_bytes(rows[-4:], "little") + 1
        if row < covered:
            self._recent.put(self._shard, self._ahead, base + row)
        self._ahead = []
        return gather([*parts], True) if parts else None, base + row, touched

    def _single(self, row: int, place: int, max_records: int, max_bytes: int) -> Records | None:
        """Fetch rows one by one from the segment's file, from a place in the window on; None if that can't be."""
        segment = self.segment
        row_reader = segment.row_reader(self._log, row)
        if row_reader is None or segment.table is None:
            return None
        stop = bisect_left(self._found, row_reader[1] << 32, place, min(len(self._found), place + max_records))
        every, table, named = segment.every_topic, segment.table, self._publishers
        records = row_reader[0].take(self._rows, place, stop, every, table, max_bytes, named)
        if records is None:
            segment.drop_row_reader()
        return records

    def _choose(self) -> None:
        """Bring the wanted topics up to date with the names that the segment has by now."""
        segment = self.segment
        table = segment.table
        known = 0 if table is None else len(table)
        if table is None or known == self._topics:
            return
        topics, ids = segment.choices.get(self._filters, (0, self._ids))
        if topics != known:
            ids = self._ids + matching_ids(table, self._filters, self._topics, known, self._shared)
            if len(ids) > 4 * len(self._filters):  # of wildcards
                segment.share(self._filters, known, ids)
        self._topics = known
        self._ids = ids  # the rows of new topics come after the window

    def _look(self, row: int, covered: int, max_records: int) -> None:
        """Move the window to a row, wide enough that looking costs little beside fetching."""
        postings = self.segment.postings
        several = max(WINDOW_ROWS, 4 * max_records, len(self._ids))
        with self.segment.lock:
            span = several * covered // max(postings.count(self._ids), 1)
            stop = min(covered, row + max(span, 1))
            self._found = memoryview(b"").cast("Q")
            self._rows = postings.find(self._ids, row, stop)
        self._found = memoryview(self._rows).cast("Q")
        self._first, self._stop = row, stop

    def _batch(self, offset: int) -> Records | None:
        """Return the batch that holds an offset; None if it is missing or not the one in the postings."""
        last = None
        for last in self._ahead:
            if last.base_offset <= offset < last.end_offset:
                return last
        base = self.segment.batch_at(offset)
        records = self._recent.one(self._shard, base)
        if records is not None:
            batches = [records]
        elif last is not None and base == last.end_offset:
            batches = self._log.read(offset, AHEAD_BYTES)
        else:
            batches = self._log.read(offset, 1)
            self._recent.put(self._shard, batches, offset)
        self._ahead = batches
        if not batches or batches[0].table is not self.segment.table:
            return None
        return batches[0] if batches[0].base_offset <= offset < batches[0].end_offset else None
