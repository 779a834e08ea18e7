"""A check of the session file, row by row, that changes nothing: a broker may be running on it."""

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everlog.base import StorageError
from everlog.commitlog import RealDisk
from everlog.sessions import row_format
from everlog.sessions.change_journal import journal_path, read_journal, records_after
from everlog.sessions.journaled_tables import merged
from everlog.sessions.retained_row import unpack_retained
from everlog.sessions.sqlite_tables import APPLICATION_ID, VERSION, copy_of

_JOURNALED = 6  # the first version with a journal
_NO_SUCH_VALUE = (StorageError, struct.error, ValueError, IndexError, TypeError, AttributeError)


def _cursor(positions: bytes, inflight: bytes, received: bytes, unsure: bytes, doubt: bytes) -> None:
    row_format.unpack_offsets(positions)
    row_format.unpack_inflight(inflight)
    row_format.unpack_ids(received)
    row_format.unpack_unsure(unsure)
    row_format.unpack_offsets(doubt)


def _group(positions: bytes, owed: bytes, doubt: bytes) -> None:
    row_format.unpack_offsets(positions)
    row_format.unpack_owed(owed)
    row_format.unpack_offsets(doubt)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a table: what each is called, the query for that and its values, and what reads them."""

    since: int  # version of the format
    name: str
    query: str
    read: Callable[..., Any]


_PARTS = (
    _Part(1, "the session of", "SELECT client_id, will FROM sessions", row_format.unpack_will),
    _Part(1, "a subscription of", "SELECT client_id, since FROM subscriptions", row_format.unpack_offsets),
    _Part(1, "the cursor of", "SELECT client_id, positions, inflight, received, unsure, doubt FROM cursors", _cursor),
    _Part(3, "what is owed to", "SELECT client_id, feeds FROM cursors", row_format.unpack_feeds),
    _Part(
        1, "the retained message of", "SELECT topic, topic, message FROM retained WHERE message != x''", unpack_retained
    ),
    _Part(2, "the shared group", "SELECT name, positions, owed, doubt FROM shared_groups", _group),
    _Part(5, "the will of", "SELECT client_id, will FROM wills", row_format.unpack_will),
)


@dataclass(slots=True)
class TablesFound:
    """What a check has found."""

    rows: int = 0
    damage: list[str] = field(default_factory=list)


def check_tables(path: Path) -> TablesFound:
    """Read every page of a session file, and every row as it is with its journal."""
    found = TablesFound()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            version = _check_file(connection, path, found)
            journaled = _journaled(connection, path, found) if version >= _JOURNALED else []
            if not journaled:
                _check_rows(connection, version, path, found)
                return found
            with closing(copy_of(connection, path)) as copy:
                copy.apply(merged(journaled))
                _check_rows(copy.connection, version, path, found)
    except (sqlite3.Error, StorageError) as error:
        found.damage.append(f"{path}: {error}")
    return found


def _check_file(connection: sqlite3.Connection, path: Path, found: TablesFound) -> int:
    """Check what SQLite can; return the version of the format, 0 if there is none."""
    names = ("application_id", "user_version")
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if application != APPLICATION_ID or not 1 <= version <= VERSION:
        found.damage.append(f"{path} is no session file that this Everlog knows")
        return 0
    verdicts = [verdict for (verdict,) in connection.execute("PRAGMA integrity_check(20)") if verdict != "ok"]
    found.damage += [f"{path}: {verdict}" for verdict in verdicts]
    return int(version)


def _check_rows(connection: sqlite3.Connection, version: int, path: Path, found: TablesFound) -> None:
    for part in _PARTS:
        if version >= part.since:
            for name, *values in _rows(connection, part.query):
                found.rows += 1
                try:
                    part.read(*values)
                except _NO_SUCH_VALUE as error:
                    found.damage.append(f"{path}: {part.name} {name!r} can't be read: {error}")


def _journaled(connection: sqlite3.Connection, path: Path, found: TablesFound) -> list[tuple[int, bytes]]:
    """Return what only the journal has; a broker may begin it anew meanwhile, so a second look decides."""
    journal = journal_path(path)
    for is_last in (False, True):
        try:
            data = read_journal(RealDisk(), journal)
            (number,) = connection.execute("SELECT journal FROM broker").fetchone()
            records = records_after(journal, data, number)
            merged(records)
            return records
        except (StorageError, TypeError) as error:
            if is_last:
                found.damage.append(f"{error}")
    return []


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    yield from connection.execute(query)
