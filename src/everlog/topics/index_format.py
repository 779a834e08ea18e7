"""The format of a topic index (`docs/formats/topic-index.md`): header, directory, blocks, postings.

All numbers are little-endian. Every part that is loaded by itself has its CRC-32C in the part that points to it, the
directory in the header, and the header in itself, so that no byte is used before it is checked.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct

from crc32c import crc32c
from pyroaring import BitMap

from everlog.base import StorageError

ReadAt = Callable[[int, int], bytes]

MAGIC = b"EVTI"
VERSION = 1
ROWS_PER_BLOCK = 128

# magic, version, rows a block, topics, batches, depth, directory entries, bytes in all, directory CRC, header CRC
HEADER = Struct("<4sHHIIIIQII")
REF = Struct("<QII")  # position, length, CRC
ENTRY = Struct("<IIQII")  # kind, number, then as REF
COUNT = Struct("<I")
CRC = Struct("<I")

FIRST_READ_BYTES = 1024  # read on opening: a directory of up to 18 levels and depths; a larger one is read again

# kinds of directory entries
NAMES, BATCHES, LEVEL, DEPTH, DOLLAR, USED_BATCHES = range(1, 7)

# kinds of postings
IDS, BLOB = b"\x00", b"\x01"

HINT = "the index is derived data; run: everlog repair DATA_DIR"


class CorruptTopicIndex(StorageError):
    """A part of a topic index that can't be trusted; `position` is where in the index it begins."""

    def __init__(self, what: str, label: str, position: int, *, hint: str = HINT) -> None:
        super().__init__(f"topic index {label or 'in memory'}: {what} at byte {position}", hint=hint)
        self.label = label
        self.position = position


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a part of the index is, and its CRC-32C."""

    position: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Header:
    """The counts at the start of an index."""

    rows_per_block: int
    topics: int
    batches: int
    depth: int
    entries: int
    length: int
    directory_crc: int


class Column:
    """Byte strings packed as their end positions and then their bytes."""

    __slots__ = ("_bytes", "_ends", "_start", "end")

    def __init__(self, packed: bytes, position: int, count: int) -> None:
        self._start = position + 4 * count
        self._bytes = packed
        self._ends = array("I", packed[position : self._start])
        self.end = self._start + (self._ends[-1] if count else 0)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> bytes:
        begin = self._ends[row - 1] if row else 0
        return self._bytes[self._start + begin : self._start + self._ends[row]]


class Refs:
    """A table of references, unpacked one at a time."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __getitem__(self, row: int) -> Ref:
        return unpack_ref(self._packed, row * REF.size)


@dataclass(frozen=True, slots=True)
class Fence:
    """A level's token table: the first token of each block, and where the block is."""

    first: Column
    refs: Refs


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Up to ROWS_PER_BLOCK sorted tokens and their postings."""

    tokens: Column
    postings: Column


def pack_column(rows: Sequence[bytes]) -> bytes:
    """Return byte strings packed as `Column` reads them."""
    return array("I", accumulate(map(len, rows))).tobytes() + b"".join(rows)


def pack_block(*columns: Sequence[bytes]) -> bytes:
    """Return a block: the number of its rows, then its columns."""
    return COUNT.pack(len(columns[0])) + b"".join(map(pack_column, columns))


def unpack_rows(packed: bytes) -> Column:
    """Return a block of one column, such as names."""
    return Column(packed, COUNT.size, COUNT.unpack_from(packed)[0])


def unpack_tokens(packed: bytes) -> TokenBlock:
    """Return a block of a level's token table."""
    count: int = COUNT.unpack_from(packed)[0]
    tokens = Column(packed, COUNT.size, count)
    return TokenBlock(tokens, Column(packed, tokens.end, count))


def unpack_fence(packed: bytes) -> Fence:
    """Return a level's fence."""
    first = Column(packed, COUNT.size, COUNT.unpack_from(packed)[0])
    return Fence(first, Refs(packed[first.end :]))


def unpack_ref(packed: bytes, position: int) -> Ref:
    """Return the reference at a position."""
    return Ref(*REF.unpack_from(packed, position))


def unpack_bitmap(packed: bytes) -> BitMap:
    """Return a bitmap in the portable Roaring format."""
    return BitMap.deserialize(packed)


def pack_header(header: Header) -> bytes:
    """Return the header with its CRC."""
    fields = HEADER.pack(
        MAGIC,
        VERSION,
        header.rows_per_block,
        header.topics,
        header.batches,
        header.depth,
        header.entries,
        header.length,
        header.directory_crc,
        0,
    )[: -CRC.size]
    return fields + CRC.pack(crc32c(fields))


def unpack_header(start: bytes, label: str) -> Header:
    """Return the checked header at the start of an index."""
    if len(start) < HEADER.size:
        raise CorruptTopicIndex("header is cut short", label, 0)
    magic, version, *fields, crc = HEADER.unpack_from(start)
    if magic != MAGIC:
        raise CorruptTopicIndex("no topic index begins", label, 0)
    if crc != crc32c(start[: HEADER.size - CRC.size]):
        raise CorruptTopicIndex("header fails its CRC", label, 0)
    if version != VERSION:
        raise CorruptTopicIndex(f"version {version} is unknown", label, 0, hint="a newer Everlog wrote it; upgrade")
    return Header(*fields)


def open_directory(read_at: ReadAt, label: str) -> tuple[Header, dict[tuple[int, int], Ref]]:
    """Return the checked header, and where each section is by its kind and number."""
    start = read_at(0, FIRST_READ_BYTES)
    header = unpack_header(start, label)
    length = header.entries * ENTRY.size
    packed = start[HEADER.size : HEADER.size + length]
    ref = Ref(HEADER.size, length, header.directory_crc)
    if len(packed) < length:
        packed = read_part(read_at, ref, "directory", label)
    else:
        check_part(packed, ref, "directory", label)
    return header, {(kind, number): Ref(*fields) for kind, number, *fields in ENTRY.iter_unpack(packed)}


def read_part(read_at: ReadAt, ref: Ref, what: str, label: str) -> bytes:
    """Return the bytes of a part, checked."""
    packed = read_at(ref.position, ref.length)
    check_part(packed, ref, what, label)
    return packed


def check_part(packed: bytes, ref: Ref, what: str, label: str) -> None:
    """Raise unless these are the bytes that were written."""
    if len(packed) != ref.length:
        raise CorruptTopicIndex(f"{what} of {ref.length} bytes is cut short", label, ref.position)
    if crc32c(packed) != ref.crc:
        raise CorruptTopicIndex(f"{what} of {ref.length} bytes fails its CRC", label, ref.position)
