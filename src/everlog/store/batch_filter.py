"""Chooses the rows of batches that come from elsewhere than a log of this machine, such as an object of a bucket."""

from collections.abc import Iterable

from everlog.base import GONE, Records, select
from everlog.store.read_result import Found
from everlog.store.topic_mask import SharedPostings, TopicMasks
from everlog.topics import Filter


class BatchFilter:
    """What some filters want of batches, which come segment by segment; None wants everything. For one thread."""

    def __init__(self, filters: Iterable[Filter] | None) -> None:
        self._wants_all = filters is None
        self._masks = TopicMasks(tuple(filters or ()), SharedPostings())

    def choose(self, shard: int, records: Records, start: int, stop: int) -> Found | None:
        """Return the wanted rows of a batch whose offsets lie from `start` to before `stop`, or None."""
        first = max(0, start - records.base_offset)
        last = min(records.count, stop - records.base_offset)
        if first >= last:
            return None
        if self._wants_all and records.table.lookup(GONE) < 0:
            return Found(shard, records, None, first, last)
        mask = self._masks.all_there(records.table) if self._wants_all else self._masks.of(records.table)
        rows = select(records, mask.topics, first, last)
        return Found(shard, records, rows, 0, len(rows) // 4) if rows else None
