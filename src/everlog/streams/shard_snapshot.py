"""The streams of a state shard as of one position, taken beside its owner, without a lock and without asking it.

What a stream is at that position comes from its row in the catalogue and the records behind it. Its content is made
from a copy of its file, which the journal brings to the position, whether the file is behind it or beyond it by then.
Never in the owner's own process: closing a copied file there would end the locks that the owner has on it.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Protocol

from everlog.base import StorageError, Unavailable, UsageError
from everlog.streams.catalogue import VERSION
from everlog.streams.effects import NO_POSITION, DropAll, DropKeys, PutKey, Record, SetConfig, decode_record
from everlog.streams.live_copy import copy_live
from everlog.streams.local_journal import LocalJournal
from everlog.streams.values import Kind

_ATTEMPTS = 10  # to find a catalogue and a journal that fit together
_ROWS = "SELECT name, kind, born, last_seq, messages, bytes, is_hidden FROM streams"


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


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """The streams of a shard that were asked for, as they are after all records below `end`."""

    directory: str
    end: int
    whole: int  # records below it are in files
    streams: tuple[SnapshotStream, ...]


def take_snapshot(directory: str, wants: Callable[[str], bool], kind: Kind, end: int | None = None) -> ShardSnapshot:
    """Return the streams of a kind whose names are wanted, as they are committed now, or after all records below `end`.

    An earlier state is known as far as the journal goes back.
    """
    if not os.path.exists(f"{directory}/journal"):
        return ShardSnapshot(directory, 0, 0, ())
    for _ in range(_ATTEMPTS):
        whole, known = _read_catalogue(directory, wants)
        with closing(LocalJournal.follow(f"{directory}/journal")) as journal:
            if whole < journal.start:
                continue  # the journal was trimmed in between: the catalogue knows by now
            last = journal.committed
            if end is not None and end > last:
                raise UsageError(f"{directory} ends at position {last}, before {end}", hint="leave it out for the end")
            _replay(known, journal, whole, last, wants)
            if end is not None and end < last:
                _go_back(known, journal, end, wants)
            there = [one for _, one in sorted(known.items()) if one.kind is kind and not one.is_hidden]
            return ShardSnapshot(directory, last if end is None else end, whole, tuple(there))
    raise Unavailable(f"{directory} changes faster than it can be read", hint="try again")


def _read_catalogue(directory: str, wants: Callable[[str], bool]) -> tuple[int, dict[str, SnapshotStream]]:
    """Return below which position the files have everything, and the streams that have rows."""
    with TemporaryDirectory(prefix="everlog-") as scratch:
        path = f"{scratch}/catalogue.db"
        if not copy_live(f"{directory}/catalogue.db", path):
            return 0, {}
        try:
            with closing(sqlite3.connect(path)) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    return 0, {}  # just being made
                if version != VERSION:
                    raise StorageError(f"{directory}/catalogue.db: version {version} is not known")
                (whole,) = connection.execute("SELECT whole FROM shard").fetchone()
                rows = [row for row in connection.execute(_ROWS) if wants(row[0])]
        except sqlite3.Error as error:
            raise StorageError(f"{directory}/catalogue.db is damaged: {error}", hint="restore the shard") from error
    return whole, {
        name: SnapshotStream(name, Kind(kind), born, last_seq, messages, size, bool(is_hidden))
        for name, kind, born, last_seq, messages, size, is_hidden in rows
    }


def _replay(
    known: dict[str, SnapshotStream], journal: ReadableJournal, first: int, end: int, wants: Callable[[str], bool]
) -> None:
    """Bring streams to a position."""
    for position, name, effect in journal.read(first, end):
        if wants(name):
            after = after_record(known.get(name), name, position, decode_record(effect))
            if after is None:
                known.pop(name, None)
            else:
                known[name] = after


def after_record(before: SnapshotStream | None, name: str, position: int, record: Record) -> SnapshotStream | None:
    """Return a stream after a record, or None if it is gone."""
    stream = before or SnapshotStream(name, Kind.STREAM, NO_POSITION, 0, 0, 0)
    if record.previous == NO_POSITION and record.is_visible:
        stream = replace(stream, born=position)
    stream = replace(stream, last_seq=record.last_seq, messages=record.messages, bytes=record.bytes)
    for effect in record.effects:
        if isinstance(effect, DropAll) and effect.is_removed:
            return None
        if isinstance(effect, SetConfig):
            stream = replace(stream, kind=effect.kind, is_hidden=effect.is_hidden)
        elif isinstance(effect, PutKey | DropKeys):
            stream = replace(stream, kind=Kind.KV)
    return stream


def _go_back(
    known: dict[str, SnapshotStream], journal: ReadableJournal, end: int, wants: Callable[[str], bool]
) -> None:
    """Bring the streams that changed from a position on to what they were there."""
    if end < journal.start:
        raise UsageError(
            f"the journal begins at position {journal.start}, behind {end}", hint="give a later position, or none"
        )
    changed: dict[str, bool] = {}  # whether they were there
    for _, name, effect in journal.read(end, journal.committed):
        if wants(name) and name not in changed:
            record = decode_record(effect)
            changed[name] = not (record.previous == NO_POSITION and record.is_visible)
    before: dict[str, SnapshotStream] = {}
    gone: set[str] = set()
    for position, name, effect in journal.read(journal.start, end):
        if name in changed:
            start = before.get(name)
            if start is None and name in known and known[name].born < end:
                start = known[name]
            after = after_record(start, name, position, decode_record(effect))
            before.pop(name, None)
            gone.discard(name)
            if after is None:
                gone.add(name)
            else:
                before[name] = after
    for name, was_there in changed.items():
        known.pop(name, None)
        if name in before:
            known[name] = before[name]
        elif was_there and name not in gone:
            raise Unavailable(
                f"{name} was changed at position {end} or later, and the journal has nothing before that any more",
                hint="give a later position, or none",
            )
