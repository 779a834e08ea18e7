"""One segment file opened for reading: its bytes, its batch index and its topic names, bound together.

A merge makes a new file and a new reader; whoever holds the old one goes on reading the old file.
"""

from collections.abc import Container
from contextlib import suppress

from everlog.base import HEADER_BYTES as BATCH_HEADER_BYTES
from everlog.base import Records, StorageError, TopicTable, checked_columns, columns_range
from everlog.commitlog import side_file
from everlog.commitlog.batch_index import GrowingIndex
from everlog.commitlog.damage import MISPLACED, MISSING, CorruptFile, Damage, DamageList
from everlog.commitlog.mark import Mark
from everlog.commitlog.paths import segment_bases, segment_path, side_path
from everlog.commitlog.ports import Disk, File
from everlog.commitlog.scan import Scan
from everlog.commitlog.segment_format import HEADER_BYTES, NOBODY, Origin, SegmentHeader, read_header
from everlog.commitlog.side_file import SideFile, SideSection


class SegmentReader:
    """What is readable of a segment. Rows are added only by the thread that commits."""

    def __init__(
        self, path: str, file: File, header: SegmentHeader, index: GrowingIndex, table: TopicTable, damage: DamageList
    ) -> None:
        self.path = path
        self.file = file
        self.header = header
        self.index = index
        self.table = table
        self.side: SideFile | None = None
        self.reports: list[Damage] = []  # what is fenced off
        self.kept: dict[int, tuple[memoryview, bytes]] = {}  # by row, the columns of large batches as they were written
        self._damage = damage

    def read_rows(self, first: int, last: int, *, once: bool = False) -> list[Records]:
        """Return the batches of rows `first` to before `last`, verified; damaged ones are reported and left out.

        What is read `once` need not stay in the page cache.
        """
        read = self.file.read_once if once else self.file.read_at
        start = self.index.position(first)
        data = read(start, self.index.file_end(last - 1) - start)
        batches = []
        for row in range(first, last):
            records = self._verified(data, self.index.position(row) - start, row)
            if records is not None:
                batches.append(records)
        return batches

    def _verified(self, data: bytes, at: int, row: int) -> Records | None:
        with suppress(StorageError):
            records = Records(data, at, self.table)
            offsets = (records.base_offset, records.base_offset + records.count)
            if offsets == (self.index.offset(row), self.index.end_offset(row)) and records.verify():
                return records
        self._report(row)
        return None

    def columns(self, row: int) -> tuple[memoryview, bytes] | None:
        """Return a batch's topic ids and flags, reading its columns only; None, and reported, if they are damaged."""
        if row in self.kept:
            return self.kept[row]
        position, end = self.index.position(row), self.index.file_end(row)
        with suppress(StorageError):
            header = self.file.read_at(position, BATCH_HEADER_BYTES)
            first, last = columns_range(header)
            columns = self.file.read_at(position + first, max(0, min(last, end - position) - first))
            if (found := checked_columns(header, columns)) is not None:
                return found
        self._report(row)
        return None

    def _report(self, row: int) -> None:
        what, position = "a batch fails its check", self.index.position(row)
        self._damage.add(Damage(self.path, position, what, self.index.offset(row), self.index.end_offset(row)))

    def section(self, name: str) -> SideSection | None:
        """Return a section of the side file, or None if there is none that can be trusted."""
        try:
            return self.side.section(name) if self.side is not None else None
        except CorruptFile as error:
            self._damage.add(error.damage)
            self._damage.rebuild.add(self.header.base_offset)
            return None

    @property
    def memory_bytes(self) -> int:
        """About how much memory index and names take."""
        tables = [table for table in (self.table, self.table.publishers) if table is not None]
        return self.index.memory_bytes + sum(2 * table.name_bytes + 24 * table.count for table in tables)


def open_header(file: File, path: str, base_offset: int, salt: int, damage: DamageList) -> SegmentHeader:
    """Return a segment file's header or what is known without it; raise FileNotFoundError if it is another's."""
    raw = file.read_at(0, HEADER_BYTES)
    header = read_header(raw, path)
    if header is not None and not header.belongs(base_offset, salt):
        damage.add(Damage(path, 0, MISPLACED))
        raise FileNotFoundError(f"{path}: {MISPLACED}")
    if header is None:
        damage.add(Damage(path, 0, "the segment's header fails its check"))
        return SegmentHeader(base_offset, 0, salt)
    if raw != header.to_bytes():
        damage.add(Damage(path, 0, "one copy of the segment's header fails its check"))
    return header


def header_of(disk: Disk, directory: str, base_offset: int) -> SegmentHeader | None:
    """Return the header in a segment's file, whoever's it is, or None if it can't be read."""
    path = segment_path(directory, base_offset)
    file = disk.open(path)
    try:
        return read_header(file.read_at(0, HEADER_BYTES), path)
    except OSError:
        return None


