"""Masks of the topics of a table that some filters want, a byte for each topic id, extended as the table grows.

For segments without an index: the one being written, those not sealed yet, those whose index can't be used. The
tables' postings are shared by all readers of a store; a reader keeps the masks of the tables that it last read.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from pyroaring import BitMap

from everlog.base import GONE, TopicTable, row_column
from everlog.store.row_finder import to_flags
from everlog.topics import Filter, Postings, matches

SHARED_TABLES = 8  # beyond it the least recently used table's postings are dropped, and made again when needed
KEPT_TABLES = 2  # per reader and shard: a read may cross from one segment to the next
FEW = 32  # so many new topics are matched one by one


class SharedPostings:
    """Postings of the tables that are read; each topic is added once, whoever asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[int, tuple[TopicTable, Postings]] = OrderedDict()

    def select(self, table: TopicTable, filters: Sequence[Filter]) -> BitMap:
        """Return the ids of the topics of a table that any of the filters matches."""
        with self._lock:
            held = self._tables.get(id(table))
            if held is None:
                held = self._tables[id(table)] = (table, Postings())
                while len(self._tables) > SHARED_TABLES:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(id(table))
            postings = held[1]
            known = len(postings)
            if known < len(table):
                postings.extend(known, [name.decode() for name in table.all_names(known)])
            return BitMap().union(*(postings.select(flt) for flt in filters))


def matching_ids(
    table: TopicTable, filters: Sequence[Filter], known: int, now: int, shared: SharedPostings
) -> bytearray:
    """Return the ids (u32s, rising) from `known` to before `now` of the topics that any of the filters matches."""
    if all(flt.is_exact for flt in filters):
        found = {table.lookup(flt.pattern.encode()) for flt in filters}
        return row_column(sorted(topic for topic in found if known <= topic < now))
    if now - known <= FEW:
        names = [table.name(topic).decode() for topic in range(known, now)]
        return row_column(known + k for k, name in enumerate(names) if any(matches(flt, name) for flt in filters))
    chosen = shared.select(table, filters)
    chosen.remove_range(0, known)
    chosen.remove_range(now, 1 << 32)
    return row_column(chosen.to_array())


class TopicMask:
    """A byte for each topic of one table, 1 if it is wanted. Owned by one reader."""

    def __init__(self, table: TopicTable, topics: bytearray) -> None:
        self.table = table
        self.topics = topics
        self.count = topics.count(1)

    @property
    def everything(self) -> bool:
        """Whether all topics are wanted."""
        return self.count == len(self.topics)

    def extend(self, filters: Sequence[Filter], shared: SharedPostings) -> None:
        """Add the topics that the table has learned since."""
        known, now = len(self.topics), len(self.table)
        if known < now:
            ids = matching_ids(self.table, filters, known, now, shared)
            self.count += len(ids) // 4
            if len(ids) > 4 * FEW:
                self.topics += to_flags(ids, now)[known:]
            else:
                self.topics += bytes(now - known)
                for topic in memoryview(ids).cast("I"):
                    self.topics[topic] = 1


class TopicMasks:
    """The masks of the tables that one reader last read."""

    def __init__(self, filters: Sequence[Filter], shared: SharedPostings) -> None:
        self._filters = filters
        self._shared = shared
        self._kept: OrderedDict[int, TopicMask] = OrderedDict()

    def of(self, table: TopicTable) -> TopicMask:
        """Return the mask of a table, extended to every topic that it has now."""
        mask = self._kept.get(id(table))
        if mask is None:
            mask = TopicMask(table, bytearray())
            self.keep(mask)
        mask.extend(self._filters, self._shared)
        return mask

    def all_there(self, table: TopicTable) -> TopicMask:
        """Return the mask of all topics that were not emptied out of a segment."""
        mask = self._kept.get(id(table))
        if mask is None:
            mask = TopicMask(table, bytearray(name != GONE for name in table.all_names()))
            self.keep(mask)
        return mask

    def keep(self, mask: TopicMask) -> None:
        """Keep a mask that an index gave; the oldest is dropped."""
        self._kept[id(mask.table)] = mask
        while len(self._kept) > KEPT_TABLES:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all masks."""
        self._kept.clear()
