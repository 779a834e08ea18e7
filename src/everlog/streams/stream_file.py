"""A stream's SQLite file: a local view of its journal records, which says up to where it has applied them.

Records and the position they lead to are written in one transaction, so what a power cut leaves is a view as of an
earlier position, never half a record. Nothing is synced before `sync`; until then the journal keeps what the file has.
One process has a file open, and only while it holds `lock` (a thread that syncs and the one that applies take turns).
"""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import json, msgpack

from everlog.base import StorageError
from everlog.streams import stream_tables as tables
from everlog.streams.effects import (
    Acked,
    Died,
    DropAll,
    DropKeys,
    DropMessages,
    DropQueue,
    DropUpload,
    Part,
    PutKey,
    PutMessage,
    Record,
    Revived,
    SetQueue,
    Taken,
)
from everlog.streams.values import Config, Kind

CACHE_KIB = 64  # of pages a file keeps in memory
_DAMAGED = "move it away and restore the stream from a bucket or backup"
_PRAGMAS = (
    "PRAGMA locking_mode = EXCLUSIVE",  # no shared memory file, two descriptors
    "PRAGMA synchronous = NORMAL",  # synced at a checkpoint only
    "PRAGMA wal_autocheckpoint = 0",
    f"PRAGMA cache_size = -{CACHE_KIB}",
    "PRAGMA temp_store = MEMORY",
)


class FileClosed(StorageError):
    """A file that was open a moment ago is closed."""


