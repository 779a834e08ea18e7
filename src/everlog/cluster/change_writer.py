"""Changes of sessions as an incarnation writes them, in a transaction that has locked its row.

A session, a will or a group of another holder is left out and told. What is absent is inserted, unless somebody else
is just doing that.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from everlog.cluster.outbox_rows import put_sent
from everlog.cluster.retained_backlog import RetainedBacklog
from everlog.cluster.retained_rows import write_retained
from everlog.cluster.session_schema import key_of
from everlog.sessions import (
    DEAL_BACK,
    DEAL_TAKEN,
    Changes,
    Cursor,
    GroupDeal,
    GroupRow,
    Refused,
    SessionRow,
    SubscriptionRow,
    WillRow,
)

if TYPE_CHECKING:
    import psycopg

    DbCursor = psycopg.Cursor[tuple[Any, ...]]

_PUT_SESSIONS = """
insert into sessions as old (client, client_id, holder, is_kept, username, version, expiry_s, away_us, will)
select client, client_id, %s, true, username, version, expiry_s, away_us, will
from unnest(%b::bytea[], %s::text[], %s::text[], %s::smallint[], %s::bigint[], %s::bigint[], %b::bytea[])
    as new (client, client_id, username, version, expiry_s, away_us, will)
on conflict (client) do update set is_kept = true, username = excluded.username, version = excluded.version,
    expiry_s = excluded.expiry_s, away_us = excluded.away_us, will = excluded.will
where old.holder = excluded.holder returning client_id
"""
_PUT_FILTERS = """
insert into session_filters (client, key, filter, options, identifier, since)
select * from unnest(%b::bytea[], %b::bytea[], %s::text[], %s::smallint[], %s::integer[], %b::bytea[])
on conflict (client, key) do update set options = excluded.options, identifier = excluded.identifier,
    since = excluded.since
