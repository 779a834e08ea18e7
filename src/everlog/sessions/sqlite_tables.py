"""Session tables in one SQLite file: write-ahead log, one connection, every `apply` one transaction.

The file is described in `docs/formats/session-tables.md`. An unknown version is refused; a damaged file is reported
and never replaced. Used by one thread at a time, not always the same one.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import astuple

from everlog.base import StorageError
from everlog.sessions import row_format
from everlog.sessions.tables import (
    Changes,
    Cursor,
    GroupRow,
    Refused,
    RetainedNames,
    RetainedRow,
    SessionRow,
    Snapshot,
    StoredSession,
    SubscriptionRow,
    WillRow,
)

APPLICATION_ID = 0x4556_4C53  # "EVLS"
VERSION = 6
_FETCH_ROWS = 1000
_DAMAGED = "restore it from a backup, or move it away and start without sessions"

_SCHEMA = """
CREATE TABLE broker (one INTEGER PRIMARY KEY CHECK (one = 1), routed BLOB NOT NULL, alive_us INTEGER NOT NULL);
CREATE TABLE sessions (
    client_id TEXT PRIMARY KEY, user TEXT, version INTEGER NOT NULL, expiry_s INTEGER NOT NULL,
    away_us INTEGER NOT NULL, will BLOB
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    client_id TEXT NOT NULL, filter TEXT NOT NULL, options INTEGER NOT NULL, identifier INTEGER NOT NULL,
    since BLOB NOT NULL, PRIMARY KEY (client_id, filter)
) WITHOUT ROWID;
CREATE TABLE cursors (
    client_id TEXT PRIMARY KEY, positions BLOB NOT NULL, next_id INTEGER NOT NULL, inflight BLOB NOT NULL,
    received BLOB NOT NULL, unsure BLOB NOT NULL, doubt BLOB NOT NULL
);
CREATE TABLE retained (topic TEXT PRIMARY KEY, message BLOB NOT NULL);
"""
_GROUPS = """
CREATE TABLE shared_groups (
    name TEXT NOT NULL, filter TEXT NOT NULL, options INTEGER NOT NULL, positions BLOB NOT NULL, owed BLOB NOT NULL,
    doubt BLOB NOT NULL, PRIMARY KEY (name, filter)
);
"""
_FEEDS = "ALTER TABLE cursors ADD COLUMN feeds BLOB NOT NULL DEFAULT x'';"
_RETAINED = """
ALTER TABLE broker ADD COLUMN retained BLOB NOT NULL DEFAULT x'';
ALTER TABLE retained ADD COLUMN after INTEGER NOT NULL DEFAULT 0;
CREATE TABLE retained_names (first INTEGER PRIMARY KEY, stop INTEGER NOT NULL, names BLOB NOT NULL);
"""
_WILLS = "CREATE TABLE wills (client_id TEXT PRIMARY KEY, user TEXT, will BLOB NOT NULL) WITHOUT ROWID;"
_JOURNAL = """
ALTER TABLE broker ADD COLUMN journal INTEGER NOT NULL DEFAULT 0;
UPDATE broker SET journal = abs(random() / 4);
"""  # numbers begin anywhere, so that the journal of other tables is not taken for theirs
_UPGRADES = {1: _GROUPS, 2: _FEEDS, 3: _RETAINED, 4: _WILLS, 5: _JOURNAL}  # version -> what makes it the next one
_PUT_SESSION = (
    "INSERT OR REPLACE INTO sessions VALUES (?, nullif(?, -1), ?, ?, ?, nullif(?, -1))"  # see `_session_values`
)
_PUT_SUBSCRIPTION = "INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?, ?)"
_PUT_CURSOR = """INSERT INTO cursors VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (client_id) DO UPDATE SET
    positions = excluded.positions, next_id = excluded.next_id, inflight = excluded.inflight,
    received = excluded.received, unsure = excluded.unsure, doubt = excluded.doubt, feeds = excluded.feeds"""
_PUT_RETAINED = """INSERT INTO retained VALUES (?, ?, ?) ON CONFLICT (topic) DO UPDATE SET
    message = excluded.message, after = excluded.after"""
_PUT_GROUP = """INSERT INTO shared_groups VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name, filter) DO UPDATE SET
    options = excluded.options, positions = excluded.positions, owed = excluded.owed, doubt = excluded.doubt"""
_PUT_BROKER = """UPDATE broker SET routed = coalesce(?, routed), alive_us = coalesce(?, alive_us),
    retained = coalesce(?, retained), journal = coalesce(?, journal)"""
_SESSIONS = """SELECT s.client_id, user, version, expiry_s, away_us, will, positions, next_id, inflight, received,
    unsure, doubt, feeds FROM sessions s LEFT JOIN cursors USING (client_id) ORDER BY s.client_id"""
_SUBSCRIPTIONS = """SELECT client_id, filter, options, identifier, since FROM subscriptions
    WHERE client_id IN (SELECT client_id FROM sessions) ORDER BY client_id, filter"""

_NO_CURSOR = Cursor()
_NOTHING = Refused()  # nobody else writes the file
_T = TypeVar("_T")


class SqliteTables:
    """Session tables in one file, created if it does not exist. Without `sync` nothing is synced, durable or not."""

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = True) -> None:
        self.path = Path(path)
        self._sync = sync
        self._durable = False
        self._connection = self._guard(self._open)

    def _guard(self, work: Callable[[], _T]) -> _T:
        """Call `work`, turning an error of SQLite into a StorageError."""
        try:
            return work()
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"{self.path}: {error}",
                hint="check that the disk has room, the folder is writable and no other broker uses it",
            ) from error
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} is damaged: {error}", hint=_DAMAGED) from error

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(
            OSError
        ):  # SQLite says why it can't be opened; its other files get the mode of this one
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not (empty and application == version == 0):
            if application != APPLICATION_ID:
                raise StorageError(
                    f"{self.path} is not a session file of Everlog", hint="choose another data directory"
                )
            if version not in (VERSION, *_UPGRADES):
                raise StorageError(
                    f"{self.path} has format version {version}, this Everlog knows {VERSION}",
                    hint="use the version of Everlog that wrote it, or a newer one",
                )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        while not empty and version < VERSION:
            connection.executescript(f"BEGIN; {_UPGRADES[version]} PRAGMA user_version = {version + 1}; COMMIT;")
            version += 1
        if empty:
            connection.executescript(
                f"BEGIN; {_SCHEMA} {_GROUPS} {_FEEDS} {_RETAINED} {_WILLS} INSERT INTO broker VALUES (1, x'', 0, x'');"
                f"{_JOURNAL} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
            )

    def load(self) -> Snapshot:
        """Return everything that is stored, read a thousand rows at a time."""
        execute = self._connection.execute
        (verdict,) = self._guard(lambda: execute("PRAGMA quick_check(1)").fetchone())
        if verdict != "ok":
            raise StorageError(f"{self.path} is damaged: {verdict}", hint=_DAMAGED)
        found = self._guard(lambda: execute("SELECT routed, alive_us, retained FROM broker").fetchone())
        if found is None:
            raise StorageError(f"{self.path} is damaged: the row of the broker is missing", hint=_DAMAGED)
        stored = self._rows("SELECT topic, nullif(message, x''), after FROM retained ORDER BY topic")
        retained = (RetainedRow(*row) for row in stored)
        names = (RetainedNames(*row) for row in self._rows("SELECT * FROM retained_names ORDER BY first"))
        groups = (GroupRow(*row) for row in self._rows("SELECT * FROM shared_groups ORDER BY name, filter"))
        routed, at = row_format.unpack_offsets(found[0]), row_format.unpack_offsets(found[2])
        wills = (WillRow(*row) for row in self._rows("SELECT * FROM wills ORDER BY client_id"))
        return Snapshot(routed, found[1], self._sessions(), retained, groups, names, at, wills)

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self._guard(lambda: self._connection.execute(query))
        while rows := self._guard(lambda: cursor.fetchmany(_FETCH_ROWS)):
            yield from rows

    def _sessions(self) -> Iterator[StoredSession]:
        """Yield sessions with their subscriptions; both queries are ordered by client id, so one pass joins them."""
        subscriptions = self._rows(_SUBSCRIPTIONS)
        following = next(subscriptions, None)
        for client_id, user, version, expiry_s, away_us, will, *state in self._rows(_SESSIONS):
            filters: list[SubscriptionRow] = []
            while following is not None and following[0] == client_id:
                filters.append(SubscriptionRow(*following[1:]))
                following = next(subscriptions, None)
            row = SessionRow(client_id, user, version, expiry_s, away_us, will)
            yield StoredSession(row, tuple(filters), Cursor(*state) if state[0] is not None else _NO_CURSOR)

    @property
    def connection(self) -> sqlite3.Connection:
        """What the tables are read by."""
        return self._connection

    @property
    def number(self) -> int:
        """The number of the last batch of the journal that is here."""
        return int(self._guard(lambda: self._connection.execute("SELECT journal FROM broker").fetchone() or (0,))[0])

    def copied(self) -> "SqliteTables":
        """Return a copy that goes when it is closed."""
        return self._guard(lambda: copy_of(self._connection, self.path))

    def apply(self, changes: Changes, durable: bool = False, number: int | None = None) -> Refused:
        """Write all changes in one transaction, synced if durable; `number` is the journal's of the last of them."""
        self._guard(lambda: self._apply(changes, durable and self._sync, number))
        return _NOTHING

    def _apply(self, changes: Changes, durable: bool, number: int | None) -> None:
        connection = self._connection
        if durable != self._durable:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._write(changes, number)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _write(self, changes: Changes, number: int | None) -> None:
        many = self._connection.executemany
        if changes.ended:
            ended = [(client_id,) for client_id in changes.ended]
            for table in ("sessions", "subscriptions", "cursors"):
                many(f"DELETE FROM {table} WHERE client_id = ?", ended)
        if changes.rows:
            many(_PUT_SESSION, map(_session_values, changes.rows))
        if changes.unsubscribed:
            many("DELETE FROM subscriptions WHERE client_id = ? AND filter = ?", changes.unsubscribed)
        if changes.subscribed:
            many(_PUT_SUBSCRIPTION, ((client_id, *_values(one)) for client_id, one in changes.subscribed))
        if changes.cursors:
            many(_PUT_CURSOR, ((client_id, *_values(cursor)) for client_id, cursor in changes.cursors))
        if changes.retained:
            gone = [(topic,) for topic, message, after in changes.retained if message is None and not after]
            many("DELETE FROM retained WHERE topic = ?", gone)
            there = ((topic, message or b"", after) for topic, message, after in changes.retained if message or after)
            many(_PUT_RETAINED, there)
        many("INSERT OR REPLACE INTO retained_names VALUES (?, ?, ?)", changes.retained_names)
        many("DELETE FROM retained_names WHERE first = ?", ((first,) for first in changes.ended_names))
        if changes.ended_groups:
            many("DELETE FROM shared_groups WHERE name = ? AND filter = ?", changes.ended_groups)
        if changes.groups:
            many(_PUT_GROUP, map(astuple, changes.groups))
        if changes.ended_wills or changes.wills:
            many("DELETE FROM wills WHERE client_id = ?", ((client_id,) for client_id in changes.ended_wills))
            many("INSERT OR REPLACE INTO wills VALUES (?, ?, ?)", map(astuple, changes.wills))
        ends = (changes.routed, changes.retained_at)
        if ends != (None, None) or changes.alive_us is not None or number is not None:
            routed, at = (None if one is None else row_format.pack_offsets(one) for one in ends)
            self._connection.execute(_PUT_BROKER, (routed, changes.alive_us, at, number))

    def close(self) -> None:
        """Close the file, with the write-ahead log merged into it."""
        self._guard(self._connection.close)


def _values(row: SubscriptionRow | Cursor) -> list[Any]:
    """Return a row's values as SQLite's module binds them at once: of bytes, and of None, it asks first whether they
    are to be adapted, at ten times the cost."""
    return [bytearray(one) if one.__class__ is bytes else one for one in astuple(row)]


def _session_values(row: SessionRow) -> tuple[Any, ...]:
    """Return the same of a session, with -1 in place of no user and of no will."""
    user = -1 if row.user is None else row.user
    will = -1 if row.will is None else bytearray(row.will)
    return row.client_id, user, row.version, row.expiry_s, row.away_us, will


def copy_of(connection: sqlite3.Connection, path: Path) -> SqliteTables:
    """Return a copy, which goes when it is closed, of what a connection to this file has."""
    copy = object.__new__(SqliteTables)
    copy.path, copy._sync, copy._durable = path, False, False
    copy._connection = sqlite3.connect("", isolation_level=None)
    connection.backup(copy._connection)
    return copy
