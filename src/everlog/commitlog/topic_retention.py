"""Retention by topic: empties topics with a shorter life out of sealed segments that stay.

Owned by `Maintenance` and used under its lock. A segment is rewritten as sealing does it, whole under another name. A
topic is emptied once the whole segment is older than its class allows, if that frees enough; a damaged segment is
left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everlog.base import GONE, Records, TopicTable, bytes_of_topics, empty_topics, select
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.ports import Classes
from everlog.commitlog.scan import new_table
from everlog.commitlog.sealer import Sealer, each_batch
from everlog.commitlog.segment_format import THINNED
from everlog.commitlog.segment_reader import SegmentReader

TURN_BYTES = 256 << 20  # of segments looked into at a time; the others wait for the next
_NOBODY = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Thinned:
    """A segment in which records were emptied."""

    base_offset: int
    end_offset: int
    records: int
    bytes_before: int
    bytes_after: int


class Thinner:
    """What empties old topics; it knows which classes of topics are in which segment."""

    def __init__(self, catalog: Catalog, sealer: Sealer, settings: LogSettings, classes: Classes) -> None:
        self._catalog = catalog
        self._sealer = sealer
        self._settings = settings
        self._classes = classes
        self.ages = (settings.retention_us, *classes.ages_us)
        self._present: dict[int, frozenset[int]] = {}  # by base offset, of segments that no longer grow
        self._growing: tuple[tuple[int, int], frozenset[int]] | None = None  # of the last: base offset, topics, classes
        self._tried: dict[int, frozenset[int]] = {}  # classes that it did not pay, or was not possible, to empty

    def age(self, segment: Segment) -> int | None:
        """Return how old a segment may get, which is what its longest-lived topics demand; None for no limit."""
        oldest = 0
        for number in self._classes_in(segment):
            age = self.ages[number]
            if age is None:
                return None
            oldest = max(oldest, age)
        return oldest

    def due(self, now_us: int, below: int | None) -> list[tuple[Segment, frozenset[int]]]:
        """Return sealed segments with the classes that are too old in them, oldest first, as many as a turn allows.

        The first ones are left alone while everything in them is too old: they will be removed whole.
        """
        segments = self._catalog.segments
        self._forget({segment.base_offset for segment in segments})
        found: list[tuple[Segment, frozenset[int]]] = []
        left, goes = TURN_BYTES, True
        for segment in segments[:-1]:
            if below is not None and segment.end_offset > below:
                break
            classes = self._classes_in(segment)
            old = frozenset(number for number in classes if self._is_old(segment, number, now_us))
            goes = goes and old == classes
            if goes or not segment.sealed:
                continue
            if old and self._tried.get(segment.base_offset) != old and left > 0:
                found.append((segment, old))
                left -= segment.size_bytes
        return found

    def _is_old(self, segment: Segment, number: int, now_us: int) -> bool:
        age = self.ages[number]
        return age is not None and self._catalog.describe(segment).last_time < now_us - age

    def thin(self, segment: Segment, classes: frozenset[int]) -> Thinned | None:
        """Empty the records of these classes; return None if that does not pay or a batch is damaged."""
        self._tried[segment.base_offset] = classes
        reader = self._catalog.reader(segment)
        names = reader.table.all_names()
        chosen = bytearray(
            number in classes and name != GONE for name, number in zip(names, self._classes.sort(names), strict=True)
        )
        before = reader.file.size()
        records, freed = _measure(reader, chosen)
        if reader.reports or not records or 100 * freed < self._settings.thin_percent * before:
            return None
        table = new_table()
        batches = emptied(reader, names, chosen, table)
        made = self._sealer.rewrite(segment, reader, batches, table, reader.header.flags | THINNED, is_sealed=True)
        if made is None:
            return None
        self._present.pop(segment.base_offset, None)
        self._sealer.finish(segment, made)
        return Thinned(segment.base_offset, segment.end_offset, records, before, segment.size_bytes)

    def _classes_in(self, segment: Segment) -> frozenset[int]:
        known = self._present.get(segment.base_offset)
        if known is not None:
            return known
        table = self._catalog.reader(segment).table
        topics = (segment.base_offset, table.count)
        if self._growing is not None and self._growing[0] == topics:
            return self._growing[1]
        found = frozenset(self._classes.sort([name for name in table.all_names() if name != GONE]))
        if segment is self._catalog.segments[-1]:
            self._growing = (topics, found)
        else:
            self._present[segment.base_offset] = found
        return found

    def _forget(self, there: set[int]) -> None:
        for known in (self._present, self._tried):
            for base in known.keys() - there:
                del known[base]


def _measure(reader: SegmentReader, chosen: bytearray) -> tuple[int, int]:
    """Return how many records some topics have, and how many bytes emptying them frees."""
    records = freed = 0
    for batch in each_batch(reader):
        records += len(select(batch, chosen)) // 4
        freed += bytes_of_topics(batch, chosen)
    return records, freed


def emptied(
    reader: SegmentReader, names: list[bytes], chosen: bytearray, table: TopicTable, *, marks: int = 0
) -> Iterator[Records]:
    """Yield the batches with the records of the chosen topics emptied, and those with one of the flags `marks`;
    `table` gets the other names."""
    ids = bytearray(4 * len(names))
    new_ids = memoryview(ids).cast("I")
    gone = _NOBODY
    for batch in each_batch(reader):
        brought = []
        if marks and gone == _NOBODY:
            gone = table.intern(GONE)
            brought.append(GONE)
        for topic in range(batch.first_new_topic, batch.first_new_topic + batch.new_topics):
            if not chosen[topic] and names[topic] != GONE:
                brought.append(names[topic])
                new_ids[topic] = table.intern(names[topic])
            else:
                if gone == _NOBODY:
                    gone = table.intern(GONE)
                    brought.append(GONE)
                new_ids[topic] = gone
        yield empty_topics(batch, ids, gone, brought, table, marks)
