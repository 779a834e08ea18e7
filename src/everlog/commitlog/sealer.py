"""Seals a complete segment: writes its side file and, if it pays, merges its small batches into larger ones.

A step works on one segment and is safe to stop at any point: new files are written whole under a temporary name,
synced, and renamed over the old. A damaged segment is indexed and never rewritten.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from everlog.base import DROPPED, FOR_SESSIONS, FOR_SPILL, Records, TopicTable, gather
from everlog.commitlog import side_file
from everlog.commitlog.batch_index import GrowingIndex
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.open_batch import SPAN_US
from everlog.commitlog.paths import TEMPORARY, segment_path, side_path
from everlog.commitlog.ports import Block, Indexer
from everlog.commitlog.scan import flags_of, topic_ids
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES, Frame
from everlog.commitlog.segment_reader import SegmentReader, load_complete
from everlog.commitlog.segment_view import TOPICS
from everlog.commitlog.side_file import HOLLOW, OWED, SEALED, SPILLED, SideSummary
from everlog.commitlog.write_again import write_again

READ_BYTES = 4 << 20
WRITE_BYTES = 4 << 20
_FEW = 8  # batches of such a part are read by themselves, if the columns of all others are in memory
UNMARKED = {mark: bytes(flags for flags in range(256) if not flags & mark) for mark in (FOR_SPILL, FOR_SESSIONS)}
_EMPTIED = bytes((DROPPED,))


class Sealer:
    """The sealer of one log's segments."""

    def __init__(self, catalog: Catalog, settings: LogSettings, indexer: Indexer | None) -> None:
        self._catalog = catalog
        self._settings = settings
        self._indexer = indexer
        self.sealed = 0
        self.merged = 0

    def seal(self, segment: Segment, *, again: bool = False) -> None:
        """Make a segment's data durable, merge it if that pays, and write its side file.

        If it is tried `again`, a sync may have failed, and the next would prove nothing of what was written before.
        """
        reader = segment.reader or load_complete(
            self._catalog.disk, self._catalog.directory, segment.base_offset, self._catalog.salt, self._catalog.damage
        )
        if again and self._settings.durability != "fsync":
            file = self._catalog.disk.open(reader.path, write=True)
            write_again(file, 0, file.size())
            file.sync()
            file.close()
        reader.file.sync()  # at `flush` nobody has, and a sealed segment is durable
        if self._pays(reader):
            merged = self.rewrite(segment, reader, self._blocks(reader), reader.table, reader.header.flags)
            if merged is not None:
                reader = merged
                self.merged += 1
        self.finish(segment, reader)

    def finish(self, segment: Segment, reader: SegmentReader) -> None:
        """Write the side file, and let readers find the segment by it."""
        topics, contents = self._index(reader)
        reader.kept = {}
        self.write_side(reader, SEALED | contents, topics)
        path = side_path(self._catalog.directory, segment.base_offset)
        reader.side = side_file.SideFile(path, self._catalog.disk.open(path))
        self._catalog.keep(segment.base_offset, reader)
        segment.size_bytes = reader.file.size()
        segment.sealed, segment.contents = True, contents
        segment.reader = None
        self._catalog.damage.rebuild.discard(segment.base_offset)
        self.sealed += 1

    def _pays(self, reader: SegmentReader) -> bool:
        """Return whether merging pays: the segment is undamaged, and its batches have few records and few bytes."""
        rows = len(reader.index)
        if reader.reports or rows < 2 or not self._is_fine(reader):
            return False
        records = reader.index.end_offset(rows - 1) - reader.index.offset(0)
        return records < rows * self._settings.merge_below

    def _is_fine(self, reader: SegmentReader) -> bool:
        """Return whether the mean batch is so small that many are read at once rather than a part of each."""
        return reader.file.size() < len(reader.index) * self._settings.merge_below_bytes

    def rewrite(
        self,
        segment: Segment,
        old: SegmentReader,
        batches: Iterator[Records],
        table: TopicTable,
        flags: int,
        *,
        is_sealed: bool = False,
    ) -> SegmentReader | None:
        """Replace a segment by one with the same offsets in other batches; return None if a batch is damaged.

        The side file of one that `is_sealed` is removed before the segment changes, as it must never stand beside
        another segment file.
        """
        catalog = self._catalog
        header = replace(old.header, salt=catalog.salt, generation=old.header.generation + 1, flags=flags)
        path = segment_path(catalog.directory, segment.base_offset)
        file = side_file.create_anew(catalog.disk, path + TEMPORARY)
        made = SegmentReader(path, file, header, GrowingIndex(), table, catalog.damage)
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

    def _blocks(self, reader: SegmentReader) -> Iterator[Records]:
        """Yield the batches of a segment, merged up to the configured size."""
        run: list[Records] = []
        count = size = 0
        for records in each_batch(reader):
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

    def _index(self, reader: SegmentReader) -> tuple[list[bytes] | None, int]:
        """Return the indexer's section, None without an indexer or if a batch can't be read; and what is in it."""
        columns, contents = [], HOLLOW
        for topics, flags in self._columns(reader):
            columns.append(topics)
            if flags.translate(None, UNMARKED[FOR_SPILL]):
                contents |= SPILLED
            if flags.translate(None, UNMARKED[FOR_SESSIONS]):
                contents |= OWED
            if flags.strip(_EMPTIED):
                contents &= ~HOLLOW
        if len(columns) != len(reader.index):
            return None, contents & ~HOLLOW
        return self._indexer.build(reader.table, columns) if self._indexer is not None else None, contents

    def _columns(self, reader: SegmentReader) -> Iterator[tuple[memoryview, bytes]]:
        """Yield the topic ids and the flags of every batch that can be read."""
        rows = len(reader.index)
        if self._is_fine(reader) and len(reader.kept) < rows - rows // _FEW:
            for records in each_batch(reader):
                yield memoryview(bytes(topic_ids(records))).cast("I"), flags_of(records)
            return
        for row in range(rows):
            found = reader.columns(row)
            if found is not None:
                yield found

    def write_side(self, reader: SegmentReader, flags: int, topics: list[bytes] | None = None) -> None:
        """Write the side file of what a segment holds now."""
        directory, base = self._catalog.directory, reader.header.base_offset
        index, names = reader.index, reader.table
        rows, topic_count = len(index), len(names)
        first_time, last_time = index.times()
        summary = SideSummary(
            flags=flags,
            segment_check=reader.header.check,
            damaged=len(reader.reports),
            base_offset=base,
            end_offset=index.end_offset(rows - 1) if rows else base,
            first_time=first_time,
            last_time=last_time,
            covered=reader.file.size() if flags & SEALED else index.file_end(rows - 1) if rows else HEADER_BYTES,
            batches=rows,
            topics=topic_count,
        )
        sections = [("batches", [index.to_bytes()]), ("names", [side_file.pack_names(names, topic_count)])]
        if names.publishers is not None:
            sections.append((side_file.PUBLISHERS, [side_file.pack_publishers(names.publishers)]))
        if reader.reports:
            sections.append(("damage", [side_file.pack_damage(reader.reports)]))
        if topics is not None:
            sections.append((TOPICS, topics))
        path = side_path(directory, base)
        side_file.write(self._catalog.disk, directory, path, side_file.encode(summary, sections), path + TEMPORARY)


def each_batch(reader: SegmentReader) -> Iterator[Records]:
    """Yield every readable batch in order."""
    row, rows = 0, len(reader.index)
    while row < rows:
        last = reader.index.range_of(row, rows, READ_BYTES)
        yield from reader.read_rows(row, last, once=True)
        row = last
