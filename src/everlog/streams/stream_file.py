"""A stream's SQLite file: a local view of its journal records, which says up to where it has applied them.

Records and the position they lead to are written in one transaction, so what a power cut leaves is a view as of an
earlier position, never half a record. Nothing is synced before `sync`; until then the journal keeps what the file has.
One process has a file open, and only while it holds `lock` (a thread that syncs and the one that applies take turns).
Above 400 lines: a writer for each effect that a record can have.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

from msgspec import json, msgpack

from everlog.base import StorageError
from everlog.streams import stream_tables as tables
from everlog.streams.block_table import MOST_SEQ, drop_messages, open_blocks, put_blocks
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
from everlog.streams.fresh import Appended
from everlog.streams.message_blocks import DamagedBlock, block_run
from everlog.streams.message_runs import MessageRun, unpacked
from everlog.streams.row_runs import entry_run, message_run
from everlog.streams.values import Config, Kind

CACHE_KIB = 64  # of pages a file keeps in memory
LEAST_RUN = 16  # messages that become blocks; a shorter run is rows
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
        with open(self.path + ".new", "wb") as file:
            file.write(tables.template(kind))
        os.replace(self.path + ".new", self.path)  # whoever copies live files never sees half of one
        self.is_new = True

    def _open(self, name: str, born: int, kind: Kind) -> None:
        execute = self._connection.execute
        for pragma in _PRAGMAS:
            execute(pragma)
        (version,) = execute("PRAGMA user_version").fetchone()
        if version not in (tables.VERSION, tables.VERSION_WITH_BLOCKS):
            raise StorageError(f"{self.path}: version {version} is not known", hint="open it with a newer Everlog")
        self.applied: int
        query = "SELECT name, born, kind, applied, last_seq FROM stream"
        known, found_born, found_kind, self.applied, self._last_seq = execute(query).fetchone()
        self.is_stale = known != "" and (known != name or found_born != born or found_kind != kind)
        self._look()
        self._is_named = known != ""  # a new file is named with its first records

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn an error of SQLite into a StorageError."""
        try:
            yield
        except DamagedBlock as error:
            raise StorageError(f"{self.path} is damaged: {error}", hint=_DAMAGED) from error
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self.path}: {error}", hint="check that the disk has room and is writable") from error
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} is damaged: {error}", hint=_DAMAGED) from error

    # ---- writing ----

    def apply(
        self, records: Sequence[tuple[int, Record | Appended | MessageRun]], config: Config, forgotten: int
    ) -> None:
        """Bring the view to the position of the last of these records; those it has already are left out.

        Message ids of records up to the position `forgotten` are forgotten.
        """
        every = list(records)
        in_blocks = are_kept_in_blocks(config) and "messages" in self._has
        if not (in_blocks and self._are_next(every)):
            every = [one for one in unpacked(every) if one[0] > self.applied]
        if not every:
            return
        position, last = every[-1]
        with self.changed() as connection:
            execute = connection.execute
            self._write(every, in_blocks)
            if "ids" in self._has:
                execute("DELETE FROM ids WHERE position <= ?", (forgotten,))
            execute(
                "UPDATE stream SET applied = ?, last_seq = ?, messages = ?, bytes = ?, config = ?, forgotten = ?",
                (position, last.last_seq, last.messages, last.bytes, msgpack.encode(config), forgotten),
            )
            if not self._is_named:
                execute("UPDATE stream SET name = ?, born = ?", (self.name, self.born))
        self.applied, self._last_seq = position, last.last_seq
        self._is_named = True

    @contextmanager
    def changed(self) -> Iterator[sqlite3.Connection]:
        """Have the connection for a change that is made whole or not at all."""
        with self.lock, self._guard():
            execute = self._connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                self._look()
                raise

    def _look(self) -> None:
        """Note which tables and indexes there are."""
        self._has = {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master")}

    def _are_next(self, records: list[tuple[int, Any]]) -> bool:
        """Return whether these are nothing but runs of messages, as long as blocks are, that continue the stream."""
        seq, position = self._last_seq + 1, self.applied
        for last_position, one in records:
            if type(one) is not MessageRun or one.seq != seq or one.position <= position:
                return False
            seq, position = one.last_seq + 1, last_position
        return bool(seq - self._last_seq > LEAST_RUN)

    def _write(self, records: list[tuple[int, Any]], in_blocks: bool) -> None:
        if type(records[0][1]) is MessageRun:
            self._need("blocks")
            for _, run in records:
                self._connection.execute(tables.PUT_BLOCK, run.block())
            return
        at, count, last_seq = 0, len(records), self._last_seq
        while at < count:
            if in_blocks:
                start, at = at, self._put_blocks(records, at, last_seq)
                last_seq += at - start
            at = self._put_run(records, at, last_seq)
            if at < count:
                position, record = records[at]
                if record.message_id is not None:
                    self._put_id(position, record)
                for effect in cast(list[Any], record.effects):
                    _WRITERS.get(type(effect), _ignore)(self, position, record, effect)
                at += 1
            last_seq = max(last_seq, records[at - 1][1].last_seq)

    def _put_blocks(self, records: list[tuple[int, Any]], at: int, last_seq: int) -> int:
        """Write messages from a place on as blocks if there are many; return where the next record is."""
        ids: list[Any] = []
        run = block_run(records, at, last_seq + 1, ids)
        if len(run) < LEAST_RUN:
            return at
        self._need("blocks")
        put_blocks(self._connection, run)
        self._put_ids(ids)
        return at + len(run)

    def _put_ids(self, ids: list[Any]) -> None:
        if ids:
            self._need("ids")
            self._connection.executemany(tables.PUT_ID, ids)

    def _open_blocks(self, first: int, last: int) -> None:
        """Make rows of the blocks that have messages in a range of seqs, before one of them is changed."""
        if "blocks" in self._has:
            open_blocks(self._connection, first, last)

    def _put_run(self, records: list[tuple[int, Any]], at: int, last_seq: int) -> int:
        """Write plain messages or entries from a place on; return where the next record of another kind is."""
        rows: list[Any] = []
        ids: list[Any] = []
        take, width, put, put_group = _RUNS["messages" in self._has]
        at = take(records, at, rows, ids)
        if "blocks" in self._has and (changed := [seq for seq in rows[::width] if seq <= last_seq]):
            self._open_blocks(min(changed), max(changed))
        group = width * tables.GROUP
        whole = len(rows) - len(rows) % group
        execute = self._connection.execute
        for k in range(0, whole, group):
            execute(put_group, rows[k : k + group])
        if whole < len(rows):
            rest = [rows[k : k + width] for k in range(whole, len(rows), width)]
            self._connection.executemany(put, rest)
        self._put_ids(ids)
        return at

    def _need(self, name: str) -> None:
        """Make a table or index that not every file has."""
        if name not in self._has:
            self._connection.execute(tables.ON_DEMAND[name].format(name=name))
            if name == "blocks":
                self._connection.execute(f"PRAGMA user_version = {tables.VERSION_WITH_BLOCKS}")
            self._has.add(name)

    def _put_id(self, position: int, record: Record) -> None:
        self._need("ids")
        seqs = None if record.seqs is None else msgpack.encode(record.seqs)
        row = (record.message_id, position, record.time_us, record.previous, record.seq, record.count, seqs)
        self._connection.execute(tables.PUT_ID, row)

    def _put_message(self, position: int, record: Record, effect: PutMessage) -> None:
        if effect.expires_us:
            self._need("expiring_messages")
        self._open_blocks(effect.seq, effect.seq)
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
        if "blocks" in self._has:
            for first, last in effect.ranges:
                drop_messages(self._connection, first, last)
        self._connection.executemany("DELETE FROM messages WHERE seq BETWEEN ? AND ?", effect.ranges)

    def _drop_keys(self, position: int, record: Record, effect: DropKeys) -> None:
        self._connection.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in effect.keys])

    def _drop_all(self, position: int, record: Record, effect: DropAll) -> None:
        for table in ("messages", "entries", "blocks"):
            if table in self._has:
                self._connection.execute(f"DELETE FROM {table}")

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
        for seq, _ in effect.messages:
            self._open_blocks(seq, seq)
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
        """Write the view as a new, compact SQLite file without write-ahead log and without blocks."""
        with self.lock, self._guard():
            self._connection.execute("VACUUM INTO ?", (path,))
            if "blocks" in self._has:
                without_blocks(path)

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


def are_kept_in_blocks(config: Config) -> bool:
    """Return whether messages are kept in blocks: the stream has no limits, by which they would go one by one."""
    return not (config.max_messages or config.max_bytes or config.max_age_us)


def without_blocks(path: str) -> None:
    """Make rows of all blocks of a file that nobody has open; they take the place of the blocks."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        open_blocks(connection, 0, MOST_SEQ)
        connection.execute("DROP TABLE blocks")
        connection.execute(f"PRAGMA user_version = {tables.VERSION}")
        connection.execute("COMMIT")


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
_RUNS: dict[bool, Any] = {
    True: (message_run, 4, tables.PUT_PLAIN_MESSAGE, tables.PUT_PLAIN_MESSAGES),
    False: (entry_run, 5, tables.PUT_PLAIN_ENTRY, tables.PUT_PLAIN_ENTRIES),
}
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
