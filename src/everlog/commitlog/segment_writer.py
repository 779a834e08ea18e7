"""Writes batches into segment files: the frames, the vectored write, the sync, the mark, the roll to the next file.

Driven by one commit step at a time. Invariants: at most one group of batches is unsynced; a segment is created only
after all of the one before it was written and, at `fsync`, cut to its length and synced; nothing is marked or reported
before the file that holds it, and that file's name, would survive a crash.

After a failed write or sync nothing behind the last good sync is trusted (`in_doubt`): it is cut off, durably, and what
it should have been is written again, into a new segment if this one holds records. A segment whose creation failed is
begun again in the same file, which no reader has looked into.
"""

import contextlib
from collections.abc import Callable

import cython

from everlog.base import TopicTable
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.mark import Mark, MarkFile
from everlog.commitlog.paths import segment_path
from everlog.commitlog.ports import Aside, Block, File
from everlog.commitlog.segment_format import AFTER_SYNC, PREVIOUS_SYNCED, SegmentHeader, salted
from everlog.commitlog.segment_reader import SegmentReader
from everlog.commitlog.write_again import write_again

if not cython.compiled:
    from everlog.base import Records
    from everlog.base.memory import part, pointer
    from everlog.commitlog.batch_index import GrowingIndex
    from everlog.commitlog.frame_header import frame_bytes, mark_bytes
    from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES

_MARGIN_BYTES = 4096  # of frames, columns and names of a small batch
_LARGE_BYTES = 64 << 10  # of a batch whose columns are kept: to read them costs as much as to read all of it
_UNMERGED_BYTES = 16 << 10  # the same, where sealing never merges, so that it need not read these batches at all


