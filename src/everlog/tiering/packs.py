"""Writes packs, reads a file out of one by range, and checks whole ones. A pack is built in a local file.

A small SQLite file is mostly empty pages, so files are compressed: to a tenth, in the time that reading them takes.
"""

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import crc32c

from everlog.base import StorageError, UsageError
from everlog.tiering.pack_format import (
    FILE_MAGIC,
    FOOTER_BYTES,
    FRAME,
    HEADER,
    PACK_MAGIC,
    VERSION,
    PackedFile,
    PackRecord,
    decode_directory,
    decode_footer,
    decode_frame,
    encode_directory,
    new_pack_name,
)
from everlog.tiering.ports import Bucket

_BEGIN = HEADER.pack(PACK_MAGIC, VERSION, HEADER.size)
_PIECE_BYTES = 4 << 20
_LEVEL = 1  # of compression
_SQLITE = b"SQLite format 3\x00"
_WRITE_VERSION_AT, _WITH_WAL = 18, 2
_HINT = "the pack is damaged: restore it from a copy of the bucket"


class PackWriter:
    """A pack that is being made; `upload` ends it. Use it in a `with` block, which leaves no local file behind."""

    def __init__(self, bucket: Bucket, folder: str, epoch: int, scratch: str | Path | None = None) -> None:
        self._bucket = bucket
        self._epoch = epoch
        self.name = new_pack_name(folder, epoch)
        descriptor, self._path = tempfile.mkstemp(".pack", dir=scratch)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")
        self._files: list[PackedFile] = []
        self._file.write(_BEGIN)

    def __enter__(self) -> "PackWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave no local file behind."""
        if not self._file.closed:
            self._file.close()
            os.unlink(self._path)

    @property
    def size(self) -> int:
        """How many bytes the pack has so far."""
        return self._file.tell()

    def add(self, stream: str, path: str | Path, position: int, facts: bytes = b"") -> PackedFile:
        """Take in a stream's file, a copy that SQLite made, never a live one."""
        _refuse_live(Path(path))
        with open(path, "rb") as file:
            return self._add(stream, _compressed(iter(lambda: file.read(_PIECE_BYTES), b"")), position, facts)

    def add_bytes(self, stream: str, data: bytes, position: int, facts: bytes = b"") -> PackedFile:
        """Take in a stream's file that is in memory."""
        return self._add(stream, [zlib.compress(data, _LEVEL)], position, facts)

    def add_packed(self, stream: str, pieces: Iterable[bytes], position: int, facts: bytes = b"") -> PackedFile:
        """Take in a stream's file as it lies in another pack."""
        return self._add(stream, pieces, position, facts)

    def _add(self, stream: str, pieces: Iterable[bytes], position: int, facts: bytes) -> PackedFile:
        offset, check, size = self.size, 0, 0
        self._file.write(bytes(FRAME.size))
        try:
            for piece in pieces:
                self._file.write(piece)
                check = crc32c.crc32c(piece, check)
                size += len(piece)
        except BaseException:
            self._file.seek(offset)
            self._file.truncate()
            raise
        self._file.write(bytes(-size % 8))
        end = self.size
        self._file.seek(offset)
        self._file.write(FRAME.pack(FILE_MAGIC, check, size))
        self._file.seek(end)
        self._files.append(PackedFile(stream, offset, FRAME.size + size, position, self._epoch, facts))
        return self._files[-1]

    def __len__(self) -> int:
        return len(self._files)

    def upload(self) -> PackRecord:
        """Put the pack into the bucket and return the record that will name it, for the shard to commit."""
        if not self._files:
            raise UsageError("a pack has at least one file")
        self._file.write(encode_directory(self._files, self.size))
        size = self.size
        self._file.flush()
        self._bucket.put_file(self.name, self._path)
        return PackRecord(self.name, size, self._files)


class BucketPacks:
    """The packs in a bucket, for reading; implements `PackReader` of `everlog.streams`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def fetch(self, pack: str, offset: int, length: int, path: str) -> None:
        """Write the checked contents of one stream's file, which lies in a pack, to a new local file; not synced."""
        temporary = f"{path}.fetched"
        unpack = zlib.decompressobj()
        try:
            with open(temporary, "wb") as file:
                for piece in self.stored(pack, offset, length):
                    file.write(unpack.decompress(piece))
                file.write(unpack.flush())
            if not unpack.eof:
                raise StorageError(f"the file at {offset} of pack {pack} is not whole", hint=_HINT)
            os.replace(temporary, path)
        except zlib.error as error:
            raise StorageError(f"the file at {offset} of pack {pack} can't be unpacked: {error}", hint=_HINT) from error
        except OSError as error:
            raise StorageError(f"{path}: {error}", hint="check that the disk has space") from error
        finally:
            Path(temporary).unlink(missing_ok=True)

    def stored(self, pack: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield a file as it lies in a pack; raise StorageError, at the end at the latest, if it is not as written."""
        first = self._read(pack, offset, min(length, _PIECE_BYTES))  # one request for most files
        check, _ = decode_frame(first[: FRAME.size], length, pack)
        piece = first[FRAME.size :]
        found = crc32c.crc32c(piece)
        for following in self._pieces(pack, offset + len(first), length - len(first)):
            yield piece
            piece = following
            found = crc32c.crc32c(piece, found)
        if found != check:
            raise StorageError(f"the file at {offset} of pack {pack} is not as written", hint=_HINT)
        yield piece

    def files(self, pack: str, size: int) -> list[PackedFile]:
        """Return what a pack of this size holds, by its own directory."""
        at, length, check = decode_footer(self._read(pack, size - FOOTER_BYTES, FOOTER_BYTES), pack)
        return decode_directory(self._read(pack, at, length), check, pack)

    def verify(self, record: PackRecord) -> None:
        """Check every byte of a pack against itself and against the record that names it; raise StorageError."""
        pack = record.pack
        if self._read(pack, 0, HEADER.size) != _BEGIN or self._bucket.get_range(pack, record.size, 1):
            raise StorageError(f"{pack} is not the pack that was written", hint=_HINT)
        held = {file.stream: file for file in self.files(pack, record.size)}
        if any(held.get(file.stream) != file for file in record.files):
            raise StorageError(f"pack {pack} has other files than the shard says", hint=_HINT)
        for file in record.files:
            padding = -file.length % 8
            if self._read(pack, file.offset + file.length, padding) != bytes(padding):
                raise StorageError(f"pack {pack} is not as written behind {file.stream}", hint=_HINT)
            try:
                for _ in self.stored(pack, file.offset, file.length):
                    pass
            except StorageError as error:
                raise StorageError(f"the file of {file.stream}: {error.message}", hint=_HINT) from error

    def _pieces(self, pack: str, at: int, size: int) -> Iterator[bytes]:
        for begin in range(at, at + size, _PIECE_BYTES):
            yield self._read(pack, begin, min(_PIECE_BYTES, at + size - begin))

    def _read(self, pack: str, at: int, size: int) -> bytes:
        data = self._bucket.get_range(pack, at, size)
        if data is None or len(data) != size:
            raise StorageError(f"pack {pack} is {'missing' if data is None else 'too short'}", hint=_HINT)
        return data


def _refuse_live(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(_WRITE_VERSION_AT + 1)
    if head.startswith(_SQLITE) and head[_WRITE_VERSION_AT] == _WITH_WAL:
        raise UsageError(f"{path} is a database with a write-ahead log", hint="pack a copy made by VACUUM INTO")


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    pack = zlib.compressobj(_LEVEL)
    for piece in pieces:
        yield pack.compress(piece)
    yield pack.flush()
