"""Durable shared groups that move: each has one holder, which deals for all brokers.

As with sessions, a group of a living holder is never taken, and one of a dead holder is taken as that one left it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everlog.cluster.change_writer import as_signed, columns, lock_groups, put_groups, write_changes
from everlog.cluster.incarnation_row import lock_dead, lock_own, resolved, rows_of
from everlog.cluster.session_schema import key_of
from everlog.ownership import NOBODY
from everlog.sessions import GROUP_SERVED, SHARED_PREFIX, Changes, GroupRow, Refused, pack_offsets
from everlog.tiering import Database

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

GroupKey = tuple[str, str]  # name, filter
_ADD = """
insert into session_groups (name_key, filter_key, name, filter, holder, is_kept, options, positions, owed, doubt)
select name_key, filter_key, name, filter, %s, false, 0, '', '', ''
from unnest(%b::bytea[], %b::bytea[], %s::text[], %s::text[]) as new (name_key, filter_key, name, filter)
on conflict do nothing
"""
_HOLD = """
update session_groups as old set holder = %s from unnest(%b::bytea[], %b::bytea[]) as new (name_key, filter_key)
where old.name_key = new.name_key and old.filter_key = new.filter_key
"""
_READ = """
select is_kept, name, filter, options, positions, owed, doubt from session_groups
join unnest(%b::bytea[], %b::bytea[]) as wanted (name_key, filter_key) using (name_key, filter_key)
"""
_FORGET = """
delete from session_groups as old using unnest(%b::bytea[], %b::bytea[]) as gone (name_key, filter_key)
where old.name_key = gone.name_key and old.filter_key = gone.filter_key and not is_kept
"""
_FREE_DEALS = """
update group_deals as old set taker = 0 from unnest(%b::bytea[], %b::bytea[]) as mine (name_key, filter_key)
where old.name_key = mine.name_key and old.filter_key = mine.filter_key and taker = any(%s)
"""
_READ_DEALS = """
select name, filter, position, client_id, taker from group_deals
join session_groups using (name_key, filter_key)
join unnest(%b::bytea[], %b::bytea[]) as mine (name_key, filter_key) using (name_key, filter_key)
order by position
"""
_SETTLE = """
update group_deals set taker = 0 where name_key = %b and filter_key = %b and position = any(%s) and taker = %s
"""
_LEFT = """
select position from group_deals where name_key = %b and filter_key = %b and position = any(%s) and taker = 0
"""
_LOCK_UNHELD = """
select name, filter from session_groups
where not exists (select 1 from incarnations where number = holder and is_alive)
order by name_key, filter_key limit %s for update skip locked
"""
_FORGET_UNHELD = """
delete from session_groups as old using unnest(%b::bytea[], %b::bytea[]) as gone (name_key, filter_key)
where old.name_key = gone.name_key and old.filter_key = gone.filter_key
"""
_FORGET_DEALS = """
delete from group_deals as old using unnest(%b::bytea[], %b::bytea[]) as gone (name_key, filter_key)
where old.name_key = gone.name_key and old.filter_key = gone.filter_key
"""
_FORGOTTEN_AT_ONCE = 1000
_COUNTS = """
select number, count(name_key) from incarnations left join session_groups on holder = number
where is_alive and not draining group by number
"""
_USED = "select distinct filter from session_filters where key = any(%b) and filter like '$share/%%'"


@dataclass(slots=True)
class GroupAnswer:
    """What became of claims, by name and filter."""

    taken: dict[GroupKey, GroupRow | None] = field(default_factory=dict)  # None: nothing is stored
    held: dict[GroupKey, int] = field(default_factory=dict)  # by a living incarnation, to be asked for it
    deals: dict[GroupKey, list[tuple[int, str, int]]] = field(default_factory=dict)  # position, client id, taker or 0


class GroupClaims:
    """Claims of groups by one incarnation; any thread may call."""

    def __init__(self, database: Database, incarnation: int, shards: int) -> None:
        self.incarnation = incarnation
        self._database = database
        self._shards = shards

    def claim(self, keys: Collection[GroupKey], ends: Sequence[int]) -> GroupAnswer:
        """Take groups that nobody living holds; `ends` is where each shard ends: all below may have been dealt.

        Raises `Overruled` if this incarnation is dead. A claim may be made again.
        """
        return self._database.transact(lambda cursor: self._claim(cursor, set(keys), ends))

    def _claim(self, cursor: "Cursor", keys: set[GroupKey], ends: Sequence[int]) -> GroupAnswer:
        me = self.incarnation
        lock_own(cursor, me)
        cursor.execute("select distinct holder from session_groups where holder not in (%s, %s)", (NOBODY, me))
        dead = lock_dead(cursor, {holder for (holder,) in cursor.fetchall()})
        holders = self._lock(cursor, keys)
        # From here on nobody writes these groups: what is read now is all there is.
        cursor.execute(_READ, columns(map(_keys, keys), 2))
        found = {(row[1], row[2]): GroupRow(*row[1:]) if row[0] else None for row in cursor.fetchall()}
        answer = GroupAnswer()
        for key, holder in holders.items():
            if holder in (NOBODY, me) or holder in dead:
                answer.taken[key] = found[key]
            else:
                answer.held[key] = holder
        self._hold(cursor, answer.taken, me)
        routed = rows_of(cursor, dead)
        left = {key: row for key, row in answer.taken.items() if row is not None and holders[key] in dead}
        rows = {key: settled_group(row, routed[holders[key]][0], ends) for key, row in left.items()}
        put_groups(cursor, me, list(rows.values()))
        answer.taken.update(rows)
        self._read_deals(cursor, answer)
        return answer

    def _read_deals(self, cursor: "Cursor", answer: GroupAnswer) -> None:
        """Read what was dealt and is with no session; what a dead broker was given is with nobody from now on."""
        keys = columns(map(_keys, answer.taken), 2)
        cursor.execute("select distinct taker from group_deals where taker <> 0")
        dead = lock_dead(cursor, {taker for (taker,) in cursor.fetchall()} - {self.incarnation})
        cursor.execute(_FREE_DEALS, (*keys, sorted(dead)))
        cursor.execute(_READ_DEALS, keys)
        for name, text, position, client_id, taker in cursor.fetchall():
            answer.deals.setdefault((name, text), []).append((position % (1 << 64), client_id, taker))

    def _lock(self, cursor: "Cursor", keys: set[GroupKey]) -> dict[GroupKey, int]:
        """Lock the rows of all, which are added where there is none; return the holder of each."""
        added = columns(sorted((*_keys(key), *key) for key in keys), 4)
        while True:
            cursor.execute(_ADD, (self.incarnation, *added))
            holders = lock_groups(cursor, keys)
            if len(holders) == len(keys):
                return holders  # else one was forgotten between the two

    def settle(self, key: GroupKey, taker: int, positions: Sequence[int]) -> list[int]:
        """Return what of deals to a broker no session has; that broker can't store it any more. May be called again."""
        mine = list(map(as_signed, positions))

        def act(cursor: "Cursor") -> list[int]:
            lock_own(cursor, self.incarnation)
            cursor.execute(_SETTLE, (*_keys(key), mine, taker))
            cursor.execute(_LEFT, (*_keys(key), mine))
            return [position % (1 << 64) for (position,) in cursor.fetchall()]

        return self._database.transact(act)

    def is_dead(self, incarnation: int) -> bool:
        """Return whether a broker is dead: all that it ever wrote can be read by then."""
        return self._database.transact(lambda cursor: incarnation in lock_dead(cursor, {incarnation}))

    def counts(self) -> dict[int, int]:
        """Return how many groups each living broker holds that is not drained."""

        def act(cursor: "Cursor") -> dict[int, int]:
            cursor.execute(_COUNTS)
            return dict(cursor.fetchall())

        return self._database.transact(act)

    def unused(self, keys: Collection[GroupKey]) -> list[GroupKey]:
        """Return the groups that no stored session is subscribed to."""
        return self._database.transact(lambda cursor: _unused(cursor, keys))

    def forget_unheld(self) -> int:
        """Forget groups that nobody living holds and nobody is subscribed to; return how many."""

        def act(cursor: "Cursor") -> int:
            cursor.execute(_LOCK_UNHELD, (_FORGOTTEN_AT_ONCE,))  # nobody takes them meanwhile
            gone = _unused(cursor, [(name, text) for name, text in cursor.fetchall()])
            for statement in (_FORGET_DEALS, _FORGET_UNHELD):
                cursor.execute(statement, columns(map(_keys, gone), 2))
            return len(gone)

        return self._database.transact(act)

    def release(self, keys: Collection[GroupKey], changes: Changes) -> Refused:
        """Write the last changes and let go of groups, in one transaction; return those that another has already."""

        def act(cursor: "Cursor") -> Refused:
            me = self.incarnation
            routed, _ = lock_own(cursor, me, changes.routed, changes.alive_us)
            refused = write_changes(cursor, me, self._shards, changes)
            holders = lock_groups(cursor, keys)
            ours = [key for key, holder in holders.items() if holder == me]
            cursor.execute(_READ, columns(map(_keys, ours), 2))
            stored = [GroupRow(*row[1:]) for row in cursor.fetchall() if row[0]]
            put_groups(cursor, me, [settled_group(row, routed, ()) for row in stored])
            self._hold(cursor, ours, NOBODY)
            cursor.execute(_FORGET, columns(map(_keys, ours), 2))
            anothers = {key for key, holder in holders.items() if holder not in (NOBODY, me)}
            return Refused(refused.sessions, tuple(sorted(anothers.union(refused.groups))))

        return self._database.transact(act)

    def _hold(self, cursor: "Cursor", keys: Collection[GroupKey], holder: int) -> None:
        cursor.execute(_HOLD, (holder, *columns(map(_keys, keys), 2)))

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


def settled_group(row: GroupRow, routed: tuple[int, ...], ends: Sequence[int]) -> GroupRow:
    """Return a group as its next holder takes it: with no member, at positions."""
    was_served = row.options & GROUP_SERVED and ends
    return replace(
        row,
        options=row.options & ~GROUP_SERVED,
        positions=resolved(row.positions, routed),
        doubt=pack_offsets(tuple(ends)) if was_served else row.doubt,
    )


def _unused(cursor: "Cursor", keys: Collection[GroupKey]) -> list[GroupKey]:
    texts = {key: f"{SHARED_PREFIX}{key[0]}/{key[1]}" for key in keys}
    cursor.execute(_USED, ([key_of(text) for text in texts.values()],))
    used = {text for (text,) in cursor.fetchall()}
    return [key for key, text in texts.items() if text not in used]


def _keys(key: GroupKey) -> tuple[bytes, bytes]:
    return key_of(key[0]), key_of(key[1])
