"""Reads a log beside its writer in another process: what the mark says is committed, and never a byte more.

The mark is read before the directory. A segment below the marked one is complete; the marked one is read up to the
marked position; one above it does not exist yet for this reader. A file that was opened stays readable even if it is
merged or removed meanwhile.
"""

from everlog.base import StorageError
from everlog.commitlog import paths, segment_reader
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.mark import MARK_BYTES, Mark, read_marks
from everlog.commitlog.ports import File
from everlog.commitlog.recovery import summarize
from everlog.commitlog.scan import Scan
from everlog.commitlog.segment_reader import SegmentReader

_TRIES = 100


class Follower:
    """What brings a catalog up to date with its writer, each time it is asked to."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._mark = Mark()
        self._mark_file: File | None = None
        self._growing: tuple[Segment, SegmentReader, Scan] | None = None
        self.committed = 0

    def refresh(self) -> int:
        """Take in what the writer committed since, and return the committed offset."""
        for _ in range(_TRIES):
            mark = self._read_mark()
            try:
                self._apply(mark)
                return self.committed
            except FileNotFoundError:
                continue  # removed between two looks; the next mark knows
        raise StorageError(f"{self._catalog.directory} changes faster than it can be read")

    def _read_mark(self) -> Mark:
        """Return the writer's latest mark, or one that says that all segments but the last are complete."""
        path = f"{self._catalog.directory}/{paths.MARK}"
        if self._mark_file is None:
            try:
                self._mark_file = self._catalog.disk.open(path)
            except FileNotFoundError:
                return self._without_mark()
        for _ in range(_TRIES):
            hint, durable = read_marks(self._mark_file.read_at(0, MARK_BYTES), path)
            known = [mark for mark in (hint, durable) if mark is not None]
            if hint is not None or durable is None:
                break
        best = max(known, key=lambda mark: (mark.committed, mark.layout), default=None)
        return best if best is not None and best.layout else self._without_mark()

    def _without_mark(self) -> Mark:
        bases = paths.segment_bases(self._catalog.disk.list(self._catalog.directory))
        last = bases[-1] if bases else 0
        return Mark(committed=last, segment=last, layout=self._mark.layout + 1)

    def _apply(self, mark: Mark) -> None:
        self._catalog.salt = mark.salt
        not_begun = self._growing is None and mark.committed > mark.segment
        if not_begun or (mark.segment, mark.layout) != (self._mark.segment, self._mark.layout):
            self._relist(mark)
        if self._growing is not None and self._growing[0].base_offset == mark.segment:
            self._grow(mark.position)
        self._mark = mark
        self.committed = max(self.committed, mark.committed)

    def _relist(self, mark: Mark) -> None:
        """Take in segments that came or went; the one that was growing may be complete now."""
        catalog = self._catalog
        known = {segment.base_offset: segment for segment in catalog.segments}
        bases = paths.segment_bases(catalog.disk.list(catalog.directory))
        headers = segment_reader.own_headers(
            catalog.disk, catalog.directory, bases, mark, catalog.damage, known, catalog.origin
        )
        segment_reader.check_owner(headers, catalog.directory, catalog.origin)
        segments = []
        for base in bases:
            if base > mark.segment:
                break
            segment = known.get(base)
            if base not in headers:
                continue  # removed, or another segment's file
            if base < mark.segment:
                segment = self._complete(segment or summarize(catalog, base, headers[base]))
            elif segment is None:
                if mark.committed <= base and headers[base] is None:
                    break  # just a name: the segment is being created
                segment = Segment(base, base, 0, 0, 0)
                reader, scan = segment_reader.load(catalog.disk, catalog.directory, base, catalog.salt, catalog.damage)
                segment.reader, segment.previous_end = reader, reader.header.previous_end
                self._growing = (segment, reader, scan)
            segments.append(segment)
        for base in known.keys() - set(bases):
            catalog.forget(base)
        catalog.replace(segments)
        catalog.note_gaps()

    def _complete(self, segment: Segment) -> Segment:
        """Complete a segment that has a successor: read it to its end now if it was growing, else when asked for."""
        if self._growing is not None and self._growing[0] is segment:
            _, reader, _ = self._growing
            self._grow(reader.file.size())
            self._growing = None
            self._catalog.keep(segment.base_offset, reader)
            segment.reader = None
        return segment

    def _grow(self, limit: int) -> None:
        """Take in the batches of the growing segment up to a position that was marked as committed."""
        assert self._growing is not None
        segment, reader, scan = self._growing
        segment_reader.finish(reader, scan, limit, self._catalog.damage)
        segment.first_time, segment.last_time = reader.index.times()
        segment.end_offset, segment.size_bytes = scan.offset, scan.position

    def close(self) -> None:
        """Let go of the mark."""
        if self._mark_file is not None:
            self._mark_file.close()
