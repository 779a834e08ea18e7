"""What was read of the log for a session that is behind, kept for a moment: others with the same filters need it too.

A thousand sessions that come back together read each stretch of the log once, and one whose window is small does not
read what it had no room for again. Owned by the event loop's thread.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from everlog.store import Found, Lost, Reader, ReadResult
from everlog.topics import Filter

_MAX_BYTES = 4 << 20  # beyond, what was used longest ago is dropped
_STRETCHES = 32  # of one set of filters in one shard, looked through one by one

_Key: TypeAlias = tuple[tuple[Filter, ...], bool, int]  # filters, with publishers, shard


@dataclass(slots=True)
class _Stretch:
    """What a read from the offset `first` found; the next one goes on at `stop`."""

    key: _Key
    first: int
    stop: int
    size_bytes: int
    result: ReadResult


class SharedReads:
    """The stretches that were read last, within `max_bytes` over all."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.held_bytes = 0
        self.read_s = 0.0  # CPU that reading took
        self._max_bytes = max_bytes
        self._by_key: dict[_Key, list[_Stretch]] = {}  # newest last
        self._by_use: OrderedDict[int, _Stretch] = OrderedDict()  # by identity; used last, last
        self._is_used = False

    def read(
        self,
        reader: Reader,
        filters: tuple[Filter, ...],
        shard: int,
        at: int,
        max_records: int,
        max_bytes: int,
        publishers: bool = False,
    ) -> ReadResult:
        """Return what a shard has for these filters from an offset on, read now or a moment ago.

        With `publishers`, the reader is one whose records say who has published them.
        """
        self._is_used = True
        key = (filters, publishers, shard)
        for one in reversed(self._by_key.get(key, ())):
            if one.first <= at < one.stop:
                self._by_use.move_to_end(id(one))
                return one.result if at == one.first else _from(one.result, at)
        began = time.thread_time()
        result = reader.read_shard(shard, at, max_records, max_bytes)
        self.read_s += time.thread_time() - began
        self._keep(key, at, result)
        return result

    def age(self) -> None:
        """Let go of everything if nobody has read since the last call; called once a second."""
        if not self._is_used and self._by_use:
            self._by_key.clear()
            self._by_use.clear()
            self.held_bytes = 0
        self._is_used = False

    def _keep(self, key: _Key, first: int, result: ReadResult) -> None:
        stop = result.positions[0]
        size = sum(found.records.size for found in result.batches)
        if stop <= first or size > self._max_bytes:
            return
        stretches = self._by_key.setdefault(key, [])
        if len(stretches) == _STRETCHES:
            self._drop(stretches[0])
        one = _Stretch(key, first, stop, size, result)
        self._by_key.setdefault(key, stretches).append(one)
        self._by_use[id(one)] = one
        self.held_bytes += size
        while self.held_bytes > self._max_bytes:
            self._drop(next(iter(self._by_use.values())))

    def _drop(self, one: _Stretch) -> None:
        del self._by_use[id(one)]
        self.held_bytes -= one.size_bytes
        stretches = self._by_key[one.key]
        stretches.remove(one)
        if not stretches:
            del self._by_key[one.key]


def _from(result: ReadResult, offset: int) -> ReadResult:
    """Return a result without what lies below an offset."""
    batches = [found for found in result.batches if found.records.end_offset > offset]
    if batches:
        first = batches[0]
        batches[0] = Found(first.shard, first.records, first.rows, first.place_of(offset), first.stop)
        if not len(batches[0]):
            del batches[0]
    lost = tuple(
        Lost(one.shard, max(one.from_offset, offset), one.to_offset) for one in result.lost if one.to_offset > offset
    )
    return ReadResult(batches, result.positions, result.caught_up, lost)
