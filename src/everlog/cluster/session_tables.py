"""The session tables of one incarnation in PostgreSQL: what it holds, fenced by its row, every `apply` one transaction.

`routed` is written in the same transaction as the cursors: LIVE in a cursor is `routed` of the session's holder.
`load` returns what this incarnation holds, and the retained messages of all. Used by one thread at a time.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from everlog.cluster.change_writer import write_changes
from everlog.cluster.incarnation_row import lock_own, remove_unnamed, rows_of
from everlog.cluster.retained_backlog import RetainedBacklog
from everlog.cluster.retained_rows import read_ends, read_names, read_rows
from everlog.sessions import (
    Changes,
    Cursor,
    GroupRow,
    Refused,
    SessionRow,
    Snapshot,
    StoredSession,
    SubscriptionRow,
    WillRow,
)
from everlog.tiering import Database

if TYPE_CHECKING:
    import psycopg

    DbCursor = psycopg.Cursor[tuple[Any, ...]]

T = TypeVar("T")

_READ_ROWS = 1000
_PAGE = """
select client, client_id from sessions where holder = %s and is_kept and (%b::bytea is null or client > %b)
order by client limit %s
"""
_SESSIONS = """
select client, client_id, username, version, expiry_s, away_us, will, positions, next_id, inflight, received, unsure,
    doubt, feeds
from sessions left join session_cursors using (client) where client = any(%b) order by client
"""
_FILTERS = """
select client, filter, options, identifier, since from session_filters where client = any(%b) order by client, key
"""
_NO_CURSOR = Cursor()


class PostgresTables:
    """Session tables of an incarnation of `ownership` in the same schema, for a store of so many shards."""

    def __init__(self, database: Database, incarnation: int, shards: int) -> None:
        self.incarnation = incarnation
        self._database = database
        self._shards = shards
        self._backlog = RetainedBacklog(shards)

    def load(self) -> Snapshot:
        """Return what the incarnation holds, and all retained messages, read as they are iterated."""
        me = self.incarnation
        transact = self._database.transact
        own = transact(lambda cursor: rows_of(cursor, [me]))
        routed, alive_us = own.get(me, ((), 0))
        retained_at = transact(read_ends)  # before the rows, which may be newer, and never older
        return Snapshot(
            routed,
            alive_us,
            self._sessions(),
            read_rows(transact, _READ_ROWS),
            self._later(self._read_groups),
            self._later(lambda cursor: read_names(cursor, me)),
            retained_at,
            self._later(self._read_wills),
        )

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        """Write all changes but those of what another holds, which are returned; always durable.

        Raises `Overruled` if the incarnation is dead: nothing was written.
        """

        def act(cursor: "DbCursor") -> Refused:
            lock_own(cursor, self.incarnation, changes.routed, changes.alive_us)
            return write_changes(cursor, self.incarnation, self._shards, changes, self._backlog)

        refused = self._database.transact(act)
        self._backlog.settle(changes)
        return refused

    def stored_retained(self) -> tuple[int, ...]:
        """Return as of which offset of each shard the tables have its retained messages."""
        ends = self._database.transact(read_ends)
        return (*ends, *(0,) * (self._shards - len(ends)))

    def remove_unnamed(self) -> int:
        """Remove the rows of dead incarnations that no session, will or group names; return how many."""
        return self._database.transact(remove_unnamed)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _later(self, read: Callable[["DbCursor"], list[T]]) -> Iterator[T]:
        yield from self._database.transact(read)

    def _sessions(self) -> Iterator[StoredSession]:
        last: bytes | None = None
        while True:

            def act(cursor: "DbCursor", last: bytes | None = last) -> tuple[list[bytes], list[StoredSession]]:
                cursor.execute(_PAGE, (self.incarnation, last, last, _READ_ROWS))
                keys = [key for key, _ in cursor.fetchall()]
                return keys, list(read_sessions(cursor, keys).values())

            keys, found = self._database.transact(act)
            yield from found
            if len(keys) < _READ_ROWS:
                return
            last = keys[-1]

    def _read_groups(self, cursor: "DbCursor") -> list[GroupRow]:
        cursor.execute(
            "select name, filter, options, positions, owed, doubt from session_groups where holder = %s and is_kept "
            "order by name_key, filter_key",
            (self.incarnation,),
        )
        return [GroupRow(*row) for row in cursor.fetchall()]

    def _read_wills(self, cursor: "DbCursor") -> list[WillRow]:
        cursor.execute(
            "select client_id, username, will from session_wills where holder = %s order by client", (self.incarnation,)
        )
        return [WillRow(*row) for row in cursor.fetchall()]


def read_sessions(cursor: "DbCursor", keys: list[bytes]) -> dict[str, StoredSession]:
    """Return sessions by client id, in the order of their keys."""
    filters: dict[bytes, list[SubscriptionRow]] = {}
    cursor.execute(_FILTERS, (keys,), binary=True)
    for client, *one in cursor.fetchall():
        filters.setdefault(client, []).append(SubscriptionRow(*one))
    cursor.execute(_SESSIONS, (keys,), binary=True)
    found = {}
    for client, client_id, user, version, expiry_s, away_us, will, *state in cursor.fetchall():
        row = SessionRow(client_id, user, version, expiry_s, away_us, will)
        progress = Cursor(*state) if state[0] is not None else _NO_CURSOR
        found[client_id] = StoredSession(row, tuple(filters.get(client, ())), progress)
    return found