class StreamFile:
    """An open file. `born` is the position of the stream's first record: another one's file is of another stream."""

    def __init__(self, path: str, name: str, born: int, kind: Kind, *, create: bool) -> None:
        self.path = path
        self.name = name
        self.born = born
        self.is_closed = False
        self.closed = threading.Event()  # set by whoever has another thread close it
        self.lock = threading.Lock()
        self.is_new = False  # its directory entry is not yet synced
        if create and not os.path.exists(path):
            self._create(kind)
        with self._guard():
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            try:
                self._open(name, born, kind)
            except BaseException:
                self._connection.close()
                raise

    def _create(self, kind: Kind) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        for leftover in (self.path + "-wal", self.path + "-shm"):
            if os.path.exists(leftover):
                os.unlink(leftover)
        with open(self.path, "wb") as file:
            file.write(tables.template(kind))
        self.is_new = True

    def _open(self, name: str, born: int, kind: Kind) -> None:
        execute = self._connection.execute
        for pragma in _PRAGMAS:
            execute(pragma)
        (version,) = execute("PRAGMA user_version").fetchone()
        if version != tables.VERSION:
            raise StorageError(f"{self.path}: version {version} is not known", hint="open it with a newer Everlog")
        self.applied: int
        known, found_born, found_kind, self.applied = execute("SELECT name, born, kind, applied FROM stream").fetchone()
        self.is_stale = known != "" and (known != name or found_born != born or found_kind != kind)
        self._has = {row[0] for row in execute("SELECT name FROM sqlite_master")}
        if known == "":
            execute("UPDATE stream SET name = ?, born = ?", (name, born))

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn an error of SQLite into a StorageError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self.path}: {error}", hint="check that the disk has room and is writable") from error
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} is damaged: {error}", hint=_DAMAGED) from error

    # ---- writing ----

    def apply(self, records: Sequence[tuple[int, Record]], config: Config, forgotten: int) -> None:
        """Bring the view to the position of the last of these records; those it has already are left out.

        Message ids of records up to the position `forgotten` are forgotten.
        """
        records = [one for one in records if one[0] > self.applied]
        if not records:
            return
        with self.lock, self._guard():
            execute = self._connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                self._write(records)
                position, last = records[-1]
                if "ids" in self._has:
                    execute("DELETE FROM ids WHERE position <= ?", (forgotten,))
                execute(
                    "UPDATE stream SET applied = ?, last_seq = ?, messages = ?, bytes = ?, config = ?, forgotten = ?",
                    (position, last.last_seq, last.messages, last.bytes, msgpack.encode(config), forgotten),
                )
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise
            self.applied = position

    def _write(self, records: Iterable[tuple[int, Record]]) -> None:
        messages: list[Any] = []  # plain ones, which gather for a statement of many rows
        entries: list[Any] = []
        for position, record in records:
            if record.message_id is not None:
                self._put_id(position, record)
            for effect in cast(list[Any], record.effects):
                kind = type(effect)
                is_plain = (kind is PutMessage or kind is PutKey) and (
                    effect.headers is None
                    and effect.timestamp is None
                    and effect.upload is None
                    and not effect.expires_us
                    and not effect.copied_us
                )
                if is_plain and kind is PutMessage:
                    messages += (effect.seq, position, record.time_us, effect.value)
                    if len(messages) == 4 * tables.GROUP:
                        self._connection.execute(tables.PUT_PLAIN_MESSAGES, messages)
                        messages.clear()
                elif is_plain:
                    entries += (effect.key, effect.revision, position, record.time_us, effect.value)
                    if len(entries) == 5 * tables.GROUP:
                        self._connection.execute(tables.PUT_PLAIN_ENTRIES, entries)
                        entries.clear()
                else:
                    self._flush(messages, entries)
                    _WRITERS.get(kind, _ignore)(self, position, record, effect)
        self._flush(messages, entries)

    def _flush(self, messages: list[Any], entries: list[Any]) -> None:
        if messages:
            rows = [messages[k : k + 4] for k in range(0, len(messages), 4)]
            self._connection.executemany(tables.PUT_PLAIN_MESSAGE, rows)
            messages.clear()
        if entries:
            rows = [entries[k : k + 5] for k in range(0, len(entries), 5)]
            self._connection.executemany(tables.PUT_PLAIN_ENTRY, rows)
            entries.clear()

    def _need(self, name: str) -> None:
        """Make a table or index that not every file has."""
        if name not in self._has:
            self._connection.execute(tables.ON_DEMAND[name].format(name=name))
            self._has.add(name)

    def _put_id(self, position: int, record: Record) -> None:
        self._need("ids")
        seqs = None if record.seqs is None else msgpack.encode(record.seqs)
        row = (record.message_id, position, record.time_us, record.previous, record.seq, record.count, seqs)
        self._connection.execute("INSERT OR REPLACE INTO ids VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _put_message(self, position: int, record: Record, effect: PutMessage) -> None:
        if effect.expires_us:
            self._need("expiring_messages")
        row = (effect.seq, position, effect.copied_us or record.time_us, *_rest(effect))
        self._connection.execute(tables.PUT_MESSAGE, row)
        if effect.upload is not None:
            self._fill("messages", effect.seq, effect.upload, effect.size)

    def _put_entry(self, position: int, record: Record, effect: PutKey) -> None:
        if effect.expires_us:
            self._need("expiring_entries")
        row = (effect.key, effect.revision, position, effect.copied_us or record.time_us, *_rest(effect))
        rowid = self._connection.execute(tables.PUT_ENTRY, row).lastrowid
        if effect.upload is not None:
            self._fill("entries", rowid, effect.upload, effect.size)

    def _fill(self, table: str, rowid: int | None, upload: str, size: int) -> None:
        """Write the parts of an upload into a row's value, which has room for them, and forget the upload."""
        assert rowid is not None
        self._need("parts")
        at = 0
        with self._connection.blobopen(table, "value", rowid) as blob:
            for (data,) in self._connection.execute("SELECT data FROM parts WHERE upload = ? ORDER BY part", (upload,)):
                blob.write(data)
                at += len(data)
        if at != size:
            raise StorageError(f"{self.path}: an upload has {at} of {size} bytes", hint=_DAMAGED)
        self._connection.execute("DELETE FROM parts WHERE upload = ?", (upload,))

    def _drop_messages(self, position: int, record: Record, effect: DropMessages) -> None:
        self._connection.executemany("DELETE FROM messages WHERE seq BETWEEN ? AND ?", effect.ranges)

    def _drop_keys(self, position: int, record: Record, effect: DropKeys) -> None:
        self._connection.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in effect.keys])

    def _drop_all(self, position: int, record: Record, effect: DropAll) -> None:
        self._connection.execute(f"DELETE FROM {'messages' if 'messages' in self._has else 'entries'}")

    def _put_part(self, position: int, record: Record, effect: Part) -> None:
        self._need("parts")
        row = (effect.upload, effect.part, record.time_us, effect.data)
        self._connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", row)

    def _drop_upload(self, position: int, record: Record, effect: DropUpload) -> None:
        self._need("parts")
        self._connection.execute("DELETE FROM parts WHERE upload = ?", (effect.upload,))

    def _need_queues(self) -> None:
        for name in ("queues", "taken", "dead"):
            self._need(name)

    def _set_queue(self, position: int, record: Record, effect: SetQueue) -> None:
        self._need_queues()
        self._connection.execute(
            "INSERT INTO queues VALUES (?1, ?2, ?3, 0, 0) ON CONFLICT (queue) DO UPDATE SET config = ?2",
            (effect.queue, msgpack.encode(effect.config), effect.cursor),
        )

    def _drop_queue(self, position: int, record: Record, effect: DropQueue) -> None:
        self._need_queues()
        for table in ("queues", "taken", "dead"):
            self._connection.execute(f"DELETE FROM {table} WHERE queue = ?", (effect.queue,))

    def _taken(self, position: int, record: Record, effect: Taken) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?, ?)", [(effect.queue, *one) for one in effect.messages]
        )
        ticket = max((one[1] for one in effect.messages), default=0)
        self._connection.execute(
            "UPDATE queues SET cursor = ?, ticket = max(ticket, ?) WHERE queue = ?",
            (effect.cursor, ticket, effect.queue),
        )

    def _acked(self, position: int, record: Record, effect: Acked) -> None:
        self._untake(effect.queue, effect.seqs)
        self._connection.executemany(
            "DELETE FROM dead WHERE queue = ? AND seq = ?", [(effect.queue, seq) for seq in effect.seqs]
        )
        self._connection.execute(
            "UPDATE queues SET acked = acked + ? WHERE queue = ?", (len(effect.seqs), effect.queue)
        )

    def _untake(self, queue: str, seqs: Iterable[int]) -> None:
        self._connection.executemany("DELETE FROM taken WHERE queue = ? AND seq = ?", [(queue, seq) for seq in seqs])

    def _died(self, position: int, record: Record, effect: Died) -> None:
        self._untake(effect.queue, [seq for seq, _ in effect.messages])
        self._connection.executemany(
            "UPDATE dead SET deliveries = ?, died_us = ?, is_revived = 0 WHERE queue = ? AND seq = ?",
            [(deliveries, record.time_us, effect.queue, seq) for seq, deliveries in effect.messages],
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO dead SELECT ?, seq, ?, ?, position, time_us, value, headers, timestamp, expires_us,"
            " 0 FROM messages WHERE seq = ?",
            [(effect.queue, deliveries, record.time_us, seq) for seq, deliveries in effect.messages],
        )

    def _revived(self, position: int, record: Record, effect: Revived) -> None:
        letters = [(effect.queue, seq) for seq in effect.seqs]
        if effect.is_dropped:
            self._connection.executemany("DELETE FROM dead WHERE queue = ? AND seq = ?", letters)
        else:
            self._connection.executemany("INSERT OR REPLACE INTO taken VALUES (?, ?, 0, 0, 0)", letters)
            self._connection.executemany("UPDATE dead SET is_revived = 1 WHERE queue = ? AND seq = ?", letters)

    # ---- reading ----

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        with self.lock, self._guard():
            return self._connection.execute(query, arguments).fetchall()

    def has(self, table: str) -> bool:
        """Return whether a table or index of `ON_DEMAND` is there."""
        return table in self._has

    def need(self, index: str) -> None:
        """Make an index of `ON_DEMAND` if it is not there."""
        with self.lock, self._guard():
            self._need(index)

    def part_of(self, table: str, rowid: int, offset: int, length: int) -> bytes:
        """Return a part of a row's value."""
        with self.lock, self._guard(), self._connection.blobopen(table, "value", rowid, readonly=True) as blob:
            blob.seek(min(offset, len(blob)))
            return blob.read(length)

    def copy_to(self, path: str) -> None:
        """Write the view as a new, compact SQLite file without write-ahead log."""
        with self.lock, self._guard():
            self._connection.execute("VACUUM INTO ?", (path,))

    @contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """Have the connection for oneself; for any thread. Raises `FileClosed` if it was closed meanwhile."""
        with self.lock, self._guard():
            if self.is_closed:
                raise FileClosed(f"{self.path} was closed")
            yield self._connection

    # ---- durability ----

    def sync(self) -> int:
        """Make all that is applied survive a power cut, and return the position that it leads to; for any thread."""
        with self.lock, self._guard():
            applied = self.applied
            if self.is_closed:  # which synced it
                return applied
            checkpoint(self._connection, self.path)
        if self.is_new:
            sync_directory(os.path.dirname(self.path))
            self.is_new = False
        return applied

    def close(self) -> None:
        """Close the file, with its write-ahead log merged into it and synced."""
        with self.lock, self._guard():
            self.is_closed = True
            self._connection.close()


