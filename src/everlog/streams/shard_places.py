"""Where the snapshot of a state shard is taken from: the directory of the server that owns it, or a bucket.

A place has the shard's journal, what streams there are, and their files. It is a small value that goes to whoever
reads, also in another process or on another machine.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Protocol

from everlog.base import StorageError
from everlog.streams.catalogue import VERSION
from everlog.streams.live_copy import copy_live
from everlog.streams.local_journal import LocalJournal
from everlog.streams.open_files import file_path
from everlog.streams.values import Kind
from everlog.tiering import JournalReader, open_bucket

_ROWS = "SELECT name, kind, born, last_seq, messages, bytes, is_hidden FROM streams"

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
    """The directory of a shard on a disk that this machine sees."""

    directory: str

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
                    rows = [row for row in connection.execute(_ROWS) if wants(row[0])]
            except sqlite3.Error as error:
                raise StorageError(f"{path} is damaged: {error}", hint="restore the shard") from error
        return whole, {
            name: SnapshotStream(name, Kind(kind), born, last_seq, messages, size, bool(is_hidden))
            for name, kind, born, last_seq, messages, size, is_hidden in rows
        }

    def fetch(self, stream: SnapshotStream, path: str) -> bool:
        """Copy a stream's file, which its owner may be writing to."""
        return copy_live(file_path(f"{self.directory}/files", stream.name), path)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A shard in a bucket or a shared directory: a journal of objects. Credentials come from the environment."""

    bucket: str
    folder: str

    def is_there(self) -> bool:
        """Return whether it was ever written to."""
        return JournalReader(open_bucket(self.bucket), f"{self.folder}/journal").follow() is not None

    def open_journal(self) -> ReadableJournal:
        """Return its journal with all that is committed now."""
        return ObjectRecords(JournalReader(open_bucket(self.bucket), f"{self.folder}/journal"))

    def known(self, wants: Wants) -> Known:
        """Return nothing: the journal has it all."""
        return 0, {}

    def fetch(self, stream: SnapshotStream, path: str) -> bool:
        """Return False: there are no files."""
        return False


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
