"""Verifies everything in a shard's directory that is covered by a check, without changing any of it."""

from dataclasses import dataclass

from everlog.base import StorageError
from everlog.commitlog import paths
from everlog.commitlog.damage import CorruptFile, Damage, DamageList
from everlog.commitlog.mark import MARK_BYTES, SLOT_BYTES, SLOT_SPACING, Mark, read_marks, read_slot
from everlog.commitlog.ports import Disk
from everlog.commitlog.scan import Scan
from everlog.commitlog.segment_format import HEADER_BYTES, NOBODY, Origin
from everlog.commitlog.segment_reader import open_header, own_headers
from everlog.commitlog.side_file import SideFile


@dataclass(frozen=True, slots=True)
class Verified:
    """How much was looked at, and what of it can't be trusted."""

    segments: int
    batches: int
    records: int
    checked_bytes: int
    damage: tuple[Damage, ...]


def verify_directory(disk: Disk, directory: str, origin: Origin = NOBODY) -> Verified:
    """Read and check every segment, side file and mark of a shard; a writer may be at work beside it."""
    found = DamageList()
    mark = _verify_mark(disk, directory, found)
    bases = paths.segment_bases(disk.list(directory))
    headers = own_headers(disk, directory, bases, mark, found, origin=origin)
    batches = records = size = 0
    end: int | None = None  # of the segment before
    for base, header in headers.items():
        if header is None and base > mark.segment:
            continue  # just a name: the segment is being created
        if header is not None and header.is_foreign(origin):
            found.add(Damage(paths.segment_path(directory, base), 0, f"this segment is of {header.origin}"))
        try:
            scan = _verify_segment(disk, directory, base, mark, found)
        except FileNotFoundError:
            end = None
            continue  # removed since
        if end is not None and header is not None and base <= mark.segment:
            found.note_gap(scan.path, end, header.previous_end)
        end, index = scan.offset, scan.index
        batches += len(index)
        records += sum(index.snapshot().counts)
        size += scan.position
        _verify_side(disk, directory, base, found)
    return Verified(len(headers), batches, records, size, tuple(found.reports()))


def _verify_mark(disk: Disk, directory: str, found: DamageList) -> Mark:
    path = f"{directory}/{paths.MARK}"
    try:
        data = disk.open(path).read_at(0, MARK_BYTES)
    except FileNotFoundError:
        return Mark()
    for slot in range(3):
        raw = data[SLOT_SPACING * slot : SLOT_SPACING * slot + SLOT_BYTES]
        if any(raw) and read_slot(data, slot, path) is None:
            found.add(Damage(path, SLOT_SPACING * slot, f"slot {slot} of the mark fails its check"))
    marks = [mark for mark in read_marks(data, path) if mark is not None]
    return max(marks, key=lambda mark: mark.committed, default=Mark())


def _verify_segment(disk: Disk, directory: str, base: int, mark: Mark, found: DamageList) -> Scan:
    """Scan a segment as far as it is committed."""
    path = paths.segment_path(directory, base)
    file = disk.open(path)
    header = open_header(file, path, base, mark.salt, found)
    scan = Scan(file, path, header.salt, base)
    if base < mark.segment:
        limit = file.size()
    else:
        limit = mark.position if base == mark.segment else HEADER_BYTES
    scan.run(limit, complete=True)
    for damage in scan.damage:
        found.add(damage)
    return scan


def _verify_side(disk: Disk, directory: str, base: int, found: DamageList) -> None:
    path = paths.side_path(directory, base)
    try:
        side = SideFile(path, disk.open(path))
        for name in side.names:
            side.read(name)
    except FileNotFoundError:
        return
    except CorruptFile as error:
        found.add(error.damage)
    except StorageError as error:
        found.add(Damage(path, 0, error.message))