def own_headers(
    disk: Disk,
    directory: str,
    bases: list[int],
    mark: Mark,
    damage: DamageList,
    known: Container[int] = (),
    origin: Origin = NOBODY,
) -> dict[int, SegmentHeader | None]:
    """Return the headers of the shard's files, None if bad or `known`; report other files and a missing last one."""
    found: dict[int, SegmentHeader | None] = {}
    for base, following in zip(bases, [*bases[1:], mark.committed], strict=False):
        with suppress(FileNotFoundError):  # removed since
            header = None if base in known else header_of(disk, directory, base)
            if header is None or (header.belongs(base, mark.salt) and (mark.salt or not header.is_foreign(origin))):
                found[base] = header
            else:
                damage.add(Damage(segment_path(directory, base), 0, MISPLACED, base, max(base, following)))
    if mark.committed > mark.segment > max(bases, default=-1):
        damage.add(Damage(segment_path(directory, mark.segment), 0, MISSING, mark.segment, mark.committed))
    return found


def check_owner(headers: dict[int, SegmentHeader | None], directory: str, origin: Origin) -> None:
    """Raise StorageError if segments with the mark's own salt are another log's: the whole directory is."""
    for base, header in headers.items():
        if header is not None and header.is_foreign(origin):
            raise StorageError(
                f"{segment_path(directory, base)} is a segment of {header.origin}, and this is {origin}",
                hint=f"put the directory that belongs here in the place of {directory}",
            )


def check_epoch(headers: dict[int, SegmentHeader | None], directory: str, origin: Origin) -> None:
    """Raise StorageError if a later owner than this one has written segments."""
    latest = max((header.origin.epoch for header in headers.values() if header is not None), default=0)
    if latest > origin.epoch:
        raise StorageError(
            f"{directory} was written by a later owner: epoch {latest}, and this one has epoch {origin.epoch}",
            hint="claim the shard again, which gives it a new epoch",
        )


def open_side(disk: Disk, path: str, damage: DamageList) -> SideFile | None:
    """Return a side file if its header can be trusted, else None."""
    try:
        return SideFile(path, disk.open(path))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        damage.add(error.damage)
        return None


def load(disk: Disk, directory: str, base_offset: int, salt: int, damage: DamageList) -> tuple[SegmentReader, Scan]:
    """Return a segment as far as its side file covers it, and the scan that goes on from there."""
    path = segment_path(directory, base_offset)
    file = disk.open(path)
    header = open_header(file, path, base_offset, salt, damage)
    scan = Scan(file, path, header.salt, base_offset)
    side = open_side(disk, side_path(directory, base_offset), damage)
    if side is not None and side.summary.segment_check == header.check:
        try:
            if side.summary.covered > file.size():
                raise CorruptFile(path, file.size(), "the segment is shorter than its side file says")
            summary = side.summary
            names = side_file.unpack_names(side.read("names"), summary.topics)
            publishers = None
            if side_file.PUBLISHERS in side.names:
                publishers = side_file.unpack_publishers(side.read(side_file.PUBLISHERS))
            index = GrowingIndex.from_bytes(side.read("batches"))
            fenced = side.read("damage") if summary.damaged else b"[]"
            scan.resume(index, names, publishers, summary.covered, summary.end_offset, summary.last_time)
            scan.damage = side_file.unpack_damage(fenced, path)
        except CorruptFile as error:
            damage.add(error.damage)
            side = None
    else:
        side = None
    reader = SegmentReader(path, file, header, scan.index, scan.table, damage)
    reader.side = side
    return reader, scan


def load_complete(disk: Disk, directory: str, base_offset: int, salt: int, damage: DamageList) -> SegmentReader:
    """Return a segment that has a successor: all of it was committed, so anything bad in it is damage."""
    reader, scan = load(disk, directory, base_offset, salt, damage)
    finish(reader, scan, reader.file.size(), damage)
    return reader


def finish(reader: SegmentReader, scan: Scan, limit: int, damage: DamageList) -> None:
    """Take in the rest up to a position that is known to be committed."""
    if scan.position < limit:
        scan.run(limit, complete=True)
    for report in scan.damage:
        damage.add(report)
    reader.reports += scan.damage
    scan.damage = []


def origin_in(disk: Disk, directory: str) -> Origin:
    """Return whose log a directory holds, by its last segment that says it; `NOBODY` if none does."""
    try:
        bases = segment_bases(disk.list(directory))
    except FileNotFoundError:
        return NOBODY
    for base in reversed(bases):
        header = header_of(disk, directory, base)
        if header is not None and header.origin.store:
            return header.origin
    return NOBODY
