"""The segments of a shard in order, and reading by offset and time.

Owned by the log; the thread that commits adds, the sealer replaces, retention removes, any thread reads. Invariants:
segments are in order and do not overlap; only the last is written to; the tuple of segments is replaced, never changed.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from everlog.base import Records
from everlog.commitlog import segment_reader
from everlog.commitlog.damage import DamageList
from everlog.commitlog.mark import Mark
from everlog.commitlog.paths import segment_path
from everlog.commitlog.ports import Disk
from everlog.commitlog.segment_format import NOBODY, Origin
from everlog.commitlog.segment_reader import SegmentReader
from everlog.commitlog.segment_view import SegmentView, first_at

_UNKNOWN = -1
_MAX_CACHED = 128  # segments, for each holds two file descriptors


@dataclass(slots=True)
class Segment:
    """What is known of a segment without reading it; -1 stands for not known yet."""

    base_offset: int
    end_offset: int = _UNKNOWN
    first_time: int = _UNKNOWN
    last_time: int = _UNKNOWN
    size_bytes: int = _UNKNOWN
    sealed: bool = False
    contents: int = 0  # of a sealed one, SPILLED, OWED and HOLLOW as in its side file
    previous_end: int = 0  # as in its header
    reader: SegmentReader | None = None  # held while the segment is written; else the cache holds it


class Catalog:
    """All segments of a shard."""

    def __init__(
        self, disk: Disk, directory: str, cache_bytes: int, damage: DamageList, origin: Origin = NOBODY
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.damage = damage
        self.origin = origin
        self.salt = 0
        self.lost = Mark()  # what was marked as committed when the log was opened, if not all of it was there
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[int, SegmentReader] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._segments: tuple[Segment, ...] = ()
        self._bases: tuple[int, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order."""
        return self._segments

    def known_salt(self) -> int:
        """Return the shard's salt, from a segment if the mark does not tell it."""
        if self.salt or not self._segments:
            return self.salt
        return self.reader(self._segments[0]).header.salt

    def replace(self, segments: list[Segment] | tuple[Segment, ...]) -> None:
        """Replace the segments by others, in order."""
        self._bases = tuple(segment.base_offset for segment in segments)
        self._segments = tuple(segments)

    def add(self, segment: Segment) -> None:
        """Add a new last segment."""
        self.replace((*self._segments, segment))

    def reader(self, segment: Segment) -> SegmentReader:
        """Return a segment opened for reading; raise FileNotFoundError if it was removed."""
        held = segment.reader
        if held is not None:
            return held
        with self._cache_lock:
            cached = self._cache.get(segment.base_offset)
            if cached is not None:
                self._cache.move_to_end(segment.base_offset)
                return cached
        loaded = segment_reader.load_complete(self.disk, self.directory, segment.base_offset, self.salt, self.damage)
        if loaded.side is None:
            self.damage.rebuild.add(segment.base_offset)
        self.keep(segment.base_offset, loaded)
        return loaded

    def keep(self, base_offset: int, reader: SegmentReader) -> None:
        """Put a reader into the cache in place of the one it held; beyond the limit the least recently used go."""
        with self._cache_lock:
            self._cache[base_offset] = reader
            self._cache.move_to_end(base_offset)
            held = sum(entry.memory_bytes for entry in self._cache.values())
            while len(self._cache) > 1 and (held > self._cache_bytes or len(self._cache) > _MAX_CACHED):
                held -= self._cache.popitem(last=False)[1].memory_bytes

    def forget(self, base_offset: int) -> None:
        """Drop a reader from the cache; whoever uses it goes on doing so."""
        with self._cache_lock:
            self._cache.pop(base_offset, None)

    def describe(self, segment: Segment) -> Segment:
        """Return a segment with everything known of it, read if need be."""
        if segment.last_time == _UNKNOWN or segment.end_offset == _UNKNOWN or segment.size_bytes == _UNKNOWN:
            reader = self.reader(segment)
            rows = len(reader.index)
            segment.first_time, segment.last_time = reader.index.times()
            segment.end_offset = reader.index.end_offset(rows - 1) if rows else segment.base_offset
            segment.size_bytes = reader.file.size()
        return segment

    def records_end(self) -> int:
        """Return where the records end, lost ones too; 0 if there are none."""
        return max(self.lost.committed, self._segments[-1].end_offset if self._segments else 0)

    def note_gaps(self) -> None:
        """Report records that a segment says were before it and that are not; raise FileNotFoundError as `reader`."""
        for before, segment in pairwise(self._segments):
            if before.end_offset < segment.previous_end:  # or unknown: not sealed, so read it as its sealing will
                self.forget(before.base_offset)  # it may have been removed since
                end = self.describe(Segment(before.base_offset)).end_offset
                self.forget(before.base_offset)  # nobody has asked for it
                self.damage.note_gap(segment_path(self.directory, segment.base_offset), end, segment.previous_end)

    def locate(self, offset: int) -> int:
        """Return the number of the last segment that begins at or below an offset, 0 if there is none."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def read(self, offset: int, max_bytes: int) -> list[Records]:
        """Return whole batches from the one that holds `offset` on: of one segment, within `max_bytes` or just one."""
        segments = self._segments
        k = self.locate(offset)
        while k < len(segments):
            try:
                reader = self.reader(segments[k])
            except FileNotFoundError:
                k += 1  # removed by retention since
                continue
            row, rows = reader.index.find(offset), len(reader.index)
            while row < rows:
                last = reader.index.range_of(row, rows, max_bytes)
                batches = reader.read_rows(row, last)
                if batches:
                    return batches
                row = last
            k += 1
        return []

    def offset_at(self, time_us: int) -> int | None:
        """Return the first offset whose time is not before `time_us`, or None."""
        for segment in self._segments:
            try:
                if self.describe(segment).last_time < time_us:
                    continue
                reader = self.reader(segment)
            except FileNotFoundError:
                continue
            rows = len(reader.index)
            for row in range(reader.index.find_time(time_us), rows):
                batches = reader.read_rows(row, row + 1)
                if batches:
                    return first_at(batches[0], time_us)
        return None

    def view(self, segment: Segment) -> SegmentView:
        """Return a segment as it is now."""
        self.describe(segment)
        return SegmentView(
            segment.base_offset, segment.end_offset, segment.first_time, segment.last_time, segment.size_bytes,
            segment.sealed, lambda: self.reader(segment),
        )  # fmt: skip
