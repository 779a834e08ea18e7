"""Verified batches that a step read but did not use up, so that small steps do not read and verify them again.

Shared by all readers of a store: when sessions resume together, one of them reads. A read that uses up all it read
leaves nothing here. Any thread may use it.
"""

import threading
from collections import OrderedDict

from everlog.base import Records

_BESIDE_BYTES = 520  # that a batch takes beside its bytes: the objects that say where its columns stand, and its key


class RecentBatches:
    """Batches by shard and base offset, within `limit_bytes`; beyond it the least recently used are dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._batches: OrderedDict[tuple[int, int], Records] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, shard: int, batches: list[Records], offset: int) -> None:
        """Keep those of the batches that end after an offset."""
        with self._lock:
            for records in batches:
                if records.end_offset > offset and (shard, records.base_offset) not in self._batches:
                    self._batches[shard, records.base_offset] = records
                    self.held_bytes += records.size + _BESIDE_BYTES
            while self.held_bytes > self.limit_bytes:
                _, oldest = self._batches.popitem(last=False)
                self.held_bytes -= oldest.size + _BESIDE_BYTES

    def get(self, shard: int, base_offset: int, offset: int) -> list[Records]:
        """Return the batches from an offset on, without a gap, if one with this base offset is kept."""
        found: list[Records] = []
        with self._lock:
            first = self._batches.get((shard, base_offset))
            if first is None or not base_offset <= offset < first.end_offset:
                first = self._batches.get((shard, offset))
            while first is not None:
                found.append(first)
                self._batches.move_to_end((shard, first.base_offset))
                first = self._batches.get((shard, first.end_offset))
        return found

    def one(self, shard: int, base_offset: int) -> Records | None:
        """Return the batch with this base offset, if it is kept."""
        with self._lock:
            found = self._batches.get((shard, base_offset))
            if found is not None:
                self._batches.move_to_end((shard, base_offset))
            return found

    def forget(self, shard: int, first: int, stop: int) -> None:
        """Drop a shard's batches that begin from `first` to before `stop`, since the log has others now."""
        with self._lock:
            for key in [key for key in self._batches if key[0] == shard and first <= key[1] < stop]:
                self.held_bytes -= self._batches.pop(key).size + _BESIDE_BYTES

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._batches.clear()
            self.held_bytes = 0
