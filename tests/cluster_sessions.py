"""Brokers of a cluster as the session tables see them: incarnations in one real database, whose connections may break."""

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
    """A connection that breaks before a given statement, or after a commit whose answer is then lost."""

    statements_left: int | None = None  # before it breaks
    loses_answer = False

    def transact(self, act: Callable[[Any], T]) -> T:
        result = super().transact(lambda cursor: act(_Counted(cursor, self)))
        if self.loses_answer:
            self.loses_answer = False
            raise Unavailable("the answer was lost")
        return result

    def count(self, connection: Any) -> None:
        if self.statements_left is not None:
            self.statements_left -= 1
            if self.statements_left < 0:
                self.statements_left = None
                connection.close()


class _Counted:
    def __init__(self, cursor: Any, database: BreakableDatabase) -> None:
        self._cursor, self._database = cursor, database

    def execute(self, *args: Any, **options: Any) -> Any:
        self._database.count(self._cursor.connection)
        return self._cursor.execute(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


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
        self.ownership = PostgresOwnership(self.url, self.schema)
        self._opened.callback(self.ownership.close)
        self.plain = psycopg.connect(self.url, autocommit=True, options=f"-c search_path={self.schema}")
        self._opened.callback(self.plain.close)
        tables = self.rows("select tablename::text from pg_tables where schemaname = %s", self.schema)
        for (table,) in tables:
            self.plain.execute(f"delete from {table}")

    def join(self, name: str, tables: type[PostgresTables] = PostgresTables) -> SessionBroker:
        """Return a new incarnation of a broker; the one before is dead from now on."""
        database = BreakableDatabase(self.url, self.schema)
        self._opened.callback(database.close)
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
