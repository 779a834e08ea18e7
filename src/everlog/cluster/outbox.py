"""The outbox: wills on their way from a session to the log, each in one place at any moment.

One transaction moves a will from its session to the outbox of its topic's shard; another, of the shard's owner, takes
it off as it commits the batch that has it. A crash before either leaves it where it was.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everlog.base import Fenced
from everlog.cluster.change_writer import lock_sessions, write_changes
from everlog.cluster.incarnation_row import lock_own
from everlog.cluster.outbox_rows import put_wills
from everlog.cluster.session_schema import key_of
from everlog.sessions import Changes, Refused
from everlog.tiering import Database

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]


class OutboxRow(NamedTuple):
    """A will that is to be appended to a shard."""

    number: int
    client_id: str
    user: str | None
    will: bytes  # packed as in a session's row


class Outbox:
    """The outbox as one incarnation fills and reads it; any thread may call."""

    def __init__(self, database: Database, incarnation: int, shards: int) -> None:
        self.incarnation = incarnation
        self._database = database
        self._shards = shards

    def send_wills(self, client_ids: Collection[str], changes: Changes) -> Refused:
        """Move the wills of clients to the outbox and write what else becomes of them, in one transaction.

        Changes may end the sessions, and give wills to new ones. Sessions that another holds are left alone and
        returned.
        """

        def act(cursor: "Cursor") -> Refused:
            me = self.incarnation
            lock_own(cursor, me, changes.routed, changes.alive_us)
            holders = lock_sessions(cursor, client_ids)
            anothers = {client_id for client_id, (holder, _) in holders.items() if holder != me}
            ours = [key_of(client_id) for client_id in client_ids if client_id not in anothers]
            cursor.execute(
                "with old as (select client, will from sessions where client = any(%b) and will is not null) "
                "update sessions set will = null from old where sessions.client = old.client "
                "returning client_id, username, old.will",
                (ours,),
            )
            put_wills(cursor, cursor.fetchall(), self._shards)
            move_wills(cursor, set(client_ids) - anothers, {me}, self._shards)
            refused = write_changes(cursor, me, self._shards, changes)
            return Refused(tuple(sorted(anothers.union(refused.sessions))), refused.groups)

        return self._database.transact(act)

    def waiting(self, shard: int, limit: int = 1000) -> list[OutboxRow]:
        """Return the wills that are to be appended to a shard, oldest first."""

        def act(cursor: "Cursor") -> list[OutboxRow]:
            cursor.execute(
                "select number, client_id, username, will from outbox where shard = %s order by number limit %s",
                (shard, limit),
            )
            return [OutboxRow(*row) for row in cursor.fetchall()]

        return self._database.transact(act)

    def waiting_in(self, shards: Sequence[int]) -> dict[int, list[OutboxRow]]:
        """Return what is to be appended to some shards, where there is something."""

        def act(cursor: "Cursor") -> list[tuple[Any, ...]]:
            cursor.execute(
                "select shard, number, client_id, username, will from outbox where shard = any(%s) "
                "order by shard, number limit 1000",
                (list(shards),),
            )
            return cursor.fetchall()

        found: dict[int, list[OutboxRow]] = {}
        for shard, *row in self._database.transact(act):
            found.setdefault(shard, []).append(OutboxRow(*row))
        return found

    def take_off(self, shard: int, last: int) -> None:
        """Remove the wills of a shard up to a number: they are in its log."""

        def act(cursor: "Cursor") -> None:
            cursor.execute("delete from outbox where shard = %s and number <= %s", (shard, last))

        self._database.transact(act)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


def take_off(cursor: "Cursor", shard: int, numbers: Sequence[int]) -> None:
    """Take wills off, in the transaction that commits them to a shard's log; raise `Fenced` if one is gone already.

    That transaction is then to be given up: another one has appended the will.
    """
    cursor.execute("delete from outbox where shard = %s and number = any(%s)", (shard, list(numbers)))
    if cursor.rowcount != len(set(numbers)):
        raise Fenced(f"wills in the outbox of shard {shard} were appended already", hint="read the outbox again")


def move_wills(cursor: "Cursor", client_ids: Collection[str], holders: Collection[int], shards: int) -> None:
    """Move the wills of clean sessions that these incarnations hold of these clients to the outbox."""
    if not holders or not client_ids:
        return
    cursor.execute(
        "delete from session_wills where client = any(%b) and holder = any(%s) returning client_id, username, will",
        (list(map(key_of, client_ids)), sorted(holders)),
    )
    put_wills(cursor, cursor.fetchall(), shards)
