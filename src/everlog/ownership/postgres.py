"""Ownership in PostgreSQL (`docs/formats/postgres.md`): rows of incarnations and claims, changed in transactions.

A claim locks the claimant's row, so nobody is declared dead between the look and the claim; it waits for the row of the
thing, which writers that are fenced by it lock while they commit.
"""

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from everlog.ownership.ports import COORDINATOR, NOBODY, Board, Claim, Member, Overruled
from everlog.tiering import Database, make_schema

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_TABLES = """
create table if not exists incarnations (
    number bigint generated always as identity primary key, name text not null, address text not null,
    token text not null unique, beat bigint not null default 0, draining boolean not null default false,
    is_alive boolean not null default true, about text not null default ''
) with (fillfactor = 50);
alter table incarnations add column if not exists about text not null default '';
create table if not exists claims (thing text primary key, owner bigint not null, epoch bigint not null);
create table if not exists placement (thing text primary key, server text not null);
"""


def make_ownership_tables(url: str, schema: str = "everlog") -> None:
    """Make the tables of ownership; no table is made or changed later."""
    make_schema(url, schema, _TABLES)


class PostgresOwnership:
    """Ownership in the tables of a schema; any thread may call."""

    def __init__(self, url: str, schema: str = "everlog", database: Database | None = None) -> None:
        self._database = database or Database(url, schema)
        self.told = ""  # to the others, by this server's row

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def join(self, name: str, address: str) -> int:
        """Return a new incarnation for a server."""
        token = uuid.uuid4().hex

        def act(cursor: "Cursor") -> int:
            cursor.execute("select number from incarnations where name = %s and is_alive for update", (name,))
            for (number,) in cursor.fetchall():
                _end(cursor, number)
            self._check_join(cursor)
            cursor.execute(
                "insert into incarnations (name, address, token, about) values (%s, %s, %s, %s) returning number",
                (name, address, token, self.told),
            )
            return _number(cursor)

        return self._database.transact(act)

    def _check_join(self, cursor: "Cursor") -> None:
        """Raise if this server may not be a member; in the transaction in which it becomes one."""

    def leave(self, incarnation: int) -> None:
        """End an incarnation that is done."""
        self._database.transact(lambda cursor: _end(cursor, incarnation))

    def drain(self, incarnation: int) -> None:
        """Let all see that an incarnation gives away what it owns."""
        self._change_living("update incarnations set draining = true where number = %s and is_alive", incarnation)

    def beat(self, incarnation: int) -> None:
        """Raise an incarnation's counter."""
        self._change_living("update incarnations set beat = beat + 1 where number = %s and is_alive", incarnation)

    def beats(self) -> dict[int, int]:
        """Return the counter of each living incarnation."""

        def act(cursor: "Cursor") -> dict[int, int]:
            cursor.execute("select number, beat from incarnations where is_alive")
            return dict(cursor.fetchall())

        return self._database.transact(act)

    def declare_dead(self, incarnation: int, beat: int) -> bool:
        """Overrule an incarnation whose counter is still this one."""

        def act(cursor: "Cursor") -> bool:
            cursor.execute("select beat, is_alive from incarnations where number = %s for update", (incarnation,))
            found = cursor.fetchone()
            if found is None or not found[1]:
                return True
            if found[0] == beat:
                _end(cursor, incarnation)
            return bool(found[0] == beat)

        return self._database.transact(act)

    def claim(self, things: Collection[str], incarnation: int) -> dict[str, int]:
        """Return the epochs at which an incarnation owns things from now on."""
        wanted = sorted(set(things))  # in one order, so that two claimants do not wait for each other

        def act(cursor: "Cursor") -> dict[str, int]:
            cursor.execute("select 1 from incarnations where number = %s and is_alive for share", (incarnation,))
            if cursor.fetchone() is None:
                raise _dead(incarnation)
            cursor.execute(
                "insert into claims (thing, owner, epoch) select one, %s, 1 from unnest(%s::text[]) as one "
                "on conflict (thing) do update set owner = excluded.owner, epoch = claims.epoch + 1 "
                "where claims.owner = %s",
                (incarnation, wanted, NOBODY),
            )
            cursor.execute(
                "select thing, epoch from claims where thing = any(%s) and owner = %s", (wanted, incarnation)
            )
            return dict(cursor.fetchall())

        return self._database.transact(act)

    def release(self, things: Collection[str], incarnation: int) -> None:
        """Give things up."""
        self._database.transact(
            lambda cursor: cursor.execute(
                "update claims set owner = %s where thing = any(%s) and owner = %s",
                (NOBODY, sorted(set(things)), incarnation),
            )
        )

    def place(self, placement: Mapping[str, str], epoch: int) -> None:
        """Store where things should be."""

        def act(cursor: "Cursor") -> None:
            cursor.execute(
                "select 1 from claims where thing = %s and epoch = %s and owner <> %s for update",
                (COORDINATOR, epoch, NOBODY),
            )
            if cursor.fetchone() is None:
                raise Overruled(f"the coordinator of epoch {epoch} has been replaced", hint="claim the role again")
            cursor.execute("delete from placement")
            cursor.executemany("insert into placement (thing, server) values (%s, %s)", sorted(placement.items()))

        self._database.transact(act)

    def read(self) -> Board:
        """Return all that is stored."""
        return self._database.transact(_read)

    def _change_living(self, statement: str, incarnation: int) -> None:
        def act(cursor: "Cursor") -> int:
            cursor.execute(statement.encode(), (incarnation,))
            return cursor.rowcount

        if not self._database.transact(act):
            raise _dead(incarnation)


def _read(cursor: "Cursor") -> Board:
    cursor.execute("set transaction isolation level repeatable read read only")
    cursor.execute(
        "select number, name, address, token, draining, about from incarnations where is_alive order by number"
    )
    members = {row[0]: Member(*row) for row in cursor.fetchall()}
    cursor.execute("select thing, owner, epoch from claims")
    claims = {thing: Claim(owner, epoch) for thing, owner, epoch in cursor.fetchall()}
    cursor.execute("select thing, server from placement")
    placement: dict[str, str] = dict(cursor.fetchall())
    cursor.execute("select coalesce(max(number), 0) from incarnations")
    return Board(_number(cursor), members, claims, placement)


def _end(cursor: "Cursor", incarnation: int) -> None:
    """End an incarnation with all that it owns."""
    cursor.execute("update incarnations set is_alive = false where number = %s", (incarnation,))
    cursor.execute("update claims set owner = %s where owner = %s", (NOBODY, incarnation))


def _number(cursor: "Cursor") -> int:
    found = cursor.fetchone()
    assert found is not None
    return int(found[0])


def _dead(incarnation: int) -> Overruled:
    return Overruled(f"incarnation {incarnation} was declared dead or replaced", hint="join again")
