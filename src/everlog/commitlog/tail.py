"""The most recent committed batches in memory, so that a reader who has caught up reads no file."""

import threading
from bisect import bisect_right

from everlog.base import Records

_COMPACT = 1024


class Tail:
    """Batches in order, within `limit_bytes`; at the limit the oldest that are written to the file are dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._batches: list[Records] = []
        self._bases: list[int] = []
        self._first = 0  # what stands before it was dropped, and is let go of now and then
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def add(self, batches: list[Records], written: int) -> None:
        """Take in newly committed batches; those that end at or below the offset `written` may be dropped."""
        with self._lock:
            for records in batches:
                self._batches.append(records)
                self._bases.append(records.base_offset)
                self.bytes += records.size
        if self.bytes > self.limit_bytes:
            self.trim(written)

    def trim(self, written: int) -> None:
        """Drop what is above the limit and written."""
        with self._lock:
            while self.bytes > self.limit_bytes and self._first < len(self._batches):
                oldest = self._batches[self._first]
                if oldest.base_offset + oldest.count > written:
                    break
                self._batches[self._first] = None  # type: ignore[call-overload]
                self._first += 1
                self.bytes -= oldest.size
            if self._first > _COMPACT and 2 * self._first > len(self._batches):
                del self._batches[: self._first], self._bases[: self._first]
                self._first = 0

    def read(self, offset: int, max_bytes: int) -> list[Records] | None:
        """Batches from the one that holds `offset` on, at least one; None when it is older than the tail."""
        with self._lock:
            if self._first == len(self._batches) or offset < self._bases[self._first]:
                return None
            row = bisect_right(self._bases, offset, self._first) - 1
            if offset >= self._bases[row] + self._batches[row].count:
                row += 1
            found: list[Records] = []
            size = 0
            for k in range(row, len(self._batches)):
                size += self._batches[k].size
                if found and size > max_bytes:
                    break
                found.append(self._batches[k])
            return found