def checkpoint(connection: sqlite3.Connection, path: str) -> None:
    """Bring all that is in a file's write-ahead log into the file, synced."""
    busy, logged, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if busy or logged != done:
        raise StorageError(f"{path}: another process has the file open", hint="stop that process")


def sync_directory(path: str) -> None:
    """Make new and removed names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rest(effect: PutMessage | PutKey) -> tuple[Any, ...]:
    value: Any = effect.value if effect.upload is None else _ZEROS(effect.size)
    headers = None if effect.headers is None else json.encode(effect.headers).decode()
    return value, headers, effect.timestamp, effect.expires_us or None


def _ignore(file: StreamFile, position: int, record: Record, effect: Any) -> None:
    """Do nothing: the effect has no rows."""


_ZEROS = bytes
_WRITERS: dict[type, Any] = {
    PutMessage: StreamFile._put_message,
    PutKey: StreamFile._put_entry,
    DropMessages: StreamFile._drop_messages,
    DropKeys: StreamFile._drop_keys,
    DropAll: StreamFile._drop_all,
    Part: StreamFile._put_part,
    DropUpload: StreamFile._drop_upload,
    SetQueue: StreamFile._set_queue,
    DropQueue: StreamFile._drop_queue,
    Taken: StreamFile._taken,
    Acked: StreamFile._acked,
    Died: StreamFile._died,
    Revived: StreamFile._revived,
}
