"""Packs: files of many streams in one immutable object, each with a check of its own (`docs/formats/pack.md`).

A pack has a random part in its name and is never written twice. It counts once a record of the shard's manifest names
it (`PackManifest`); until then nobody reads it.
"""

import struct
import uuid
from collections.abc import Sequence

import crc32c
from msgspec import Struct, msgpack

from everlog.base import StorageError

VERSION = 1
PACK_BYTES = 64 << 20  # of files in one pack, unless a single one has more
HEADER = struct.Struct("<IHH8x")  # magic, version, size of this header
FRAME = struct.Struct("<IIQ")  # before each file: magic, check and size of what follows, the compressed file
FOOTER = struct.Struct("<QIIIII")  # place and size of the directory, its check, how many files, version, magic
PACK_MAGIC = 0x4B505645  # "EVPK"
FILE_MAGIC = 0x46505645  # "EVPF"
FOOTER_BYTES = FOOTER.size + 4
_HINT = "the pack is damaged: restore it from a copy of the bucket"


class PackedFile(Struct, array_like=True, frozen=True, gc=False):
    """Where a stream's file lies in a pack, with its frame, and up to where it has applied the journal."""

    stream: str
    offset: int
    length: int
    position: int  # records of the stream below it are in the file
    epoch: int
    facts: bytes = b""  # what the shard has to know of the stream before it opens the file, in a form of its own


class PackRecord(Struct, array_like=True, frozen=True, gc=False, tag="pack"):
    """A record that names a pack: from its commit on, the pack is what these streams are read from."""

    pack: str  # the name of the object
    size: int
    files: list[PackedFile]
    below: int = 0  # everything of the shard below this position is in packs that were named so far


class StreamsRemoved(Struct, array_like=True, frozen=True, gc=False, tag="removed"):
    """Streams that are in no pack any more."""

    streams: list[str]
    below: int = 0


class AllPacks(Struct, array_like=True, frozen=True, gc=False, tag="all"):
    """All packs that count, with the files that are still read from them; what was told before does not matter."""

    packs: list[PackRecord]
    below: int = 0


Told = PackRecord | StreamsRemoved | AllPacks


_encode = msgpack.Encoder().encode
_decode_files = msgpack.Decoder(list[PackedFile]).decode


def new_pack_name(folder: str, epoch: int) -> str:
    """Return a name that no pack ever had."""
    return f"{folder}/{epoch:010d}-{uuid.uuid4().hex}.pack"


def encode_directory(files: Sequence[PackedFile], at: int) -> bytes:
    """Return the end of a pack: the directory, which begins at this place, and the footer that tells where it is."""
    directory = _encode(list(files))
    footer = FOOTER.pack(at, len(directory), crc32c.crc32c(directory), len(files), VERSION, PACK_MAGIC)
    return directory + footer + struct.pack("<I", crc32c.crc32c(footer))


def decode_footer(data: bytes, pack: str) -> tuple[int, int, int]:
    """Return place, size and check of the directory, from the last bytes of a pack."""
    if len(data) != FOOTER_BYTES or struct.unpack("<I", data[-4:])[0] != crc32c.crc32c(data[:-4]):
        raise StorageError(f"the end of pack {pack} is not as written", hint=_HINT)
    at, size, check, _, version, magic = FOOTER.unpack(data[:-4])
    if magic != PACK_MAGIC:
        raise StorageError(f"{pack} is not a pack", hint=_HINT)
    if version != VERSION:
        raise StorageError(f"pack format version {version} is not known", hint="read it with a newer Everlog")
    return at, size, check


def decode_directory(data: bytes, check: int, pack: str) -> list[PackedFile]:
    """Return the files of a pack."""
    if crc32c.crc32c(data) != check:
        raise StorageError(f"the directory of pack {pack} is not as written", hint=_HINT)
    return _decode_files(data)


def decode_frame(data: bytes, length: int, pack: str) -> tuple[int, int]:
    """Return check and size of the file that a frame stands before."""
    magic, check, size = FRAME.unpack(data) if len(data) == FRAME.size else (0, 0, 0)
    if magic != FILE_MAGIC or size != length - FRAME.size:
        raise StorageError(f"no file of {length} bytes begins there in pack {pack}", hint=_HINT)
    return check, size


class Packs:
    """Which pack each stream is in, after all records of packs so far; the last that names a stream counts."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, PackedFile]] = {}  # by stream: the pack, and where in it
        self.sizes: dict[str, int] = {}  # of every pack that was named
        self.below = 0  # everything of the shard below this position is in packs

    def take(self, told: Told) -> None:
        """Be as one more record says."""
        self.below = max(self.below, told.below)
        if isinstance(told, PackRecord):
            self.sizes[told.pack] = told.size
            self.files |= {file.stream: (told.pack, file) for file in told.files}
        elif isinstance(told, StreamsRemoved):
            for stream in told.streams:
                self.files.pop(stream, None)
        else:
            self.files.clear()
            self.sizes.clear()
            for record in told.packs:
                self.take(record)

    def records(self) -> list[PackRecord]:
        """Return a record for each pack that a stream is in, with the files that are still read from it."""
        by_pack: dict[str, list[PackedFile]] = {}
        for pack, file in self.files.values():
            by_pack.setdefault(pack, []).append(file)
        return [PackRecord(pack, self.sizes[pack], files, self.below) for pack, files in by_pack.items()]
