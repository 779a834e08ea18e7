"""Row postings in memory of segments without a side file: the open one, and those not sealed yet.

Reads make them and pay for them; appends do not know of them. A segment's postings are extended to what is committed
once reads have passed over as many unwanted records as that takes: a lone reader passes over each record once and needs
no postings; of many readers, the second makes them for all. `UnsealedSegments` bounds their memory for a whole store;
beyond the bound the postings end where they are, and reads go on batch by batch.
"""

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from everlog.base import StorageError, TopicTable, Unavailable, row_column
from everlog.commitlog import SegmentView, ShardLog
from everlog.store.open_postings import OpenPostings
from everlog.store.row_reader import RowReader
from everlog.store.sealed_segment import mapped_segment
from everlog.topics import Filter

EXTEND_BYTES = 1 << 20  # read from the log at once
WORTH = 1.5  # records passed over, or about to be, for each that the postings lack; a lone reader never gets above 1
MAPPED_ROWS = 4096  # with fewer rows, batches are read whole
MAX_SEGMENTS = 64  # per store; beyond it the least recently used is dropped
SHARED_CHOICES = 16  # per segment; beyond it the oldest is dropped


class UnsealedSegment:
    """The rows of one segment by topic, from its first record to before offset `covered`. Any thread may ask."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset  # the open segment has none yet
        self.covered = base_offset
        self.table: TopicTable | None = None  # the names of the topics; None before the first batch
        self.postings = OpenPostings()
        self.choices: dict[tuple[Filter, ...], tuple[int, bytearray]] = {}  # topics known then, ids of those wanted
        self.missed = 0  # unwanted records from `covered` on that reads passed over
        self.is_usable = True  # False if a batch is missing or another one: then batches are read
        self.is_kept = True  # False once it was dropped: a reader asks again
        self.lock = threading.Lock()
        self._bases = array("Q")  # of the batches
        self.every_topic = bytearray()  # the topic ids from 0 on, as u32s; replaced, never changed
        self._row_reader: tuple[RowReader, int] | None = None
        self._tried_rows = 0  # so many rows were covered when the file was last mapped

    @property
    def memory_bytes(self) -> int:
        """About how much memory the postings take."""
        return self.postings.memory_bytes + 8 * len(self._bases) + len(self.every_topic)

    def holds(self, offset: int) -> bool:
        """Return whether an offset belongs to the segment."""
        return self.base_offset <= offset < self.end_offset

    def batch_at(self, offset: int) -> int:
        """Return the base offset of the batch that holds a covered offset."""
        return self._bases[bisect_right(self._bases, offset) - 1]

    def row_reader(self, log: ShardLog, row: int) -> tuple[RowReader, int] | None:
        """Return a reader of single rows of the file and how many rows it has; None if it lacks this one."""
        row_reader = self._row_reader
        if (row_reader is None or row >= row_reader[1]) and self.postings.rows >= max(
            2 * self._tried_rows, MAPPED_ROWS
        ):
            with self.lock:
                row_reader = self._row_reader = self._map(log)
        return row_reader if row_reader is not None and row < row_reader[1] else None

    def drop_row_reader(self) -> None:
        """Read batches whole, since the file does not fit the postings, or not yet."""
        self._row_reader = None

    def _map(self, log: ShardLog) -> tuple[RowReader, int] | None:
        rows = self._tried_rows = self.postings.rows  # before the file is looked at, so that it holds them
        self.every_topic = self.every_topic + row_column(range(len(self.every_topic) // 4, self.postings.topics))
        try:
            view = next(view for view in log.segments() if view.base_offset == self.base_offset)
            row_reader = _row_reader_of(view)
        except (StopIteration, StorageError, Unavailable, OSError, ValueError):
            return None
        return None if row_reader is None else (row_reader, min(rows, row_reader.rows))

    def share(self, filters: tuple[Filter, ...], topics: int, ids: bytearray) -> None:
        """Share which of so many topics are wanted with readers of the same filters; nobody changes the ids."""
        self.choices[filters] = (topics, ids)
        for oldest in list(self.choices)[:-SHARED_CHOICES]:
            self.choices.pop(oldest, None)

    def passed_over(self, offset: int, records: int) -> None:
        """Note that a read from an offset on passed over so many unwanted records."""
        if offset >= self.covered:
            self.missed += records

    def cover(self, log: ShardLog, offset: int, committed: int, has_room: Callable[["UnsealedSegment"], bool]) -> bool:
        """Return whether the postings hold an offset, after they were extended if that is worth it."""
        stop = min(committed, self.end_offset)
        missing = stop - self.covered
        if missing > 0 and self.missed + stop - offset >= WORTH * missing and self.is_kept:
            with self.lock:
                self._extend(log, stop, has_room)
        return self.is_usable and offset < self.covered

    def _extend(self, log: ShardLog, stop: int, has_room: Callable[["UnsealedSegment"], bool]) -> None:
        while self.covered < stop and self.is_kept and has_room(self):
            batches = log.read(self.covered, EXTEND_BYTES)
            if not batches:
                break
            for records in batches:
                if records.base_offset != self.covered:
                    self.is_usable = False
                    return
                if self.table is None:
                    self.table = records.table
                elif self.table is not records.table:  # it is the next segment's
                    self.end_offset = self.covered
                    return
                self.postings.add(records)
                self._bases.append(records.base_offset)
                self.covered = records.end_offset
        self.missed = 0


class UnsealedSegments:
    """The postings of all shards of a store, within `limit_bytes` together. Any thread may use it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._segments: OrderedDict[tuple[int, int], UnsealedSegment] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """How much memory all postings take."""
        with self._lock:
            return self._held()

    def at(self, shard: int, base_offset: int, end_offset: int) -> UnsealedSegment:
        """Return a shard's segment with these offsets."""
        key = (shard, base_offset)
        with self._lock:
            segment = self._segments.get(key)
            if segment is None:
                segment = self._segments[key] = UnsealedSegment(base_offset, end_offset)
                while len(self._segments) > MAX_SEGMENTS:
                    self._let_go(next(iter(self._segments)))
            self._segments.move_to_end(key)
            return segment

    def has_room(self, segment: UnsealedSegment) -> bool:
        """Return whether a segment's postings may grow; the least recently used of others make room."""
        with self._lock:
            for key in [key for key, other in self._segments.items() if other is not segment]:
                if self._held() <= self.limit_bytes:
                    break
                self._let_go(key)
            return self._held() <= self.limit_bytes

    def keep_only(self, shard: int, bases: set[int]) -> None:
        """Drop a shard's segments but these: the others are sealed or removed."""
        with self._lock:
            for key in [key for key in self._segments if key[0] == shard and key[1] not in bases]:
                self._let_go(key)

    def _held(self) -> int:
        return sum(segment.memory_bytes for segment in self._segments.values())

    def _let_go(self, key: tuple[int, int]) -> None:
        self._segments.pop(key).is_kept = False


def _row_reader_of(view: SegmentView) -> RowReader | None:
    """Return a reader of single rows of a segment whose offsets have no gap, else None."""
    file = mapped_segment(view)
    batches = view.batches()
    if not len(batches):
        return None
    rows = int(batches.offsets[-1]) + int(batches.counts[-1]) - view.base_offset
    row_reader = RowReader(file, batches.offsets, batches.positions, batches.sizes, batches.counts)
    return row_reader if row_reader.rows == rows and batches.offsets[0] == view.base_offset else None