"""
_PUT_CURSORS = """
insert into session_cursors (client, positions, next_id, inflight, received, unsure, doubt, feeds)
select * from unnest(%b::bytea[], %b::bytea[], %s::integer[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[],
    %b::bytea[])
on conflict (client) do update set positions = excluded.positions, next_id = excluded.next_id,
    inflight = excluded.inflight, received = excluded.received, unsure = excluded.unsure, doubt = excluded.doubt,
    feeds = excluded.feeds, unsure_of = 0
"""
_PUT_WILLS = """
insert into session_wills as old (client, client_id, holder, username, will)
select client, client_id, %s, username, will
from unnest(%b::bytea[], %s::text[], %s::text[], %b::bytea[]) as new (client, client_id, username, will)
on conflict (client) do update set username = excluded.username, will = excluded.will
where old.holder = excluded.holder returning client_id
"""
_PUT_GROUPS = """
insert into session_groups as old (name_key, filter_key, name, filter, holder, is_kept, options, positions, owed, doubt)
select name_key, filter_key, name, filter, %s, true, options, positions, owed, doubt
from unnest(%b::bytea[], %b::bytea[], %s::text[], %s::text[], %s::smallint[], %b::bytea[], %b::bytea[], %b::bytea[])
    as new (name_key, filter_key, name, filter, options, positions, owed, doubt)
on conflict (name_key, filter_key) do update set is_kept = true, options = excluded.options,
    positions = excluded.positions, owed = excluded.owed, doubt = excluded.doubt
where old.holder = excluded.holder returning name, filter
"""
_LOCK_GROUPS = """
select name, filter, old.holder from session_groups as old
join unnest(%b::bytea[], %b::bytea[]) as wanted (name_key, filter_key) using (name_key, filter_key)
order by name_key, filter_key for update of old
"""
_END_GROUPS = """
update session_groups as old set is_kept = false, options = 0, positions = '', owed = '', doubt = ''
from unnest(%b::bytea[], %b::bytea[]) as gone (name_key, filter_key)
where old.name_key = gone.name_key and old.filter_key = gone.filter_key
"""
_PUT_DEALS = """
insert into group_deals (name_key, filter_key, position, client_id, taker)
select * from unnest(%b::bytea[], %b::bytea[], %s::bigint[], %s::text[], %s::bigint[])
on conflict (name_key, filter_key, position) do update set client_id = excluded.client_id, taker = excluded.taker
"""
_END_DEALS = b"""
delete from group_deals as old using unnest(%b::bytea[], %b::bytea[], %s::bigint[])
    as gone (name_key, filter_key, position)
where old.name_key = gone.name_key and old.filter_key = gone.filter_key and old.position = gone.position
"""


def write_changes(
    cursor: "DbCursor", me: int, shards: int, changes: Changes, backlog: RetainedBacklog | None = None
) -> Refused:
    """Write a batch as an incarnation that has locked its row; return what another has.

    With it goes what is in the `backlog` of retained messages, as far as that may be written by now.
    """
    sessions = _write_sessions(cursor, me, changes)
    groups = _write_groups(cursor, me, changes) if changes.groups or changes.ended_groups else ()
    if changes.sent_wills:
        put_sent(cursor, me, changes.sent_wills, sessions, shards)
    if changes.deals:
        _write_deals(cursor, me, [one for one in changes.deals if one.client_id not in sessions or one.taker > 0])
    write_retained(cursor, me, changes, RetainedBacklog(shards) if backlog is None else backlog)
    return Refused(tuple(sorted(sessions)), tuple(sorted(groups)))


def lock_sessions(cursor: "DbCursor", client_ids: Collection[str]) -> dict[str, tuple[int, bool]]:
    """Lock the rows of sessions, in one order for all; return the holder of each, and whether something is stored."""
    cursor.execute(
        "select client_id, holder, is_kept from sessions where client = any(%b) order by client for update",
        (sorted(map(key_of, client_ids)),),
    )
    return {client_id: (holder, is_kept) for client_id, holder, is_kept in cursor.fetchall()}


def _write_sessions(cursor: "DbCursor", me: int, changes: Changes) -> set[str]:
    ended = set(changes.ended)
    named = {client_id for client_id, _ in (*changes.unsubscribed, *changes.subscribed, *changes.cursors)}
    rows = {row.client_id: row for row in changes.rows}
    wills = {will.client_id: will for will in changes.wills}
    touched = ended | named | rows.keys() | wills.keys() | set(changes.ended_wills)
    if not touched:
        return set()
    found = lock_sessions(cursor, touched)
    refused = {client_id for client_id, (holder, _) in found.items() if holder != me}
    kept = {client_id for client_id, (holder, is_kept) in found.items() if holder == me and is_kept}
    remove_sessions(cursor, [client_id for client_id in ended if client_id in found and client_id not in refused])
    kept -= ended
    written = put_sessions(cursor, me, [row for client_id, row in rows.items() if client_id not in refused])
    refused |= rows.keys() - written
    refused |= named - found.keys() - written  # ended by another holder
    kept |= written
    _write_filters(cursor, kept, changes)
    put_cursors(cursor, {client_id: one for client_id, one in changes.cursors if client_id in kept})
    if wills or changes.ended_wills:
        ours = [will for client_id, will in wills.items() if client_id not in refused]
        refused |= _write_wills(cursor, me, changes.ended_wills, ours)
    return refused


def remove_sessions(cursor: "DbCursor", client_ids: Iterable[str]) -> None:
    """Leave nothing of sessions but that their client ids are held."""
    keys = list(map(key_of, client_ids))
    if keys:
        cursor.execute(
            "update sessions set is_kept = false, will = null, expiry_s = 0, away_us = 0 where client = any(%b)",
            (keys,),
        )
        cursor.execute("delete from session_filters where client = any(%b)", (keys,))
        cursor.execute("delete from session_cursors where client = any(%b)", (keys,))


def put_sessions(cursor: "DbCursor", me: int, rows: Sequence[SessionRow]) -> set[str]:
    """Write the rows of sessions; return the client ids of those that are held by this incarnation."""
    if not rows:
        return set()
    ordered = sorted(rows, key=lambda row: key_of(row.client_id))
    client_ids, users, versions, expiries, away, wills = columns(map(astuple, ordered), 6)
    keys = list(map(key_of, client_ids))
    cursor.execute(_PUT_SESSIONS, (me, keys, client_ids, users, versions, expiries, away, wills))
    return {client_id for (client_id,) in cursor.fetchall()}


def _write_filters(cursor: "DbCursor", kept: set[str], changes: Changes) -> None:
    gone = [(key_of(one), key_of(text)) for one, text in changes.unsubscribed if one in kept]
    if gone:
        cursor.execute(
            "delete from session_filters as old using unnest(%b::bytea[], %b::bytea[]) as gone (client, key) "
            "where old.client = gone.client and old.key = gone.key",
            columns(gone, 2),
        )
    new: dict[tuple[str, str], SubscriptionRow] = {
        (one, row.filter): row for one, row in changes.subscribed if one in kept
    }
    if new:
        rows = ((key_of(one), key_of(text), *astuple(row)) for (one, text), row in new.items())
        cursor.execute(_PUT_FILTERS, columns(rows, 6))


def put_cursors(cursor: "DbCursor", cursors: dict[str, Cursor]) -> None:
    """Write the progress of sessions."""
    if cursors:
        rows = ((key_of(client_id), *astuple(one)) for client_id, one in cursors.items())
        cursor.execute(_PUT_CURSORS, columns(rows, 8))


def _write_wills(cursor: "DbCursor", me: int, ended: Sequence[str], wills: Sequence[WillRow]) -> set[str]:
    cursor.execute("delete from session_wills where client = any(%b) and holder = %s", (sorted(map(key_of, ended)), me))
    if not wills:
        return set()
    ordered = sorted(wills, key=lambda will: key_of(will.client_id))
    client_ids, users, bodies = columns(map(astuple, ordered), 3)
    cursor.execute(_PUT_WILLS, (me, list(map(key_of, client_ids)), client_ids, users, bodies))
    return set(client_ids) - {client_id for (client_id,) in cursor.fetchall()}


def lock_groups(cursor: "DbCursor", keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Lock the rows of groups, in one order for all; return the holder of each."""
    cursor.execute(_LOCK_GROUPS, columns(((key_of(name), key_of(text)) for name, text in keys), 2))
    return {(name, text): holder for name, text, holder in cursor.fetchall()}


def _write_groups(cursor: "DbCursor", me: int, changes: Changes) -> set[tuple[str, str]]:
    rows = {(row.name, row.filter): row for row in changes.groups}
    found = lock_groups(cursor, rows.keys() | set(changes.ended_groups))
    refused = {key for key, holder in found.items() if holder != me}
    gone = [(key_of(name), key_of(text)) for name, text in changes.ended_groups if (name, text) not in refused]
    cursor.execute(_END_GROUPS, columns(gone, 2))
    written = put_groups(cursor, me, [row for key, row in rows.items() if key not in refused])
    return refused | (rows.keys() - written)


def put_groups(cursor: "DbCursor", me: int, rows: Sequence[GroupRow]) -> set[tuple[str, str]]:
    """Write the rows of groups; return the names and filters of those that are held by this incarnation."""
    if not rows:
        return set()
    keyed = sorted((key_of(row.name), key_of(row.filter), *astuple(row)) for row in rows)
    cursor.execute(_PUT_GROUPS, (me, *columns(keyed, 8)))
    return {(name, text) for name, text in cursor.fetchall()}


def _write_deals(cursor: "DbCursor", me: int, deals: Sequence[GroupDeal]) -> None:
    """Write to whom groups have dealt, and remove what sessions have from now on, or groups owe."""
    dealt = sorted((*_deal_key(one), one.client_id, one.taker) for one in deals if one.taker > 0)
    if dealt:
        cursor.execute(_PUT_DEALS, columns(dealt, 5))
    taken = [_deal_key(one) for one in deals if one.taker == DEAL_TAKEN]
    if taken:
        cursor.execute(_END_DEALS + b" and old.taker = %s", (*columns(sorted(taken), 3), me))
    back = [_deal_key(one) for one in deals if one.taker == DEAL_BACK]
    if back:
        cursor.execute(_END_DEALS, columns(sorted(back), 3))


def _deal_key(deal: GroupDeal) -> tuple[bytes, bytes, int]:
    return key_of(deal.name), key_of(deal.filter), as_signed(deal.position)


def as_signed(position: int) -> int:
    """Return a position as PostgreSQL's bigint has it."""
    return position - (1 << 64) if position >> 63 else position


def columns(rows: Iterable[Sequence[Any]], count: int) -> list[list[Any]]:
    """Return rows as arrays, one a column."""
    found = [list(column) for column in zip(*rows, strict=True)]
    return found or [[] for _ in range(count)]
