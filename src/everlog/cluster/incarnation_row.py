"""The row of an incarnation beside its sessions: the fence of all that it writes, and what LIVE stands for.

Every transaction that writes as an incarnation locks its row first, then looks whether it lives. Who takes over from a
dead one locks that row too: what the dead one had under way is committed by then, or is refused.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from everlog.ownership import Overruled
from everlog.sessions import LIVE, pack_offsets, unpack_offsets

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_LOCK = """
insert into session_brokers as own (incarnation, routed, alive_us)
values (%(me)s, coalesce(%(routed)b, ''::bytea), coalesce(%(alive_us)s::bigint, 0))
on conflict (incarnation) do update set routed = coalesce(%(routed)b, own.routed),
    alive_us = coalesce(%(alive_us)s::bigint, own.alive_us)
returning routed, alive_us
"""
_LOCK_DEAD = """
select incarnation from session_brokers where incarnation = any(%s) and not exists (
    select 1 from incarnations where number = incarnation and is_alive) order by incarnation for share
"""
_LOCK_UNNAMED = """
select incarnation from session_brokers where not exists (
    select 1 from incarnations where number = incarnation and is_alive) order by incarnation for update
"""


def lock_own(
    cursor: "Cursor", me: int, routed: tuple[int, ...] | None = None, alive_us: int | None = None
) -> tuple[tuple[int, ...], int]:
    """Lock the own row, say how far the broker has routed, and return that; raise `Overruled` if it is dead."""
    packed = None if routed is None else pack_offsets(routed)
    cursor.execute(_LOCK, {"me": me, "routed": packed, "alive_us": alive_us})
    found = cursor.fetchone()
    assert found is not None
    # A statement of its own: it sees what was committed while the one before waited for the lock.
    cursor.execute("select 1 from incarnations where number = %s and is_alive", (me,))
    if cursor.fetchone() is None:
        raise Overruled(f"incarnation {me} was declared dead or replaced", hint="join again")
    return unpack_offsets(found[0]), found[1]


def lock_dead(cursor: "Cursor", holders: Collection[int]) -> set[int]:
    """Return those incarnations that are dead; none of them writes any more."""
    if not holders:
        return set()
    cursor.execute(_LOCK_DEAD, (sorted(holders),))
    return {incarnation for (incarnation,) in cursor.fetchall()}


def rows_of(cursor: "Cursor", holders: Collection[int]) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return how far incarnations had routed, and when they last wrote."""
    cursor.execute(
        "select incarnation, routed, alive_us from session_brokers where incarnation = any(%s)", (sorted(holders),)
    )
    return {incarnation: (unpack_offsets(routed), alive_us) for incarnation, routed, alive_us in cursor.fetchall()}


def remove_unnamed(cursor: "Cursor") -> int:
    """Remove the rows of dead incarnations that nothing names any more; return how many."""
    cursor.execute(_LOCK_UNNAMED)
    dead = [incarnation for (incarnation,) in cursor.fetchall()]
    if not dead:
        return 0
    for table in ("sessions", "session_wills", "session_groups"):
        cursor.execute(f"select distinct holder from {table} where holder = any(%s)".encode(), (dead,))
        named = {holder for (holder,) in cursor.fetchall()}
        dead = [incarnation for incarnation in dead if incarnation not in named]
    for table in ("retained_names", "session_brokers"):
        cursor.execute(f"delete from {table} where incarnation = any(%s)".encode(), (dead,))
    return len(dead)


def resolved(positions: bytes, routed: tuple[int, ...]) -> bytes:
    """Return positions with what LIVE stood for in its place; a shard that is missing was LIVE."""
    stored = unpack_offsets(positions)
    shards = max(len(stored), len(routed))
    found = (stored[shard] if shard < len(stored) else LIVE for shard in range(shards))
    reached = (routed[shard] if shard < len(routed) else 0 for shard in range(shards))
    return pack_offsets(tuple(end if at == LIVE else at for at, end in zip(found, reached, strict=True)))
