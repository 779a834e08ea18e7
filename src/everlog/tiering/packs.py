"""Writes packs, reads a file out of one by range, and checks whole ones. A pack is built in a local file."""

import os
import tempfile
from collections.abc import Iterator
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
        self._file.close()
        os.unlink(self._path)

    @property
    def size(self) -> int:
        """How many bytes the pack has so far."""
        return self._file.tell()

    def add(self, stream: str, path: str | Path, position: int) -> PackedFile:
        """Take in a stream's file, a copy that SQLite made (`VACUUM INTO`, or the backup API), never a live one."""
        _refuse_live(Path(path))
        offset, check, size = self.size, 0, 0
        self._file.write(bytes(FRAME.size))
        for piece in _pieces(path):
            self._file.write(piece)
            check = crc32c.crc32c(piece, check)
            size += len(piece)
        self._file.write(bytes(-size % 8))
        end = self.size
        self._file.seek(offset)
        self._file.write(FRAME.pack(FILE_MAGIC, check, size))
        self._file.seek(end)
        self._files.append(PackedFile(stream, offset, FRAME.size + size, position, self._epoch))
        return self._files[-1]

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
        """Write the checked bytes of one stream's file, which lie in a pack, to a new local file."""
        check, size = decode_frame(self._read(pack, offset, FRAME.size), length, pack)
        temporary = f"{path}.fetched"
        found = 0
        try:
            with open(temporary, "wb") as file:
                for piece in self._pieces(pack, offset + FRAME.size, size):
                    file.write(piece)
                    found = crc32c.crc32c(piece, found)
                file.flush()
                os.fsync(file.fileno())
            if found != check:
                raise StorageError(f"the file at {offset} of pack {pack} is not as written", hint=_HINT)
            os.replace(temporary, path)
        except OSError as error:
            raise StorageError(f"{path}: {error}", hint="check that the disk has space") from error
        finally:
            Path(temporary).unlink(missing_ok=True)

    def files(self, pack: str, size: int) -> list[PackedFile]:
        """Return what a pack of this size holds, by its own directory."""
        at, length, check = decode_footer(self._read(pack, size - FOOTER_BYTES, FOOTER_BYTES), pack)
        return decode_directory(self._read(pack, at, length), check, pack)

    def verify(self, record: PackRecord) -> None:
        """Check every byte of a pack against itself and against the record that names it; raise StorageError."""
        pack = record.pack
        if self._read(pack, 0, HEADER.size) != _BEGIN or self._bucket.get_range(pack, record.size, 1):
            raise StorageError(f"{pack} is not the pack that was written", hint=_HINT)
        if self.files(pack, record.size) != record.files:
            raise StorageError(f"pack {pack} has other files than the shard says", hint=_HINT)
        for file in record.files:
            padding = -file.length % 8
            if self._read(pack, file.offset + file.length, padding) != bytes(padding):
                raise StorageError(f"pack {pack} is not as written behind {file.stream}", hint=_HINT)
            check, size = decode_frame(self._read(pack, file.offset, FRAME.size), file.length, pack)
            found = 0
            for piece in self._pieces(pack, file.offset + FRAME.size, size):
                found = crc32c.crc32c(piece, found)
            if found != check:
                raise StorageError(f"the file of {file.stream} in pack {pack} is not as written", hint=_HINT)

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


def _pieces(path: str | Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
