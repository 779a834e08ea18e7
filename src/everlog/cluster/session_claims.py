"""Sessions that move: an incarnation takes those that nobody living holds, and lets go of its own.

A client id is held from CONNECT on, whether or not its session is stored, so it is served by one broker. A session of a
living holder is never taken: the holder is named, to be asked. One whose holder is dead is taken as the holder left it:
LIVE becomes what that one had routed, in the same transaction. A claim may be made again.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from everlog.cluster.change_writer import lock_sessions, put_cursors, put_sessions, write_changes
from everlog.cluster.incarnation_row import lock_dead, lock_own, resolved, rows_of
from everlog.cluster.outbox import move_wills
from everlog.cluster.session_schema import key_of
from everlog.cluster.session_tables import read_sessions
from everlog.ownership import NOBODY
from everlog.sessions import ALIVE, Changes, Cursor, Refused, SessionRow, StoredSession, pack_offsets
from everlog.tiering import Database

if TYPE_CHECKING:
    import psycopg

    DbCursor = psycopg.Cursor[tuple[Any, ...]]

CLAIMS_AT_ONCE = 500  # in one transaction
_NEVER_S = 0xFFFF_FFFF
_ADD = """
insert into sessions (client, client_id, holder, is_kept, username, version, expiry_s, away_us)
select client, client_id, %s, false, username, 4, 0, 0
from unnest(%b::bytea[], %s::text[], %s::text[]) as new (client, client_id, username) on conflict do nothing
"""
_TAKE = """
update sessions as old set holder = %s, username = new.username, away_us = new.away_us
from unnest(%b::bytea[], %s::text[], %s::bigint[]) as new (client, username, away_us) where old.client = new.client
"""
LEFT_US = 30_000_000  # so long what a dead broker left waits for its clients, if nothing is due
_UNATTENDED = """
select client_id from (
    select client, client_id from sessions left join session_brokers on incarnation = holder
    where client > %(after)b
        and (holder = 0 or not exists (select 1 from incarnations where number = holder and is_alive))
        and (will is not null
            or (expiry_s <> %(never)s and expiry_s * 1000000 <=
                %(now_us)s - case when holder <> 0 and away_us = %(alive)s then coalesce(alive_us, 0) else away_us end)
            or (holder <> 0 and coalesce(alive_us, 0) + %(left_us)s <= %(now_us)s))
    union select client, client_id from session_wills where client > %(after)b
        and not exists (select 1 from incarnations where number = holder and is_alive)
) as found order by client limit %(limit)s
"""


class Claimant(NamedTuple):
    """Who wants a session: a client that has connected, or with `is_sweep` the cluster itself."""

    client_id: str
    user: str | None = None
    to_end_it: bool = False  # a clean start
    is_sweep: bool = False


@dataclass(slots=True)
class ClaimAnswer:
    """What became of claims, by client id."""

    taken: dict[str, StoredSession | None] = field(default_factory=dict)  # None: nothing is stored
    held: dict[str, int] = field(default_factory=dict)  # by a living incarnation, to be asked for it
    anothers: set[str] = field(default_factory=set)  # sessions of another user, whoever holds them
    unproven: dict[str, int] = field(default_factory=dict)  # of those taken: whose numbers decide on QoS 2 ids


class SessionClaims:
    """Claims of one incarnation, on a connection of their own; any thread may call."""

    def __init__(self, database: Database, incarnation: int, shards: int) -> None:
        self.incarnation = incarnation
        self.database = self._database = database
        self.shards = self._shards = shards

    def claim(self, claimants: Iterable[Claimant], ends: Sequence[int]) -> ClaimAnswer:
        """Take sessions, many in each transaction; `ends` is where each shard ends: all below may have been sent.

        Raises `Overruled` if this incarnation is dead. After any other error some may be taken: claim again.
        """
        wanted = sorted({key_of(one.client_id): one for one in claimants}.items())
        answer = ClaimAnswer()
        for at in range(0, len(wanted), CLAIMS_AT_ONCE):
            some = [one for _, one in wanted[at : at + CLAIMS_AT_ONCE]]
            found = self._database.transact(partial(self._claim, claimants=some, ends=ends))
            answer.taken |= found.taken
            answer.held |= found.held
            answer.anothers |= found.anothers
            answer.unproven |= found.unproven
        return answer

    def _claim(self, cursor: "DbCursor", claimants: list[Claimant], ends: Sequence[int]) -> ClaimAnswer:
        lock_own(cursor, self.incarnation)
        keys = [key_of(one.client_id) for one in claimants]
        dead = self._lock_dead(cursor, keys)
        holders = self._lock(cursor, claimants)
        # From here on nobody writes these sessions: what is read now is all there is.
        found = read_sessions(cursor, keys)
        answer = ClaimAnswer()
        for one in claimants:
            holder, is_kept = holders[one.client_id]
            if self._is_anothers(found[one.client_id].row, one, is_kept):
                answer.anothers.add(one.client_id)
            elif holder not in (NOBODY, self.incarnation) and holder not in dead:
                answer.held[one.client_id] = holder
            else:
                answer.taken[one.client_id] = found[one.client_id] if is_kept else None
        left = {one: holder for one, (holder, _) in holders.items() if one in answer.taken and holder in dead}
        self._note_unproven(cursor, answer, left)
        self._settle(cursor, answer, left, ends)
        self._keep_unproven(cursor, answer.unproven)
        users = {one.client_id: one.user for one in claimants}
        rows = [stored.row if stored else SessionRow(one, users[one]) for one, stored in answer.taken.items()]
        self._hold(cursor, rows)
        move_wills(cursor, answer.taken.keys(), dead, self._shards)
        return answer

    def _lock_dead(self, cursor: "DbCursor", keys: list[bytes]) -> set[int]:
        cursor.execute(
            "select holder from sessions where client = any(%b) union "
            "select holder from session_wills where client = any(%b)",
            (keys, keys),
        )
        return lock_dead(cursor, {holder for (holder,) in cursor.fetchall()} - {NOBODY, self.incarnation})

    def _lock(self, cursor: "DbCursor", claimants: list[Claimant]) -> dict[str, tuple[int, bool]]:
        """Lock the rows of all, which are added where there is none; return what `lock_sessions` does."""
        names, users = [one.client_id for one in claimants], [one.user for one in claimants]
        while True:
            cursor.execute(_ADD, (self.incarnation, list(map(key_of, names)), names, users))
            holders = lock_sessions(cursor, names)
            if len(holders) == len(names):
                return holders  # else one was forgotten between the two

    def _is_anothers(self, row: SessionRow, one: Claimant, is_kept: bool) -> bool:
        """Return whether a session is another user's: what it is owed is not for this one, to have or to end."""
        if one.is_sweep or row.user is None or row.user == one.user:
            return False
        return is_kept or not one.to_end_it

    def _note_unproven(self, cursor: "DbCursor", answer: ClaimAnswer, left: dict[str, int]) -> None:
        """Note whose numbers decide which QoS 2 ids count: the last holder's, or an earlier one's if that is open."""
        unsure = [one for one, stored in answer.taken.items() if stored is not None and stored.cursor.unsure]
        if unsure:
            cursor.execute(
                "select client_id, unsure_of from sessions join session_cursors using (client) where client = any(%b)",
                (list(map(key_of, unsure)),),
            )
            origins = {one: origin or left.get(one, NOBODY) for one, origin in cursor.fetchall()}
            answer.unproven = {one: origin for one, origin in origins.items() if origin != NOBODY}

    def _keep_unproven(self, cursor: "DbCursor", unproven: dict[str, int]) -> None:
        for client_id, origin in unproven.items():
            cursor.execute("update session_cursors set unsure_of = %s where client = %b", (origin, key_of(client_id)))

    def _settle(self, cursor: "DbCursor", answer: ClaimAnswer, left: dict[str, int], ends: Sequence[int]) -> None:
        """Put what LIVE stood for in its place, and end "connected", in what the dead have left."""
        routed = rows_of(cursor, set(left.values()))
        cursors = {}
        for client_id, holder in left.items():
            stored = answer.taken[client_id]
            if stored is not None:
                answer.taken[client_id] = found = settled(stored, *routed[holder], ends)
                cursors[client_id] = found.cursor
        put_cursors(cursor, cursors)

    def _hold(self, cursor: "DbCursor", rows: list[SessionRow]) -> None:
        if rows:
            keys = [key_of(row.client_id) for row in rows]
            users, away = [row.user for row in rows], [row.away_us for row in rows]
            cursor.execute(_TAKE, (self.incarnation, keys, users, away))

    def release(self, client_ids: Collection[str], changes: Changes) -> Refused:
        """Write the last changes and let go of sessions, in one transaction; those that are not stored are forgotten.

        Return those that another has already.
        """

        def act(cursor: "DbCursor") -> Refused:
            routed, alive_us = lock_own(cursor, self.incarnation, changes.routed, changes.alive_us)
            refused = write_changes(cursor, self.incarnation, self._shards, changes)
            holders = lock_sessions(cursor, client_ids)
            ours = {one: is_kept for one, (holder, is_kept) in holders.items() if holder == self.incarnation}
            kept = [key_of(client_id) for client_id, is_kept in ours.items() if is_kept]
            stored = read_sessions(cursor, kept)
            ended = {client_id: settled(one, routed, alive_us, ()) for client_id, one in stored.items()}
            put_sessions(cursor, self.incarnation, [one.row for one in ended.values()])
            self._put_cursors(cursor, {client_id: one.cursor for client_id, one in ended.items()})
            cursor.execute("update sessions set holder = %s where client = any(%b)", (NOBODY, kept))
            forgotten = [key_of(client_id) for client_id, is_kept in ours.items() if not is_kept]
            cursor.execute("delete from sessions where client = any(%b)", (forgotten,))
            anothers = {one for one, (holder, _) in holders.items() if holder not in (NOBODY, self.incarnation)}
            return Refused(tuple(sorted(anothers.union(refused.sessions))), refused.groups)

        return self._database.transact(act)

    def _put_cursors(self, cursor: "DbCursor", cursors: dict[str, Cursor]) -> None:
        """Write cursors, and leave open what is to be decided by another's numbers."""
        keys = list(map(key_of, cursors))
        cursor.execute(
            "select client, unsure_of from session_cursors where client = any(%b) and unsure_of <> 0", (keys,)
        )
        open_ones = cursor.fetchall()
        put_cursors(cursor, cursors)
        for key, origin in open_ones:
            cursor.execute("update session_cursors set unsure_of = %s where client = %b", (origin, key))

    def unattended(self, now_us: int, after: str = "", limit: int = 1000) -> list[str]:
        """Return client ids, from one on, whose session or will nobody living holds and that may be due by now.

        They are claimed like any other, as a sweep, before something is done about them.
        """
        values = {"after": key_of(after), "now_us": now_us, "never": _NEVER_S, "limit": limit}
        values |= {"alive": ALIVE, "left_us": LEFT_US}

        def act(cursor: "DbCursor") -> list[str]:
            cursor.execute(_UNATTENDED, values)
            return [client_id for (client_id,) in cursor.fetchall()]

        return self._database.transact(act)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


def settled(stored: StoredSession, routed: tuple[int, ...], alive_us: int, ends: Sequence[int]) -> StoredSession:
    """Return a session as its next holder takes it: away, at positions, and not set back to where a copy ends."""
    row, cursor = stored.row, stored.cursor
    doubt = cursor.doubt
    if row.away_us == ALIVE:
        row = replace(row, away_us=max(alive_us, 1))
        doubt = pack_offsets(tuple(ends)) if ends else doubt
    return StoredSession(row, stored.subscriptions, _moved(cursor, routed, doubt))


def _moved(cursor: Cursor, routed: tuple[int, ...], doubt: bytes) -> Cursor:
    return replace(cursor, positions=resolved(cursor.positions, routed), doubt=doubt)
