"""The catalogue of a state shard: what is to be known of each stream before its file is opened (one SQLite file).

A row is written after the stream's file has applied the records it tells of. It may be behind; the journal keeps what
came after it. `whole` is the position below which the files have everything, durably: replay begins there.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import msgpack

from everlog.base import StorageError
from everlog.streams.effects import Record
from everlog.streams.fresh import Appended
from everlog.streams.names import ABOVE_ALL
from everlog.streams.stream_file import checkpoint, sync_directory
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Config, Kind

APPLICATION_ID = 0x4556_4341  # "EVCA"
VERSION = 1
_SCHEMA = """
CREATE TABLE shard (one INTEGER PRIMARY KEY CHECK (one = 1), whole INTEGER NOT NULL, time_us INTEGER NOT NULL);
INSERT INTO shard VALUES (1, 0, 0);
CREATE TABLE streams (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, config BLOB NOT NULL, born INTEGER NOT NULL, last INTEGER NOT NULL,
    position INTEGER NOT NULL, epoch INTEGER NOT NULL, time_us INTEGER NOT NULL, last_seq INTEGER NOT NULL,
    messages INTEGER NOT NULL, bytes INTEGER NOT NULL, next_due_us INTEGER, id_time_us INTEGER NOT NULL,
    forgotten INTEGER NOT NULL, has_queues INTEGER NOT NULL, is_hidden INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX due ON streams (next_due_us) WHERE next_due_us IS NOT NULL;
CREATE INDEX changed ON streams (last);
CREATE INDEX hidden ON streams (name) WHERE is_hidden;
"""
_COLUMNS = 16
_PUT = f"INSERT OR REPLACE INTO streams VALUES ({', '.join('?' * _COLUMNS)})"
Row = tuple[Any, ...]
_decode_config = msgpack.Decoder(Config).decode


def row_of(state: StreamState, position: int, record: Record | Appended) -> Row:
    """Return the row of a stream whose file has applied a record, the last so far."""
    return (
        state.name, state.kind, msgpack.encode(state.config), state.born, position, state.applied_position,
        state.applied_epoch, record.time_us, record.last_seq, record.messages, record.bytes, state.next_due_us or None,
        state.id_time_us, state.forgotten, state.has_queues, state.is_hidden,
    )  # fmt: skip


class Catalogue:
    """The catalogue in a directory; made if there is none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        is_new = not os.path.exists(path)
        with self._guard():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            execute = self._connection.execute
            execute("PRAGMA locking_mode = EXCLUSIVE")
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = NORMAL")
            (version,) = execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._connection.executescript(
                    f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                    f"PRAGMA user_version = {VERSION}; COMMIT;"
                )
            elif version != VERSION:
                raise StorageError(f"{path}: version {version} is not known", hint="open it with a newer Everlog")
            self.whole, self.time_us = execute("SELECT whole, time_us FROM shard").fetchone()
        if is_new:
            self.sync()
            sync_directory(os.path.dirname(path))

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self.path}: {error}", hint="check that the disk has room and is writable") from error
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} is damaged: {error}", hint="restore it from a backup") from error

    def load(self, name: str) -> StreamState | None:
        """Return a stream as of its row, or None."""
        with self._lock, self._guard():
            row = self._connection.execute("SELECT * FROM streams WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        state = StreamState(name, Kind(row[1]), _decode_config(row[2]))
        (state.born, state.last, state.position, state.epoch, state.time_us, state.last_seq) = row[3:9]
        (state.messages, state.bytes, due, state.id_time_us, state.forgotten) = row[9:14]
        state.next_due_us = due or 0
        state.has_queues, state.is_hidden = bool(row[14]), bool(row[15])
        state.applied_position, state.applied_epoch = state.position, state.epoch
        state.has_rows = True
        state.filed = state.last
        state.ids = None
        state.set_config(state.config)
        return state

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write several things or none; for any thread."""
        with self._lock, self._guard():
            execute = self._connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise

    def script(self, statements: str) -> None:
        """Carry out several statements, all or none; for any thread."""
        with self._lock, self._guard():
            self._connection.executescript(f"BEGIN; {statements} COMMIT;")

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query; for any thread."""
        with self._lock, self._guard():
            return self._connection.execute(query, arguments).fetchall()

    def write(self, rows: Iterable[Row], gone: Iterable[str], time_us: int) -> None:
        """Write rows of streams, remove those of streams that are gone, and note the shard's time: one transaction."""
        with self.transaction() as connection:
            connection.executemany(_PUT, rows)
            connection.executemany("DELETE FROM streams WHERE name = ?", [(name,) for name in gone])
            connection.execute("UPDATE shard SET time_us = ?", (time_us,))

    def begin_anew(self, rows: Iterable[Row], whole: int, time_us: int) -> None:
        """Have these rows and no others, of files that have everything below a position."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM streams")
            connection.executemany(_PUT, rows)
            connection.execute("UPDATE shard SET whole = ?, time_us = max(time_us, ?)", (whole, time_us))
        self.whole, self.time_us = whole, max(self.time_us, time_us)

    def set_whole(self, whole: int) -> None:
        """Note that the files have everything below a position, durably; it is durable itself after `sync`."""
        with self._lock, self._guard():
            self._connection.execute("UPDATE shard SET whole = ?", (whole,))
        self.whole = whole

    def due(self, time_us: int, limit: int) -> list[str]:
        """Return streams in which something expires up to a time, the most overdue first."""
        with self._lock, self._guard():
            query = "SELECT name FROM streams WHERE next_due_us <= ? ORDER BY next_due_us LIMIT ?"
            return [row[0] for row in self._connection.execute(query, (time_us, limit))]

    def names(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, str, int, int, int]]:
        """Return (name, kind, messages, bytes, last position) of streams whose names begin so, in order."""
        query = "SELECT name, kind, messages, bytes, last FROM streams WHERE name > ? AND name >= ? AND name < ?"
        with self._lock, self._guard():
            found = self._connection.execute(
                query + " ORDER BY name LIMIT ?", (after, prefix, prefix + ABOVE_ALL, limit)
            )
            return found.fetchall()

    def changed(self, since: int, limit: int = 1000) -> list[tuple[str, int]]:
        """Return (name, last position) of streams with records above a position, the longest unchanged first."""
        query = "SELECT name, last FROM streams WHERE last > ? ORDER BY last LIMIT ?"
        with self._lock, self._guard():
            return self._connection.execute(query, (since, limit)).fetchall()

    def hidden(self) -> list[str]:
        """Return the streams that were being copied."""
        with self._lock, self._guard():
            return [row[0] for row in self._connection.execute("SELECT name FROM streams WHERE is_hidden")]

    def count(self) -> int:
        """Return how many streams there are."""
        with self._lock, self._guard():
            return int(self._connection.execute("SELECT count(*) FROM streams").fetchone()[0])

    def sync(self) -> None:
        """Make all that was written survive a power cut; for any thread."""
        with self._lock, self._guard():
            checkpoint(self._connection, self.path)

    def close(self) -> None:
        """Close the file, synced."""
        with self._lock, self._guard():
            self._connection.close()
