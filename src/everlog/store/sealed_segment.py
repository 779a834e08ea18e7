"""Sealed segments opened for filtered reads: topic index, row postings and file, mapped where the disk allows it.

`SealedSegments` keeps the most recently used of one shard open. A segment without an index, or with one that does not
fit, is read batch by batch.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable

from pyroaring import BitMap

from everlog.base import StorageError, TopicTable, Unavailable
from everlog.commitlog import BatchIndex, SegmentView, ShardLog, SideSection
from everlog.store.choice import Choice
from everlog.store.indexer import HEADER, read_plan
from everlog.store.row_finder import RowFinder
from everlog.store.row_reader import RowReader
from everlog.topics import Filter, SectionCache, TopicIndex

OPEN_SEGMENTS = 64  # per shard; each holds two mappings; beyond it the least recently used is closed
OPEN_BYTES = 64 << 20  # of their indexes and names in memory, per shard; beyond it the same, but for the last
_BATCH_BYTES = 28  # in the columns of a row reader
UNMAPPED_BYTES = 4 << 20  # up to this size a segment that can't be mapped is read whole, else batch by batch
NO_END = 1 << 63  # of the segment that is being written
LOOK_AGAIN_RECORDS = 4096  # commits after which newly sealed segments are looked for


class SealedSegment:
    """A segment's indexes and bytes, bound together; it can be read even after the segment is removed."""

    def __init__(self, view: SegmentView, section: SideSection, cache: SectionCache) -> None:
        """Raise StorageError if the parts do not fit together."""
        self.view = view
        self.choices: dict[tuple[Filter, ...], Choice] = {}  # what readers want of it; see `selection`
        self.end_offset = view.end_offset
        self.batches: BatchIndex = view.batches()
        plan = read_plan(section.read_at(0, HEADER.size), section.size)
        self.index = TopicIndex(
            lambda position, length: section.read_at(
                plan.index_at + position, min(length, plan.index_bytes - position)
            ),
            label=f"of the segment at offset {view.base_offset}",
            cache=cache,
        )
        postings = mapped_section(section)
        log = mapped_segment(view)
        self.finder = RowFinder(postings[plan.postings_at : plan.postings_at + plan.postings_bytes])
        batches = self.batches
        self.row_reader = RowReader(log, batches.offsets, batches.positions, batches.sizes, batches.counts)
        if self.finder.rows != self.row_reader.rows or self.finder.topics != self.index.topic_count:
            raise StorageError(f"the index of the segment at offset {view.base_offset} is another segment's")
        # a batch without a row is damaged: only reading batch by batch tells which offsets are lost
        if self.finder.rows != view.end_offset - view.base_offset:
            raise StorageError(f"the segment at offset {view.base_offset} is damaged")

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes, without what is mapped and what readers want of it."""
        return self.view.memory_bytes + _BATCH_BYTES * len(self.batches.counts)

    def match(self, filters: Iterable[Filter]) -> BitMap:
        """Return the ids of the topics that any of the filters matches."""
        return BitMap().union(*(self._match(flt) for flt in filters))

    def _match(self, flt: Filter) -> BitMap:
        if not flt.is_exact:
            return self.index.match(flt)
        topic = self.table.lookup(flt.pattern.encode())
        return BitMap((topic,)) if topic >= 0 else BitMap()

    def row_at(self, offset: int) -> int:
        """Return the number of the row that holds an offset of the segment."""
        batch = self.batches.find(offset)
        return self.row_reader.start_row(batch) + offset - int(self.batches.offsets[batch])

    @property
    def table(self) -> TopicTable:
        """The names of all the segment's topics."""
        return self.view.table


def mapped_segment(view: SegmentView) -> memoryview:
    """Return a segment's file as a buffer."""
    mapped = _try(view.mapped)
    return mapped if mapped is not None else _whole(view.read_at, view.size_bytes)


def mapped_section(section: SideSection) -> memoryview:
    """Return a side file's section as a buffer."""
    mapped = _try(section.mapped)
    return mapped if mapped is not None else _whole(section.read_at, section.size)


def _try(mapped: Callable[[], memoryview | None]) -> memoryview | None:
    try:
        return mapped()
    except (OSError, ValueError) as error:
        raise StorageError(f"a sealed file can't be mapped: {error}") from error


def _whole(read_at: Callable[[int, int], bytes], size: int) -> memoryview:
    if size > UNMAPPED_BYTES:
        raise StorageError(f"{size} bytes are too many to hold in memory")
    return memoryview(read_at(0, size))