class SegmentWriter:
    """The end of the last segment, and the mark that says where it is."""

    def __init__(
        self, catalog: Catalog, mark: MarkFile, end: int, layout: int, settings: LogSettings, now_us: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._now_us = now_us
        self._sync = settings.durability == "fsync"
        self._step = settings.preallocate_bytes if self._sync else 0
        self._segment_bytes = settings.segment_bytes
        self._mark_file = mark.file
        self._salt = mark.salt
        self._salted = salted(mark.salt)
        self._after_sync = AFTER_SYNC if self._sync else 0
        self._kept_bytes = _LARGE_BYTES if settings.merge_below else _UNMERGED_BYTES
        self.mark = mark
        self.layout = layout  # grows when a segment is added, merged or removed
        self.written = end  # the offset after the last written record
        self.segment: Segment | None = None
        self.position = HEADER_BYTES  # where the next frame goes
        self._allocated = 0  # where the file ends; after `position` there are zeros
        self._allocating = self._step > 0  # until the disk has no room for it
        self.base = -1  # of the segment that is written to, -1 before there is one
        self.in_doubt = False  # what follows `position` in the file is not known
        self._unfinished = -1  # the base of a segment whose creation failed, though its file is there
        self._file: File
        self._index: GrowingIndex
        self._aside: Aside = catalog.disk.aside()
        self._aside_batches: list[Records] = []  # that are being written there

    @property
    def directory(self) -> str:
        """The directory of the segments."""
        return self._catalog.directory

    def adopt(self, segment: Segment, position: int) -> None:
        """Go on where recovery found the end of a segment, which is the end of its file."""
        assert segment.reader is not None
        self.segment = segment
        self.position = self._allocated = position
        self.base = segment.base_offset
        self._file, self._index = segment.reader.file, segment.reader.index

    def skip_to(self, offset: int) -> None:
        """Go on at a later offset, before there is any segment."""
        self.written = offset

    def write(self, base_offset: int, batches: list[Records]) -> int:
        """Write batches of one segment and mark them; raise OSError if they may not be there."""
        last = batches[len(batches) - 1]
        if self.in_doubt:
            self.cut()
        if self.base == base_offset:
            start = self.position
            end = start + self._length(batches)
            self.in_doubt = True
            if end > self._allocated:
                self._allocate(self._file, start, end)
            reserved = self.mark.reserved
            note = (
                self._mark_file,
                mark_bytes(0, last.end_offset, base_offset, end, self.layout, reserved, self._salt, self._sync),
            )
            if self._sync:
                self._file.commit_at(start, self._framed(start, batches), note, padded=True)
            else:
                self._file.write_at(start, self._framed(start, batches), note, padded=True)
            self._note(start, batches)
        else:
            end = HEADER_BYTES + self._length(batches)
            self.begin(base_offset, last.table, batches)
            self.in_doubt = True
            self.mark.publish(self._marked(last.end_offset, end))
            self._note(HEADER_BYTES, batches)
        self.position = end
        self.written = last.end_offset
        self.in_doubt = False
        return 0

    def takes_quickly(self, base_offset: int, size: int) -> bool:
        """Return whether a write of about so many bytes of a segment needs no other before it, such as zeros ahead."""
        if self.in_doubt or self.base != base_offset:
            return False
        return not self._allocating or self.position + size + _MARGIN_BYTES <= self._allocated

    def write_aside(self, batches: list[Records], patience_ns: int) -> bool:
        """Write batches of the open segment as `write` does; return whether that was done in time, else `end_aside`
        must be called, before anything else is."""
        last = batches[len(batches) - 1]
        start = self.position
        end = start + self._length(batches)
        self.in_doubt = True
        note = (
            self._mark_file,
            mark_bytes(0, last.end_offset, self.base, end, self.layout, self.mark.reserved, self._salt, self._sync),
        )
        self._aside_batches = batches
        if not self._file.commit_aside(self._aside, start, self._framed(start, batches), note, patience_ns):
            return False
        self._wrote_aside()
        return True

    def end_aside(self) -> int:
        """Wait for what was not done in time; raise OSError if it may not be there."""
        self._aside.end()
        return self._wrote_aside()

    def _wrote_aside(self) -> int:
        batches, self._aside_batches = self._aside_batches, []
        last = batches[len(batches) - 1]
        self._note(self.position, batches)
        self.position += self._length(batches)
        self.written = last.end_offset
        self.in_doubt = False
        return 0

    def close(self) -> None:
        """Close the mark, and end the thread of small commits."""
        self.mark.close()
        self._aside.close()

    def begin(self, base_offset: int, table: TopicTable, batches: list[Records]) -> None:
        """Create the next segment with its first batches, if any; nothing is marked yet."""
        self.cut()
        catalog = self._catalog
        flags = PREVIOUS_SYNCED if self._sync else 0
        end, origin = catalog.records_end(), catalog.origin
        header = SegmentHeader(base_offset, self._now_us(), catalog.salt, 0, flags, end, origin)
        path = segment_path(catalog.directory, base_offset)
        file, index = self._create(base_offset, path), GrowingIndex()
        self._allocated, self._allocating = 0, self._step > 0
        self._allocate(file, 0, HEADER_BYTES + self._length(batches))
        blocks: list[Block] = [header.to_bytes(), *self._framed(HEADER_BYTES, batches)]
        if self._sync:
            file.commit_at(0, blocks, padded=True)
            catalog.disk.sync_directory(catalog.directory)
        else:
            file.write_at(0, blocks, padded=True)
        reader = SegmentReader(path, file, header, index, table, catalog.damage)
        self.segment = Segment(base_offset, base_offset, 0, 0, HEADER_BYTES, reader=reader)
        self._file, self._index, self.base, self.position = file, index, base_offset, HEADER_BYTES
        self._unfinished = -1
        self.layout += 1
        catalog.add(self.segment)

    def _create(self, base_offset: int, path: str) -> File:
        """Create a segment's file, or empty the one that was created for it before."""
        if self._unfinished == base_offset:
            file = self._catalog.disk.open(path, write=True)
            file.truncate(0)
        else:
            file = self._catalog.disk.create(path)
            self._unfinished = base_offset
        return file

    def _allocate(self, file: File, start: int, end: int) -> int:
        """Write zeros ahead of a small write from `start` to `end`: later syncs cost less if the file keeps its length.
        A disk without room for zeros may still have room for the batches."""
        size = min(self._step, self._segment_bytes - start)
        if not self._allocating or 4 * (end - start) > size:
            return 0
        try:
            file.allocate(start, size)
        except OSError:
            self._allocating = False
            with contextlib.suppress(OSError):
                file.truncate(start)
        self._allocated = start + size  # or less, then `cut` finds nothing to do
        return 0

    def cut(self) -> None:
        """Cut off what follows the last batch: zeros when the segment is complete, and what a failed write left."""
        segment = self.segment
        doubt = self.in_doubt
        if segment is None or not (doubt or self._file.size() > self.position):
            return
        if doubt and segment.reader is not None:
            self.publish()  # what failed may have been the mark's own write, after which it says anything
            self._file = segment.reader.file = self._catalog.disk.open(segment.reader.path, write=True)
        self.in_doubt = True
        self._file.truncate(self.position)
        if doubt and not self._sync:
            write_again(self._file, 0, self.position)
        if doubt or self._sync:
            self._file.sync()
        self._allocated = self.position
        self.in_doubt = False

    def publish(self) -> None:
        """Write the current mark."""
        self.mark.publish(self.current())

    def current(self) -> Mark:
        """Return the current mark: what is written, and the segment that is written to."""
        return self._marked(self.written, self.position)

    def _marked(self, committed: int, end: int) -> Mark:
        mark, lost, segment = self.mark, self._catalog.lost, self.segment
        base, position = (lost.segment, lost.position) if lost.committed else (committed, HEADER_BYTES)
        if segment is not None:
            base, position = segment.base_offset, end
        return Mark(0, committed, base, position, self.layout, mark.reserved, mark.salt, self._sync)

    def _length(self, batches: list[Records]) -> int:
        """Return the size of batches with their frames."""
        length = 0
        for records in batches:
            length += FRAME_BYTES + records.size
        return length

    def _framed(self, position: int, batches: list[Records]) -> list[Block]:
        """Return the blocks to write from a position on."""
        blocks: list[Block] = []
        flag = self._after_sync  # of the first
        for records in batches:
            frame = frame_bytes(position, records.base_offset, records.size, records.count | flag, self._salted)
            blocks.append(frame)
            blocks.append(records.view())
            position += FRAME_BYTES + records.size
            flag = 0
        return blocks

    def _note(self, position: int, batches: list[Records]) -> int:
        """Index written batches."""
        index = self._index
        segment = self.segment
        assert segment is not None
        for records in batches:
            index.add(records, position + FRAME_BYTES)
            position += FRAME_BYTES + records.size
            if records.size >= self._kept_bytes and segment.reader is not None:
                segment.reader.kept[len(index) - 1] = _columns(records)
        first, last = batches[0], batches[len(batches) - 1]
        segment.first_time = segment.first_time or first.first_time
        segment.last_time = last.last_time
        segment.end_offset = last.end_offset
        segment.size_bytes = position
        return 0


def _columns(records: Records) -> tuple[memoryview, bytes]:
    """Return copies of a batch's topic ids and flags."""
    raw = pointer(records.data)
    topics = records.start + records.layout.topics
    flags = records.start + records.layout.flags
    ids = memoryview(part(raw, topics, topics + 4 * records.count)).cast("I")
    return ids, part(raw, flags, flags + records.count)
