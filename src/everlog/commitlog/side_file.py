"""A segment's side file: its batch index, its topic names, and what the indexer made of its topics.

The layout is in `docs/formats/side-file.md`. Derived data: checked section by section, bound to the very file that it
describes, and made again from the log if it is missing, damaged or of another version.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import crc32c

from everlog.base import TopicTable
from everlog.commitlog.damage import CorruptFile, Damage
from everlog.commitlog.ports import Disk, File

MAGIC = b"EVLI"
VERSION = 1
HEADER_BYTES = 512
MAX_SECTIONS = 8
SPILLED = 0x02  # some records are there for clients that were too slow, and for nobody else
OWED = 0x08  # some records are there for durable sessions and groups, and for nobody else
HOLLOW = 0x04  # all records are emptied
SEALED = 0x01  # the segment is complete; otherwise the file covers its first `covered` bytes, and it may grow

PUBLISHERS = "clients"  # the section of publishers' names, if the segment has any

_HEAD = struct.Struct("<4sHHIIQQQQQII")
_SECTION = struct.Struct("<8sQQII")
_SECTIONS_AT = 96
_ENDS = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SideSummary:
    """The first bytes of a side file, which say enough of its segment to open a log without reading more."""

    flags: int
    segment_check: int  # SegmentHeader.check of the file that it describes
    damaged: int  # fenced places in the segment
    base_offset: int
    end_offset: int
    first_time: int
    last_time: int
    covered: int  # bytes of the segment file
    batches: int
    topics: int

    @property
    def sealed(self) -> bool:
        """Whether the segment is complete."""
        return bool(self.flags & SEALED)


class SideSection:
    """A section that passed its check when it was opened."""

    def __init__(self, file: File, position: int, size: int) -> None:
        self._file = file
        self._position = position
        self.size = size

    def read_at(self, position: int, length: int) -> bytes:
        """Return a range of the section, shorter at its end."""
        length = min(length, self.size - position)
        return self._file.read_at(self._position + position, length) if length > 0 else b""

    def mapped(self) -> memoryview | None:
        """Return the section mapped from the file, or None if files can't be mapped."""
        whole = self._file.mapped(self._position + self.size)
        return None if whole is None else whole[self._position :]


class SideFile:
    """An open side file."""

    def __init__(self, path: str, file: File) -> None:
        """Read and check the header; raise CorruptFile if it can't be trusted."""
        self.path = path
        self._file = file
        head = file.read_at(0, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[:4] != MAGIC:
            raise CorruptFile(path, 0, "this is not a side file")
        if crc32c.crc32c(head[:-4]) != _ENDS.unpack_from(head, HEADER_BYTES - 4)[0]:
            raise CorruptFile(path, 0, "the side file's header fails its check")
        if _HEAD.unpack_from(head)[1] != VERSION:
            raise CorruptFile(path, 4, f"side file version {_HEAD.unpack_from(head)[1]} is not known")
        self.summary = _summary(head)
        self._sections: dict[str, tuple[int, int, int]] = {}
        for k in range(MAX_SECTIONS):
            name, position, size, check, _ = _SECTION.unpack_from(head, _SECTIONS_AT + _SECTION.size * k)
            if name.strip(b"\0"):
                self._sections[name.rstrip(b"\0").decode()] = (position, size, check)
        self._checked: set[str] = set()

    def read(self, name: str) -> bytes:
        """Return a whole section, checked."""
        if name not in self._sections:
            raise CorruptFile(self.path, 0, f"the side file has no section {name!r}")
        position, size, check = self._sections[name]
        data = self._file.read_at(position, size)
        if len(data) != size or crc32c.crc32c(data) != check:
            raise CorruptFile(self.path, position, f"section {name!r} of the side file fails its check")
        self._checked.add(name)
        return data

    def section(self, name: str) -> SideSection | None:
        """Return a section to read ranges of, checked whole when first asked for, or None if there is none."""
        if name not in self._sections:
            return None
        if name not in self._checked:
            self.read(name)
        position, size, _ = self._sections[name]
        return SideSection(self._file, position, size)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sections."""
        return tuple(self._sections)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _summary(head: bytes) -> SideSummary:
    _, _, flags, check, damaged, base, end, first, last, covered, batches, topics = _HEAD.unpack_from(head)
    return SideSummary(flags, check, damaged, base, end, first, last, covered, batches, topics)


def encode(summary: SideSummary, sections: Sequence[tuple[str, Sequence[bytes]]]) -> list[bytes]:
    """Return the blocks of a side file, in order, given each section's parts."""
    if len(sections) > MAX_SECTIONS:
        raise ValueError(f"a side file has at most {MAX_SECTIONS} sections")
    flags, check, damaged, *rest = astuple(summary)
    head = bytearray(HEADER_BYTES)
    _HEAD.pack_into(head, 0, MAGIC, VERSION, flags, check, damaged, *rest)
    blocks: list[bytes] = []
    at = HEADER_BYTES
    for k, (name, parts) in enumerate(sections):
        size, check = 0, 0
        for part in parts:
            size += len(part)
            check = crc32c.crc32c(part, check)
        _SECTION.pack_into(head, _SECTIONS_AT + _SECTION.size * k, name.encode(), at, size, check, 0)
        padding = bytes(-size % 8)
        blocks += [*parts, padding]
        at += size + len(padding)
    struct.pack_into("<I", head, HEADER_BYTES - 4, crc32c.crc32c(head[:-4]))
    return [bytes(head), *blocks]


def write(disk: Disk, directory: str, path: str, blocks: Sequence[bytes], temporary: str) -> None:
    """Put a side file in place: whole and durable under its name, or not at all."""
    file = create_anew(disk, temporary)
    try:
        file.commit_at(0, [block for block in blocks if block], padded=True)
        size = sum(map(len, blocks))
        if file.size() != size:
            file.truncate(size)
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def create_anew(disk: Disk, temporary: str) -> File:
    """Create a temporary file in place of what a failed attempt left."""
    try:
        disk.unlink(temporary)
    except FileNotFoundError:
        pass
    return disk.create(temporary)


def pack_damage(reports: Sequence[Damage]) -> bytes:
    """Return the damage reports of a segment as a section."""
    return json.dumps([[r.position, r.what, r.from_offset, r.to_offset] for r in reports]).encode()


def unpack_damage(data: bytes, path: str) -> list[Damage]:
    """Return the damage reports in a checked section."""
    return [Damage(path, *report) for report in json.loads(data)]


def pack_publishers(names: TopicTable) -> bytes:
    """Return publishers' names by id as a section: how many there are, then as topic names."""
    count = len(names)
    return _ENDS.pack(count) + pack_names(names, count)


def unpack_publishers(data: bytes) -> list[bytes]:
    """Return the publishers' names in a checked section."""
    return unpack_names(data[_ENDS.size :], _ENDS.unpack_from(data)[0])


def pack_names(names: TopicTable, count: int) -> bytes:
    """Return the first names of a table by id as a section: their ends, then their bytes."""
    return names.packed(0, count)


def unpack_names(data: bytes, count: int) -> list[bytes]:
    """Return the names in a checked section."""
    base = 4 * count
    ends = memoryview(data)[:base].cast("I")
    names = []
    start = 0
    for end in ends:
        names.append(data[base + start : base + end])
        start = end
    return names
