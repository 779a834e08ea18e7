"""The batch index of a segment: where each batch stands, as columns that grow while it is written or scanned."""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import cython

if not cython.compiled:
    from everlog.base import Records
    from everlog.commitlog.array_push import push32, push64

ROW_BYTES = 40


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """Columns with a row for each batch that can be trusted.

    Batches do not stand back to back (a frame stands between them): read a range that covers rows i to j and open
    batch k of them as `Records(data, positions[k] - range_start, table)`.
    """

    offsets: memoryview  # Q: of the first record
    first_times: memoryview  # Q
    last_times: memoryview  # Q
    positions: memoryview  # Q: of the batch's first byte in the segment file
    sizes: memoryview  # I
    counts: memoryview  # I

    def __len__(self) -> int:
        return len(self.offsets)

    def find(self, offset: int) -> int:
        """Return the row that holds an offset, or the first one after it; the number of rows if there is none."""
        row = bisect_right(self.offsets, offset) - 1
        return row if row >= 0 and offset < self.offsets[row] + self.counts[row] else row + 1

    def find_time(self, time_us: int) -> int:
        """Return the first row with a record at or after a time; the number of rows if there is none."""
        return bisect_left(self.last_times, time_us)


class GrowingIndex:
    """The index of one segment. One thread adds rows, none removes them; any thread may look at the rows so far."""

    def __init__(self) -> None:
        self._offsets, self._first_times, self._last_times = array("Q"), array("Q"), array("Q")
        self._positions, self._sizes, self._counts = array("Q"), array("I"), array("I")
        self._snapshot: BatchIndex | None = None

    def __len__(self) -> int:
        return len(self._counts)  # the last column to grow

    @property
    def _columns(self) -> tuple["array[int]", ...]:
        return self._offsets, self._first_times, self._last_times, self._positions, self._sizes, self._counts

    def add(self, records: Records, position: int) -> int:
        """Add a row for a batch at a position of the file."""
        push64(self._offsets, records.base_offset)
        push64(self._first_times, records.first_time)
        push64(self._last_times, records.last_time)
        push64(self._positions, position)
        push32(self._sizes, records.size)
        push32(self._counts, records.count)
        return 0

    def to_bytes(self) -> bytes:
        """Return the columns one after the other, as the side file holds them."""
        return b"".join(column.tobytes() for column in self._columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> "GrowingIndex":
        """Return the index in a checked section of a side file."""
        index = cls()
        rows = len(data) // ROW_BYTES
        at = 0
        for column in index._columns:
            size = rows * column.itemsize
            column.frombytes(data[at : at + size])
            at += size
        return index

    def snapshot(self) -> BatchIndex:
        """Return the rows so far, as a value that later rows do not change."""
        rows = len(self)
        last = self._snapshot
        if last is None or len(last) != rows:
            last = self._snapshot = BatchIndex(*(memoryview(column[:rows]) for column in self._columns))
        return last

    def find(self, offset: int) -> int:
        """Return what `BatchIndex.find` would, without a snapshot."""
        row = bisect_right(self._offsets, offset, 0, len(self)) - 1
        return row if row >= 0 and offset < self.end_offset(row) else row + 1

    def find_time(self, time_us: int) -> int:
        """Return what `BatchIndex.find_time` would, without a snapshot."""
        return bisect_left(self._last_times, time_us, 0, len(self))

    def range_of(self, first: int, stop_row: int, max_bytes: int) -> int:
        """Return the end of the rows from `first` on that lie within `max_bytes` of the file, at least one row."""
        limit = self._positions[first] + max_bytes
        last = bisect_right(self._positions, limit, first, stop_row)
        while last > first + 1 and self.file_end(last - 1) > limit:
            last -= 1
        return max(last, first + 1)

    def position(self, row: int) -> int:
        """Return where a row's batch stands in the file."""
        return self._positions[row]

    def file_end(self, row: int) -> int:
        """Return where a row's batch ends in the file."""
        return self._positions[row] + self._sizes[row]

    def offset(self, row: int) -> int:
        """Return the offset of a row's first record."""
        return self._offsets[row]

    def end_offset(self, row: int) -> int:
        """Return the offset after a row's last record."""
        return self._offsets[row] + self._counts[row]

    def times(self) -> tuple[int, int]:
        """Return the times of the first and the last record, 0 if there is none."""
        rows = len(self)
        return (self._first_times[0], self._last_times[rows - 1]) if rows else (0, 0)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the columns take."""
        return ROW_BYTES * len(self)
