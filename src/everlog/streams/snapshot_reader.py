"""Reads the messages and entries of a snapshot: each stream from a private copy of its file, at the position exactly.

A file that is behind the position is given the journal's records up to it. One that its owner has brought beyond the
position is taken back: rows of later records go, and what those replaced or deleted is taken from earlier records. If
the journal has no such record any more, the number of messages is not what it was, and the reader says so.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from tempfile import TemporaryDirectory

from msgspec import json

from everlog.base import Unavailable
from everlog.streams import stream_tables as tables
from everlog.streams.effects import PutMessage, Record, decode_record
from everlog.streams.fresh import Fresh
from everlog.streams.overlay import Overlay
from everlog.streams.shard_places import ReadableJournal, SnapshotStream
from everlog.streams.shard_snapshot import ShardSnapshot
from everlog.streams.stored_messages import count_messages, find_row, read_messages, take_back_blocks
from everlog.streams.stored_rows import read_entries
from everlog.streams.stream_file import StreamFile
from everlog.streams.values import Config, Entry, Kind, StoredMessage

CHUNK_BYTES = 4 << 20  # of messages at a time
_ANY_SIZE = 1 << 40
_MOST = (1 << 62) - 1

Tail = list[tuple[int, Record]]


def read_snapshot(
    snapshot: ShardSnapshot, streams: Sequence[SnapshotStream]
) -> Iterator[tuple[SnapshotStream, list[StoredMessage] | list[Entry]]]:
    """Yield the content of streams of a snapshot in chunks, by rising seq or key, one stream after the other."""
    if not streams:
        return
    with (
        closing(snapshot.place.open_journal()) as journal,
        TemporaryDirectory(prefix="everlog-") as scratch,
    ):
        tails = _tails(journal, snapshot, {stream.name for stream in streams})
        for stream in streams:
            file = _open(snapshot, stream, journal, tails.get(stream.name, []), f"{scratch}/stream.db")
            try:
                for chunk in _chunks(file, stream.kind):
                    yield stream, chunk
            finally:
                _discard(file)


def _tails(journal: ReadableJournal, snapshot: ShardSnapshot, names: set[str]) -> dict[str, Tail]:
    """Return the records up to the snapshot's position that files may not have, by name."""
    found: dict[str, Tail] = {}
    first = min(snapshot.whole, snapshot.end)
    if first < journal.start:
        first = journal.start  # trimmed since: files have what is gone
    for position, name, effect in journal.read(first, max(first, snapshot.end)):
        if name in names:
            found.setdefault(name, []).append((position, decode_record(effect)))
    return found


def _open(
    snapshot: ShardSnapshot, stream: SnapshotStream, journal: ReadableJournal, tail: Tail, path: str
) -> StreamFile:
    """Return a private file of a stream at the snapshot's position."""
    copied = snapshot.place.fetch(stream, path)
    if not copied and tail and tail[0][0] == stream.born:  # all of its life is there
        file = StreamFile(path, stream.name, stream.born, stream.kind, create=True)
        file.rows("PRAGMA synchronous = OFF")
        file.apply(tail, Config(), -1)
        return file
    file = StreamFile(path, stream.name, stream.born, stream.kind, create=True)
    try:
        file.rows("PRAGMA synchronous = OFF")
        if not copied or file.is_stale:  # of a stream of that name before it or after it
            _discard(file)
            file = _rebuilt(snapshot, stream, journal, path)
        elif file.applied >= snapshot.end:
            _take_back(file, stream, journal, snapshot.end)
        else:
            file.apply(tail, Config(), -1)
        if _count(file, stream.kind) != stream.messages:
            raise _changed(stream)
    except BaseException:
        _discard(file)
        raise
    return file


def _count(file: StreamFile, kind: Kind) -> int:
    return count_messages(file) if kind is Kind.STREAM else int(file.rows("SELECT count(*) FROM entries")[0][0])


def _rebuilt(snapshot: ShardSnapshot, stream: SnapshotStream, journal: ReadableJournal, path: str) -> StreamFile:
    """Return a stream whose records are all in the journal."""
    if stream.born < journal.start:
        raise _changed(stream)
    file = StreamFile(path, stream.name, stream.born, stream.kind, create=True)
    file.rows("PRAGMA synchronous = OFF")
    records = journal.read(stream.born, snapshot.end, stream.name)
    file.apply([(position, decode_record(effect)) for position, _, effect in records], Config(), -1)
    return file


def _take_back(file: StreamFile, stream: SnapshotStream, journal: ReadableJournal, end: int) -> None:
    """Bring a file back to what it was before a position.

    A row's position names its content: those below `end` are as they were. What is missing beside them was replaced or
    deleted later, and is written again as far as the journal has it.
    """
    table = "messages" if stream.kind is Kind.STREAM else "entries"
    take_back_blocks(file, end)
    file.rows(f"DELETE FROM {table} WHERE position >= ?", (end,))
    known = Overlay()
    first = max(stream.born, journal.start)
    for position, _, effect in journal.read(first, max(first, end), stream.name):
        known.take(position, decode_record(effect))
    for key, fresh in known.fresh.items():
        if fresh is None or fresh.effect.upload is not None:
            continue
        if isinstance(key, int):
            is_there = find_row(file, key, 0) is not None
        else:
            is_there = bool(file.rows("SELECT 1 FROM entries WHERE key = ?", (key,)))
        if not is_there:
            _put(file, fresh)


def _changed(stream: SnapshotStream) -> Unavailable:
    return Unavailable(
        f"{stream.name} was changed since the snapshot was taken, and what it had then is gone",
        hint="take it again, and keep what was read if it is to be used twice",
    )


def _discard(file: StreamFile) -> None:
    file.close()
    for path in (file.path, file.path + "-wal"):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _put(file: StreamFile, fresh: Fresh) -> None:
    """Write the content of a seq or key."""
    effect = fresh.effect
    headers = None if effect.headers is None else json.encode(effect.headers).decode()
    rest = (effect.value, headers, effect.timestamp, effect.expires_us or None)
    time_us = effect.copied_us or fresh.time_us
    if isinstance(effect, PutMessage):
        file.rows(tables.PUT_MESSAGE, (effect.seq, fresh.position, time_us, *rest))
    else:
        file.rows(tables.PUT_ENTRY, (effect.key, effect.revision, fresh.position, time_us, *rest))


def _chunks(file: StreamFile, kind: Kind) -> Iterator[list[StoredMessage] | list[Entry]]:
    more = True
    first, after = 0, ""
    while more:
        if kind is Kind.STREAM:
            messages, more = read_messages(file, first, _MOST, _MOST, _ANY_SIZE, CHUNK_BYTES)
            if messages:
                first = messages[-1].seq + 1
                yield messages
        else:
            entries, more = read_entries(file, "", after, _MOST, _ANY_SIZE, CHUNK_BYTES)
            if entries:
                after = entries[-1].key
                yield entries
