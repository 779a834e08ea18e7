"""The most recent committed batches in memory, so that a reader that has caught up reads no file."""

import threading
from sys import getsizeof

import cython

if not cython.compiled:
    from everlog.base import Records

_COMPACT = 1024
_BESIDE_BYTES = 376  # that a batch takes beside its block: the objects that say where its columns stand


class Tail:
    """Batches in order, within `limit_bytes` of memory; beyond it the oldest written ones are dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._batches: list[Records] = []
        self._first = 0  # those before it are dropped, and deleted now and then
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def add(self, batches: list[Records], written: int) -> int:
        """Take in newly committed batches; those that end at or below the offset `written` may be dropped."""
        with self._lock:
            for records in batches:
                self._batches.append(records)
                self.held_bytes += self._memory(records)
        if self.held_bytes > self.limit_bytes:
            self.trim(written)
        return 0

    def trim(self, written: int) -> int:
        """Drop written batches beyond the limit."""
        with self._lock:
            while self.held_bytes > self.limit_bytes and self._first < len(self._batches):
                oldest = self._batches[self._first]
                if oldest.end_offset > written:
                    break
                self._batches[self._first] = None  # type: ignore[call-overload]
                self._first += 1
                self.held_bytes -= self._memory(oldest)
            if self._first > _COMPACT and 2 * self._first > len(self._batches):
                del self._batches[: self._first]
                self._first = 0
        return 0

    def forget(self, below: int) -> int:
        """Drop what ends at or below an offset, since the file holds something else there now."""
        with self._lock:
            while self._first < len(self._batches):
                oldest = self._batches[self._first]
                if oldest.end_offset > below:
                    break
                self._batches[self._first] = None  # type: ignore[call-overload]
                self._first += 1
                self.held_bytes -= self._memory(oldest)
        return 0

    def read(self, offset: int, max_bytes: int) -> list[Records] | None:
        """Return batches from the one that holds `offset` on, at least one; None if it is older than the tail."""
        with self._lock:
            count = len(self._batches)
            if self._first == count:
                return None
            records = self._batches[count - 1]
            if offset >= records.base_offset:  # usually it was just committed
                return [records] if offset < records.end_offset else []
            records = self._batches[self._first]
            if offset < records.base_offset:
                return None
            found: list[Records] = []
            size = 0
            for k in range(self._row(offset), count):
                records = self._batches[k]
                size += records.size
                if found and size > max_bytes:
                    break
                found.append(records)
            return found

    def _memory(self, records: Records) -> int:
        """Return how much memory a batch takes: its block, or its part of one, and what is beside that."""
        own = getsizeof(records.data) if len(records.data) == records.size else records.size
        return own + _BESIDE_BYTES

    def _row(self, offset: int) -> int:
        """Return the first batch that ends after an offset."""
        low, high = self._first, len(self._batches) - 1
        while low < high:
            middle = (low + high) // 2
            records = self._batches[middle]
            if records.end_offset > offset:
                high = middle
            else:
                low = middle + 1
        return low
