"""Writes batches into segment files: the frames, the vectored write, the sync, the mark, the roll to the next file.

Driven by the one commit step at a time. Invariants: at most one group of batches is unsynced; a segment is created
only after all of the one before it was written, and at `fsync` synced; nothing is marked or reported before the file
that holds it, and that file's name, would survive a crash.
"""

from collections.abc import Callable

from everlog.base import Records, TopicTable
from everlog.commitlog.batchindex import GrowingIndex
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.contents import Contents
from everlog.commitlog.framing import FRAME_BYTES, HEADER_BYTES, PREVIOUS_SYNCED, Frame, SegmentHeader
from everlog.commitlog.mark import Mark, MarkFile
from everlog.commitlog.paths import segment_path
from everlog.commitlog.ports import Block, Note


class SegmentWriter:
    """The end of the last segment, and the mark that says where it is."""

    def __init__(
        self, catalog: Catalog, mark: MarkFile, end: int, layout: int, sync: bool, now_us: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._sync = sync
        self._now_us = now_us
        self.mark = mark
        self.layout = layout  # grows when a segment comes, is merged or goes
        self.written = end  # the offset behind what is written
        self.segment: Segment | None = None
        self.position = HEADER_BYTES  # where the next frame goes

    @property
    def directory(self) -> str:
        """Where the segments are."""
        return self._catalog.directory

    def adopt(self, segment: Segment, position: int) -> None:
        """Go on behind what recovery found whole."""
        self.segment = segment
        self.position = position

    def write(self, base_offset: int, batches: list[Records]) -> None:
        """Write batches of one segment and mark them; OSError when they may not be there."""
        end_offset = batches[-1].base_offset + batches[-1].count
        if self.segment is not None and self.segment.base_offset == base_offset:
            start = self.position
            blocks, end = self._framed(start, batches)
            note = self.mark.note(self._marked(end_offset, base_offset, end))
            self._commit(self._open_contents, start, blocks, note)
            self._note(start, batches)
            self.position, self.written = end, end_offset
        else:
            self.begin(base_offset, batches[0].table, batches)
            self.mark.publish(self._marked(end_offset, base_offset, self.position))
            self._note(HEADER_BYTES, batches)
            self.written = end_offset

    def begin(self, base_offset: int, table: TopicTable, batches: list[Records]) -> None:
        """Create the next segment with its first batches, if any; nothing is marked yet."""
        catalog = self._catalog
        header = SegmentHeader(base_offset, self._now_us(), catalog.salt, flags=PREVIOUS_SYNCED if self._sync else 0)
        path = segment_path(catalog.directory, base_offset)
        contents = Contents(path, catalog.disk.create(path), header, GrowingIndex(), table, catalog.damage)
        blocks, position = self._framed(HEADER_BYTES, batches)
        self._commit(contents, 0, [header.to_bytes(), *blocks], None)
        if self._sync:
            catalog.disk.sync_directory(catalog.directory)
        self.segment = Segment(base_offset, base_offset, 0, 0, position, contents=contents)
        self.position = position
        self.layout += 1
        catalog.add(self.segment)

    def publish(self) -> None:
        """Write the mark as it is true now."""
        self.mark.publish(self.current())

    def current(self) -> Mark:
        """The mark as it is true now: what is written, in the segment that it is written to."""
        base = self.segment.base_offset if self.segment is not None else self.written
        return self._marked(self.written, base, self.position)

    def _marked(self, committed: int, segment: int, position: int) -> Mark:
        mark = self.mark
        return Mark(0, committed, segment, position, self.layout, mark.reserved, mark.salt, self._sync)

    @property
    def _open_contents(self) -> Contents:
        assert self.segment is not None
        assert self.segment.contents is not None
        return self.segment.contents

    def _commit(self, contents: Contents, position: int, blocks: list[Block], note: Note | None) -> None:
        if self._sync:
            contents.file.commit_at(position, blocks, note)
        else:
            contents.file.write_at(position, blocks, note)

    def _framed(self, position: int, batches: list[Records]) -> tuple[list[Block], int]:
        """The blocks to write from a position on, and where they end."""
        blocks: list[Block] = []
        for records in batches:
            first = self._sync and not blocks
            frame = Frame(position, records.base_offset, records.size, records.count, first)
            blocks += (frame.to_bytes(self._catalog.salt), records.to_bytes())
            position = frame.end
        return blocks, position

    def _note(self, position: int, batches: list[Records]) -> None:
        """Make written batches findable."""
        segment, contents = self.segment, self._open_contents
        assert segment is not None
        for records in batches:
            contents.index.add(records, position + FRAME_BYTES)
            position += FRAME_BYTES + records.size
        segment.first_time = segment.first_time or batches[0].first_time
        segment.last_time = batches[-1].last_time
        segment.end_offset = batches[-1].base_offset + batches[-1].count
        segment.bytes = position
