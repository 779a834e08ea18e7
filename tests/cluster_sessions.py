"""Brokers of a cluster as the session tables see them: incarnations in a real database, with connections that break."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any, TypeVar

import psycopg

from everlog.base import Unavailable
from everlog.cluster import GroupClaims, Outbox, PostgresTables, SessionClaims, make_session_tables
from everlog.ownership import PostgresOwnership, make_ownership_tables
from everlog.tiering import Database
from tests.postgres_server import new_schema, shared_server

T = TypeVar("T")
SHARDS = 2


@cache
def made_schema() -> str:
    """Make the tables once for all tests of a process, and return their schema."""
    schema = new_schema()
    make_ownership_tables(shared_server().url, schema)
    make_session_tables(shared_server().url, schema)
    with psycopg.connect(shared_server().url, autocommit=True) as connection:
        connection.execute(f"create table {schema}.tail (shard integer, client_id text)")
    return schema


class BreakableDatabase(Database):
    """A connection that breaks at the end of a transaction: before its commit, or so that the answer to it is lost."""

    transactions_left: int | None = None  # before the one at which it breaks
    loses_answer = False

    def transact(self, act: Callable[[Any], T]) -> T:
        if self.transactions_left is not None:
            self.transactions_left -= 1
        if self.transactions_left != -1:
            return super().transact(act)
        self.transactions_left = None
        if self.loses_answer:
            super().transact(act)
            raise Unavailable("the answer was lost")
        return super().transact(lambda cursor: _end_connection(act(cursor), cursor))

    def break_at(self, step: int) -> None:
        """Break at the next transaction (0: before its commit, 1: after it), the one after that (2, 3), and so on."""
        self.transactions_left, self.loses_answer = step // 2, step % 2 == 1


def _end_connection(result: T, cursor: Any) -> T:
    cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    return result


class SessionBroker:
    """One incarnation with all that it uses, over one connection."""

    def __init__(self, database: BreakableDatabase, incarnation: int, tables: type[PostgresTables]) -> None:
        self.database = database
        self.incarnation = incarnation
        self.tables = tables(database, incarnation, SHARDS)
        self.claims = SessionClaims(database, incarnation, SHARDS)
        self.groups = GroupClaims(database, incarnation, SHARDS)
        self.outbox = Outbox(database, incarnation, SHARDS)


class SessionCluster:
    """The database, empty at first, and the brokers that have joined."""

    def __init__(self) -> None:
        self.url, self.schema = shared_server().url, made_schema()
        self._opened = ExitStack()
        self._databases: dict[str, BreakableDatabase] = {}
        self.ownership = PostgresOwnership(self.url, self.schema)
        self._opened.callback(self.ownership.close)
        self.plain = psycopg.connect(self.url, autocommit=True, options=f"-c search_path={self.schema}")
        self._opened.callback(self.plain.close)
        tables = self.rows("select tablename::text from pg_tables where schemaname = %s", self.schema)
        for (table,) in tables:
            self.plain.execute(f"delete from {table}")

    def join(self, name: str, tables: type[PostgresTables] = PostgresTables) -> SessionBroker:
        """Return a new incarnation of a broker; the one before is dead from now on."""
        database = self._databases.get(name)
        if database is None:
            database = self._databases[name] = BreakableDatabase(self.url, self.schema)
            self._opened.callback(database.close)
        database.transactions_left = None
        return SessionBroker(database, self.ownership.join(name, f"{name}:1"), tables)

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return what the database has by now."""
        return self.plain.execute(query.encode(), values).fetchall()

    def holders(self) -> dict[str, int]:
        """Return the holder of each session."""
        return dict(self.rows("select client_id, holder from sessions"))

    def close(self) -> None:
        """Close all connections."""
        self._opened.close()
