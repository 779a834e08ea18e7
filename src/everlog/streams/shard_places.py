"""Where the snapshot of a state shard is taken from: the directory of the server that owns it, or a bucket.

A place has the shard's journal, what streams there are, and their files. It is a small value that goes to whoever
reads, also in another process or on another machine.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from everlog.base import StorageError, UsageError
from everlog.streams.catalogue import VERSION
from everlog.streams.live_copy import copy_live
from everlog.streams.local_journal import LocalJournal
from everlog.streams.open_files import file_path
from everlog.streams.pack_index import row_of_facts
from everlog.streams.values import Kind
from everlog.tiering import BucketPacks, JournalReader, open_bucket, read_packs

_COLUMNS = "streams.name, kind, streams.born, last_seq, messages, bytes, is_hidden"
_ROWS = f"SELECT {_COLUMNS} FROM streams"
_ROWS_AND_PACKS = f"""
SELECT {_COLUMNS}, pack, offset, length
FROM streams LEFT JOIN packed ON packed.name = streams.name AND packed.born = streams.born
"""
_LAST = 4
_ROW_OF_FACTS = (0, 1, 3, 8, 9, 10, 15)  # where these are in a row of the catalogue

Wants = Callable[[str], bool]


class ReadableJournal(Protocol):
    """What is read of a journal."""

    @property
    def start(self) -> int:
        """The first position that can still be read."""

    @property
    def committed(self) -> int:
        """The position after the last committed record."""

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield committed records from `position` to before `end`."""

    def close(self) -> None:
        """Let go of it."""


class Packed(NamedTuple):
    """Where a stream's file lies in a bucket, and the position after the last record that it has of the stream."""

    pack: str
    offset: int
    length: int
    end: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotStream:
    """A stream or key-value store as of the position of its snapshot."""

    name: str
    kind: Kind
    born: int  # position of its first record
    last_seq: int
    messages: int
    bytes: int
    is_hidden: bool = False
    packed: Packed | None = None


Known = tuple[int, dict[str, SnapshotStream]]  # below which position files have everything, and the streams by name


class ShardPlace(Protocol):
    """A shard that can be read."""

    def is_there(self) -> bool:
        """Return whether it was ever written to."""

    def open_journal(self) -> ReadableJournal:
        """Return its journal with all that is committed now."""

    def known(self, wants: Wants) -> Known:
        """Return what is told of streams beside the journal."""

    def fetch(self, stream: SnapshotStream, path: str) -> bool:
        """Write a stream's file to a new place; return False if there is none."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """The directory of a shard on a disk that this machine sees, and the bucket that some of its files may be in."""

    directory: str
    bucket: str = ""

    def is_there(self) -> bool:
        """Return whether it was ever written to."""
        return os.path.exists(f"{self.directory}/journal")

    def open_journal(self) -> ReadableJournal:
        """Return its journal with all that is committed now."""
        return LocalJournal.follow(f"{self.directory}/journal")

    def known(self, wants: Wants) -> Known:
        """Return the rows of the catalogue."""
        path = f"{self.directory}/catalogue.db"
        with TemporaryDirectory(prefix="everlog-") as scratch:
            copy = f"{scratch}/catalogue.db"
            if not copy_live(path, copy):
                return 0, {}
            try:
                with closing(sqlite3.connect(copy)) as connection:
                    (version,) = connection.execute("PRAGMA user_version").fetchone()
                    if version == 0:
                        return 0, {}  # just being made
                    if version != VERSION:
                        raise StorageError(f"{path}: version {version} is not known")
                    (whole,) = connection.execute("SELECT whole FROM shard").fetchone()
                    query = "SELECT 1 FROM sqlite_master WHERE name = 'packed'"
                    is_packed = connection.execute(query).fetchone() is not None
                    found = connection.execute(_ROWS_AND_PACKS if is_packed else _ROWS)
                    rows = [row for row in found if wants(row[0])]
            except sqlite3.Error as error:
                raise StorageError(f"{path} is damaged: {error}", hint="restore the shard") from error
        return whole, {row[0]: _stream_of(row, Packed(*row[7:]) if row[7:] and row[7] else None) for row in rows}

    def fetch(self, stream: SnapshotStream, path: str) -> bool:
        """Copy a stream's file, which its owner may be writing to; one that is only in the bucket comes from there."""
        if copy_live(file_path(f"{self.directory}/files", stream.name), path):
            return True
        if stream.packed is None:
            return False
        if not self.bucket:
            raise UsageError(
                f"the file of {stream.name} is in the bucket of that server",
                hint='name it with the option "bucket", or read the bucket itself',
            )
        return _fetch(self.bucket, stream.packed, path)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A shard in a bucket or a shared directory: a journal of objects, and packs of files.

    Credentials come from the environment. What is named is never changed, and stays for a day after it was replaced.
    """

    bucket: str
    folder: str

    def is_there(self) -> bool:
        """Return whether it was ever written to."""
        return JournalReader(open_bucket(self.bucket), f"{self.folder}/journal").follow() is not None

    def open_journal(self) -> ReadableJournal:
        """Return its journal with all that is committed now."""
        return ObjectRecords(JournalReader(open_bucket(self.bucket), f"{self.folder}/journal"))

    def known(self, wants: Wants) -> Known:
        """Return what the manifest tells of the streams in packs."""
        packs = read_packs(open_bucket(self.bucket), f"{self.folder}/manifest")
        found = {}
        for name, (pack, file) in packs.files.items():
            if wants(name):
                facts = row_of_facts(file.facts)
                packed = Packed(pack, file.offset, file.length, facts[_LAST] + 1)
                found[name] = _stream_of([facts[number] for number in _ROW_OF_FACTS], packed)
        return packs.below, found

    def fetch(self, stream: SnapshotStream, path: str) -> bool:
        """Write a stream's file out of its pack."""
        return stream.packed is not None and _fetch(self.bucket, stream.packed, path)


def _stream_of(row: Sequence[Any], packed: Packed | None) -> SnapshotStream:
    name, kind, born, last_seq, messages, size, is_hidden = row[:7]
    return SnapshotStream(name, Kind(kind), born, last_seq, messages, size, bool(is_hidden), packed)


def _fetch(bucket: str, packed: Packed, path: str) -> bool:
    BucketPacks(open_bucket(bucket)).fetch(packed.pack, packed.offset, packed.length, path)
    return True


class ObjectRecords:
    """The committed records in a journal of objects, as far as it went when it was opened."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        reader.follow()

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return self._reader.start

    @property
    def committed(self) -> int:
        """The position after the last committed record."""
        return self._reader.end

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield committed records from `position` to before `end`."""
        return self._reader.read(position, end, stream)

    def close(self) -> None:
        """Do nothing: an object that was read is not held open."""