class SealedSegments:
    """The sealed segments of one shard, opened when they are asked for. Any thread may ask."""

    def __init__(self, log: ShardLog, cache: SectionCache) -> None:
        self._log = log
        self._cache = cache
        self._lock = threading.Lock()
        self._views: dict[int, SegmentView] = {}  # by base offset
        self._bases: list[int] = []
        self._unsealed: list[tuple[int, int]] = []  # where the others begin and end
        self._looked_at = -1  # the committed offset when segments were last listed
        self._open: OrderedDict[int, SealedSegment] = OrderedDict()
        self._plain: set[int] = set()  # base offsets of segments without a usable index
        self.distrusted = 0
        self.on_list: Callable[[set[int]], None] = lambda bases: None  # told which segments have no index to trust

    def holding(self, offset: int) -> "SealedSegment | None":
        """Return the segment that holds an offset, or None if it is not sealed or has no index to trust."""
        with self._lock:
            base = self._base_of(offset)
            if base is None or base in self._plain:
                return None
            segment = self._open.get(base)
            if segment is not None:
                self._open.move_to_end(base)
                return segment
            view = self._views[base]
        segment = self._open_segment(view)
        with self._lock:
            if segment is None:
                self._plain.add(base)
                return None
            self._open[base] = segment
            held = sum(one.memory_bytes for one in self._open.values())
            while len(self._open) > 1 and (len(self._open) > OPEN_SEGMENTS or held > OPEN_BYTES):
                _, oldest = self._open.popitem(last=False)
                held -= oldest.memory_bytes
                oldest.index.drop_cache()
        return segment

    def without_index(self, offset: int) -> tuple[int, int] | None:
        """Return where the segment that holds an offset begins and ends, if it has no index to trust."""
        with self._lock:
            base = self._base_of(offset)
            if base is not None:
                return (base, self._views[base].end_offset) if base in self._plain else None
            place = bisect_right(self._unsealed, (offset, NO_END)) - 1
            return self._unsealed[place] if place >= 0 and offset < self._unsealed[place][1] else None

    def distrust(self, segment: SealedSegment) -> None:
        """Read this segment batch by batch from now on."""
        with self._lock:
            base = segment.view.base_offset
            if base not in self._plain:
                self._plain.add(base)
                self.distrusted += 1
            self._open.pop(base, None)

    def trim(self) -> None:
        """Let go of segments that retention removed."""
        with self._lock:
            start = self._log.start
            for base in [base for base in self._bases if base < start]:
                del self._views[base]
                removed = self._open.pop(base, None)
                if removed is not None:
                    removed.index.drop_cache()
            self._bases = sorted(self._views)
            self._plain = {base for base in self._plain if base >= start}
            self._unsealed = [span for span in self._unsealed if span[0] >= start]
            self.on_list(self._plain | {base for base, _ in self._unsealed})

    def renew(self, bases: set[int]) -> None:
        """Open rewritten segments anew; whoever reads one goes on with the old file."""
        with self._lock:
            for base in bases:
                self._views.pop(base, None)
                self._plain.discard(base)
                before = self._open.pop(base, None)
                if before is not None:
                    before.index.drop_cache()
            self._bases = sorted(self._views)
            self._looked_at = -1

    def close(self) -> None:
        """Let go of every open segment."""
        with self._lock:
            self._open.clear()
            self._views.clear()
            self._bases.clear()

    def _base_of(self, offset: int) -> int | None:
        found = self._locate(offset)
        committed = self._log.committed
        if found is None and (self._looked_at < 0 or committed - self._looked_at >= LOOK_AGAIN_RECORDS):
            self._looked_at = committed
            self._list(committed)
            found = self._locate(offset)
        return found

    def _list(self, committed: int) -> None:
        views = self._log.segments()
        ends = [view.base_offset for view in views[1:]] + [NO_END][: len(views)]  # in memory there may be none yet
        sealed = [view.sealed and view.end_offset <= committed for view in views]
        self._views = {view.base_offset: view for view, is_sealed in zip(views, sealed, strict=True) if is_sealed}
        self._bases = sorted(self._views)
        self._unsealed = [
            (view.base_offset, end) for view, end, is_sealed in zip(views, ends, sealed, strict=True) if not is_sealed
        ]
        self.on_list(self._plain | {base for base, _ in self._unsealed})

    def _locate(self, offset: int) -> int | None:
        place = bisect_right(self._bases, offset) - 1
        if place < 0 or offset >= self._views[self._bases[place]].end_offset:
            return None
        return self._bases[place]

    def _open_segment(self, view: SegmentView) -> SealedSegment | None:
        try:
            apart = view.apart()
            section = apart.side("topics")
            return None if section is None else SealedSegment(apart, section, self._cache)
        except (StorageError, Unavailable, OSError):
            return None
