"""Gives back the disk of records that no setting keeps and nobody reads any more.

They were there for clients too slow for what waits in memory, or for durable sessions and groups. Owned by
`Maintenance` and used under its lock. Such records are emptied in sealed segments, which are rewritten whole under
another name; the oldest segments go altogether when nothing is left in them.
"""

from itertools import takewhile

from everlog.base import FOR_SESSIONS, FOR_SPILL
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.scan import flags_of, new_table
from everlog.commitlog.sealer import UNMARKED, Sealer, each_batch
from everlog.commitlog.segment_format import THINNED
from everlog.commitlog.side_file import HOLLOW, OWED, SPILLED
from everlog.commitlog.topic_retention import TURN_BYTES, Thinned, emptied


class Collector:
    """The collector of one log; a damaged segment is left alone."""

    def __init__(self, catalog: Catalog, sealer: Sealer, settings: LogSettings) -> None:
        self._catalog = catalog
        self._sealer = sealer
        self._settings = settings
        self._tried: dict[int, int] = {}  # by base offset, the flags whose records it did not pay, or could not, empty

    def due(self, spilled: int, owed: int) -> list[tuple[Segment, int]]:
        """Return sealed segments that have such records with the flags of those to empty, as many as a turn allows.

        Nobody slow needs anything below the offset `spilled`, and no session or group below `owed` either.
        """
        found: list[tuple[Segment, int]] = []
        left = TURN_BYTES
        segments = self._catalog.segments
        for base in self._tried.keys() - {segment.base_offset for segment in segments}:
            del self._tried[base]
        for segment in segments[:-1]:
            if segment.end_offset > max(spilled, owed) or left <= 0:
                break
            marks = FOR_SPILL if segment.contents & SPILLED and segment.end_offset <= spilled else 0
            if segment.contents & OWED and segment.end_offset <= min(spilled, owed):
                marks |= FOR_SESSIONS
            if segment.sealed and marks and self._tried.get(segment.base_offset) != marks:
                found.append((segment, marks))
                left -= segment.size_bytes
        return found

    def empty(self, segment: Segment, marks: int) -> Thinned | None:
        """Empty the records of a segment that have such a flag; return None if it does not pay or a batch is damaged.

        What was spilled goes in any case: there is a limit on what it may take.
        """
        self._tried[segment.base_offset] = marks
        reader = self._catalog.reader(segment)
        if reader.reports:
            return None
        before = reader.file.size()
        counts = {mark: 0 for mark in UNMARKED if marks & mark}
        for batch in each_batch(reader):
            for mark in counts:
                counts[mark] += len(flags_of(batch).translate(None, UNMARKED[mark]))
        records = sum(counts.values())
        share = 100 * records // (segment.end_offset - segment.base_offset)
        if not counts.get(FOR_SPILL) and share < self._settings.thin_percent:
            return None
        names, table = reader.table.all_names(), new_table()
        batches = emptied(reader, names, bytearray(len(names)), table, marks=marks)
        made = self._sealer.rewrite(segment, reader, batches, table, reader.header.flags | THINNED, is_sealed=True)
        if made is None:
            return None
        self._sealer.finish(segment, made)
        del self._tried[segment.base_offset]
        return Thinned(segment.base_offset, segment.end_offset, records, before, segment.size_bytes)

    def hollow(self, below: int) -> set[int]:
        """Return the base offsets of the oldest segments that end at or before an offset and have nothing left."""
        oldest = takewhile(
            lambda one: one.sealed and one.contents & HOLLOW and one.end_offset <= below, self._catalog.segments[:-1]
        )
        return {segment.base_offset for segment in oldest}
