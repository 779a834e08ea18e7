"""Gives back the disk of records that were there for clients too slow for what waits in memory, once nobody reads them.

Owned by `Maintenance` and used under its lock. Such records are emptied in sealed segments, which are rewritten whole
under another name; the oldest segments go altogether when nothing is left in them.
"""

from itertools import takewhile

from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.scan import flags_of, new_table
from everlog.commitlog.sealer import NOT_SPILLED, Sealer, each_batch
from everlog.commitlog.segment_format import THINNED
from everlog.commitlog.side_file import HOLLOW, SPILLED
from everlog.commitlog.topic_retention import TURN_BYTES, Thinned, emptied


class SpillCollector:
    """The collector of one log; a damaged segment is left alone."""

    def __init__(self, catalog: Catalog, sealer: Sealer) -> None:
        self._catalog = catalog
        self._sealer = sealer
        self._tried: set[int] = set()  # base offsets of segments that could not be rewritten

    def due(self, below: int) -> list[Segment]:
        """Return sealed segments that end at or before an offset and have such records, as many as a turn allows."""
        found: list[Segment] = []
        left = TURN_BYTES
        for segment in self._catalog.segments[:-1]:
            if segment.end_offset > below or left <= 0:
                break
            if segment.sealed and segment.contents & SPILLED and segment.base_offset not in self._tried:
                found.append(segment)
                left -= segment.size_bytes
        return found

    def empty(self, segment: Segment) -> Thinned | None:
        """Empty such records of a segment; return None if a batch is damaged."""
        self._tried.add(segment.base_offset)
        reader = self._catalog.reader(segment)
        if reader.reports:
            return None
        before = reader.file.size()
        records = sum(len(flags_of(batch).translate(None, NOT_SPILLED)) for batch in each_batch(reader))
        names, table = reader.table.all_names(), new_table()
        batches = emptied(reader, names, bytearray(len(names)), table, spilled=True)
        made = self._sealer.rewrite(segment, reader, batches, table, reader.header.flags | THINNED, is_sealed=True)
        if made is None:
            return None
        self._sealer.finish(segment, made)
        self._tried.discard(segment.base_offset)
        return Thinned(segment.base_offset, segment.end_offset, records, before, segment.size_bytes)

    def hollow(self) -> set[int]:
        """Return the base offsets of the oldest segments, as far as nothing is left in them."""
        oldest = takewhile(lambda one: one.sealed and one.contents & HOLLOW, self._catalog.segments[:-1])
        return {segment.base_offset for segment in oldest}
