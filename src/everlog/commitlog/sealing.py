"""Sealing a complete segment: its side file, and, where it pays, its small batches merged into larger ones.

A step works on one segment and is safe to stop at any point: new files are written whole under a temporary name,
synced, and renamed over the old. A damaged segment is indexed and never rewritten.
"""

import contextlib
from collections.abc import Iterator

from everlog.base import Records, TopicTable, gather
from everlog.commitlog import sidefile
from everlog.commitlog.batchindex import GrowingIndex
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.contents import Contents, load_complete
from everlog.commitlog.framing import FRAME_BYTES, HEADER_BYTES, Frame, SegmentHeader
from everlog.commitlog.gathering import SPAN_US
from everlog.commitlog.paths import TEMPORARY, segment_path, side_path
from everlog.commitlog.ports import Block, File, Indexer
from everlog.commitlog.scan import topic_ids
from everlog.commitlog.settings import LogSettings
from everlog.commitlog.sidefile import SEALED, SideSummary
from everlog.commitlog.views import TOPICS

READ_BYTES = 4 << 20
WRITE_BYTES = 4 << 20


class Sealer:
    """Seals the segments of one log, one a step."""

    def __init__(self, catalog: Catalog, settings: LogSettings, indexer: Indexer | None) -> None:
        self._catalog = catalog
        self._settings = settings
        self._indexer = indexer
        self.sealed = 0
        self.merged = 0

    def seal(self, segment: Segment) -> None:
        """Make a segment's data durable, merge it if that pays, and write its side file."""
        contents = segment.contents or load_complete(
            self._catalog.disk, self._catalog.directory, segment.base_offset, self._catalog.salt, self._catalog.damage
        )
        contents.file.sync()  # at `flush` nobody has; a sealed segment's log is durable
        if self._pays(contents):
            merged = self.rewrite(segment, contents, self._blocks(contents), contents.table, contents.header.flags)
            if merged is not None:
                contents = merged
                self.merged += 1
        self.finish(segment, contents)

    def finish(self, segment: Segment, contents: Contents) -> None:
        """Write the side file, and have readers find the segment by it."""
        topics = self._index(contents)
        self.write_side(contents, SEALED, topics)
        side = sidefile.SideFile(side_path(self._catalog.directory, segment.base_offset), self._open_side(segment))
        contents.side = side
        self._catalog.keep(segment.base_offset, contents)
        segment.bytes = contents.file.size()
        segment.sealed = True
        segment.contents = None
        self._catalog.damage.rebuild.discard(segment.base_offset)
        self.sealed += 1

    def _open_side(self, segment: Segment) -> File:
        return self._catalog.disk.open(side_path(self._catalog.directory, segment.base_offset))

    def _pays(self, contents: Contents) -> bool:
        """Whether a segment is whole and its batches are small."""
        rows = len(contents.index)
        if contents.reports or rows < 2:
            return False
        records = contents.index.end_offset(rows - 1) - contents.index.offset(0)
        return records < rows * self._settings.merge_below

    def rewrite(
        self,
        segment: Segment,
        old: Contents,
        batches: Iterator[Records],
        table: TopicTable,
        flags: int,
        *,
        is_sealed: bool = False,
    ) -> Contents | None:
        """Put the same offsets in other batches in a segment's place; None when a batch turns out to be damaged.

        The side file of one that `is_sealed` goes before the segment changes: it must never stand beside another file.
        """
        catalog = self._catalog
        header = SegmentHeader(
            old.header.base_offset, old.header.created_us, catalog.salt, old.header.generation + 1, flags
        )
        path = segment_path(catalog.directory, segment.base_offset)
        file = sidefile.create_anew(catalog.disk, path + TEMPORARY)
        made = Contents(path, file, header, GrowingIndex(), table, catalog.damage)
        blocks: list[Block] = [header.to_bytes()]
        at, held = 0, HEADER_BYTES
        expected = old.index.offset(0)
        for records in batches:
            if records.base_offset != expected:
                break
            expected += records.count
            made.index.add(records, at + held + FRAME_BYTES)
            frame = Frame(at + held, records.base_offset, records.size, records.count, True)
            blocks += (frame.to_bytes(catalog.salt), records.to_bytes())
            held += FRAME_BYTES + records.size
            if held >= WRITE_BYTES:
                file.commit_at(at, blocks, padded=True)
                at, held, blocks = at + held, 0, []
        if expected != old.index.end_offset(len(old.index) - 1):
            file.close()
            catalog.disk.unlink(path + TEMPORARY)
            return None
        file.commit_at(at, blocks, padded=True)
        file.truncate(at + held)
        file.sync()
        if is_sealed:
            with contextlib.suppress(FileNotFoundError):
                catalog.disk.unlink(side_path(catalog.directory, segment.base_offset))
            catalog.disk.sync_directory(catalog.directory)
        catalog.disk.rename(path + TEMPORARY, path)
        catalog.disk.sync_directory(catalog.directory)
        return made

    def _blocks(self, contents: Contents) -> Iterator[Records]:
        """The batches of a segment, merged up to the size that was set."""
        run: list[Records] = []
        count = size = 0
        for records in each_batch(contents):
            large = run and (
                records.base_offset != run[0].base_offset + count
                or count + records.count > self._settings.merge_records
                or size + records.size > self._settings.batch_bytes
                or records.last_time - run[0].first_time > SPAN_US
            )
            if large:
                yield gather([(part, None) for part in run], True)
                run, count, size = [], 0, 0
            run.append(records)
            count += records.count
            size += records.size
        if run:
            yield gather([(part, None) for part in run], True)

    def _index(self, contents: Contents) -> bytes | None:
        """The indexer's section, None without an indexer or when a batch can't be read."""
        if self._indexer is None:
            return None
        columns = [memoryview(bytes(topic_ids(records))).cast("I") for records in each_batch(contents)]
        if len(columns) != len(contents.index):
            return None
        return self._indexer.build(contents.table.all_names(), columns)

    def write_side(self, contents: Contents, flags: int, topics: bytes | None = None) -> None:
        """Write the side file of what a segment holds now."""
        directory, base = self._catalog.directory, contents.header.base_offset
        index, names = contents.index, contents.table.all_names()
        rows = len(index)
        first_time, last_time = index.times()
        summary = SideSummary(
            flags=flags,
            segment_check=contents.header.check,
            damaged=len(contents.reports),
            base_offset=base,
            end_offset=index.end_offset(rows - 1) if rows else base,
            first_time=first_time,
            last_time=last_time,
            covered=contents.file.size() if flags & SEALED else index.file_end(rows - 1) if rows else HEADER_BYTES,
            batches=rows,
            topics=len(names),
        )
        sections = [("batches", index.to_bytes()), ("names", sidefile.pack_names(names))]
        if contents.reports:
            sections.append(("damage", sidefile.pack_damage(contents.reports)))
        if topics is not None:
            sections.append((TOPICS, topics))
        path = side_path(directory, base)
        sidefile.write(self._catalog.disk, directory, path, sidefile.encode(summary, sections), path + TEMPORARY)


def each_batch(contents: Contents) -> Iterator[Records]:
    """Every readable batch in order."""
    row, rows = 0, len(contents.index)
    while row < rows:
        last = contents.index.range_of(row, rows, READ_BYTES)
        yield from contents.read_rows(row, last, once=True)
        row = last
