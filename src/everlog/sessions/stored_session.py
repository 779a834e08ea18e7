# cython: boundscheck=True, wraparound=True, cdivision=False
"""Sessions and shared groups turned into stored rows, and made from them again.

`settle` and `settle_group` adapt what a broker finds at start: nobody is connected then, and nothing counts that the
log does not have. Pure: the log's state is an argument.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from everlog.base import NOT_KEPT, RETAINED, is_retained, unpack_position
from everlog.sessions.group_cursor import GroupCursor, Owed
from everlog.sessions.inflight_copies import CopiesTotal
from everlog.sessions.row_format import (
    INFLIGHT_BYTES,
    pack_feeds,
    pack_ids,
    pack_inflight,
    pack_offsets,
    pack_owed,
    pack_subscription,
    pack_unsure,
    pack_will,
    unpack_feeds,
    unpack_ids,
    unpack_inflight,
    unpack_offsets,
    unpack_owed,
    unpack_subscription,
    unpack_unsure,
    unpack_will,
)
from everlog.sessions.session import Session
from everlog.sessions.session_memory import STORED_BYTES, filter_bytes, will_bytes
from everlog.sessions.tables import (
    ALIVE,
    GROUP_ORDERED,
    GROUP_SERVED,
    LIVE,
    Cursor,
    GroupRow,
    SessionRow,
    StoredSession,
    SubscriptionRow,
)
from everlog.sessions.window import RELEASED

_LIVE_BYTES = pack_offsets((LIVE,))
_SHARD_BYTE = INFLIGHT_BYTES - 1  # of a message under way, the last byte of its position


def row_of(session: Session) -> SessionRow:
    """Return the row of a session as it is now."""
    return SessionRow(
        session.client_id, session.user, session.version, session.expiry_s, session.away_us, pack_will(session.will)
    )


def cursor_of(session: Session, committed: Sequence[int]) -> Cursor:
    """Return the progress of a session as it is now; `committed` is where each shard's committed records end."""
    lag, received, unsure, doubt, feeds = (
        session.lag,
        session.received_bits,
        session.unsure,
        session.doubt,
        session.feeds,
    )
    shards = len(committed)
    return Cursor(
        pack_offsets(tuple([lag.get(shard, LIVE) for shard in range(shards)])) if lag else _LIVE_BYTES * shards,
        session.next_id,
        session.packed_inflight(),
        pack_ids(received) if received is not None else b"",
        pack_unsure(unsure) if unsure else b"",
        pack_offsets(tuple([doubt.get(shard, 0) for shard in range(shards)])) if doubt else b"",
        pack_feeds(feeds) if feeds else b"",
    )


def stored(session: Session, committed: Sequence[int]) -> StoredSession:
    """Return everything that is to be stored of a session."""
    filters = tuple(pack_subscription(one, committed) for one in session.subscriptions.values())
    return StoredSession(row_of(session), filters, cursor_of(session, committed))


def restored(
    found: StoredSession, queue_bytes: int, copies: CopiesTotal | None = None, begin: Sequence[int] = ()
) -> Session:
    """Return the session of a client that is away, made from what was stored; its copies count against `copies`.

    The offsets `begin` are where the log ended when the broker started.
    """
    row, cursor = found.row, found.cursor
    session = Session(
        row.client_id,
        row.version,
        row.expiry_s,
        queue_bytes=queue_bytes,
        copies_total=copies or CopiesTotal(),
        user=row.user,
        kept=True,
        away_us=row.away_us,
        will=unpack_will(row.will),
        subscriptions={one.filter: unpack_subscription(one) for one in found.subscriptions},
        lag=dict(enumerate(unpack_offsets(cursor.positions))),
        doubt={shard: below for shard, below in enumerate(unpack_offsets(cursor.doubt)) if below},
        unsure=unpack_unsure(cursor.unsure),
    )
    session.restore_held()
    pending = _without(unpack_inflight(cursor.inflight), _is_nowhere)
    session.restore_ids(pending, cursor.next_id, unpack_ids(cursor.received) if cursor.received else None)
    if any(one.no_local for one in session.subscriptions.values()):
        lag = session.lag
        session.own_is_unknown({shard: (at, begin[shard]) for shard, at in lag.items() if shard < len(begin)})
    if cursor.feeds:
        session.feed(*unpack_feeds(cursor.feeds))
    return session


def stored_bytes(found: StoredSession) -> int:
    """Return what the filters and the will of a stored session take, as `Session.held_bytes` does."""
    filters = sum(filter_bytes(one.filter, True) for one in found.subscriptions)
    return STORED_BYTES + filters + will_bytes(unpack_will(found.row.will))


def settle(found: StoredSession, routed: Sequence[int], alive_us: int, ends: Sequence[int]) -> StoredSession:
    """Return a stored session as a broker that starts must take it; the same object if nothing has to change.

    `routed` and `alive_us` are from the same tables, `ends` are the log's. A client that was connected left when the
    broker last wrote; it may have been sent messages beyond its positions.
    """
    row, cursor = found.row, found.cursor
    positions = unpack_offsets(cursor.positions)
    was_connected = row.away_us == ALIVE
    fits = _fit(positions, ends)
    subscriptions = _cut(found.subscriptions, ends)
    if fits and not was_connected and not cursor.unsure and subscriptions is found.subscriptions:
        return found
    reached = _reached(positions, routed, ends)
    inflight = cursor.inflight
    if not fits:
        inflight = pack_inflight(_without(unpack_inflight(inflight), lambda position: not _exists(position, ends)))
    doubt = tuple(ends) if was_connected else unpack_offsets(cursor.doubt)
    return StoredSession(
        SessionRow(row.client_id, row.user, row.version, row.expiry_s, row.away_us or max(alive_us, 1), row.will),
        subscriptions,
        Cursor(
            pack_offsets(reached),
            cursor.next_id,
            inflight,
            _known(cursor, ends),
            b"",
            pack_offsets(doubt),
            cursor.feeds,
        ),
    )


def retained_end(cursor: Cursor) -> int:
    """Return a number above those of all retained messages that a session is owed or was sent."""
    ends = [feed.end for feed in unpack_feeds(cursor.feeds)]
    if NOT_KEPT in cursor.inflight[_SHARD_BYTE::INFLIGHT_BYTES]:
        places = (position for _, _, position in unpack_inflight(cursor.inflight) if is_retained(position))
        ends += [(unpack_position(position)[1] & ~RETAINED) + 1 for position in places]
    return max(ends, default=0)


def group_row(
    name: str, pattern: str, cursor: GroupCursor, positions: Sequence[int], doubt: Sequence[int], served: bool
) -> GroupRow:
    """Return the row of a shared group; `positions` is where it reads on, LIVE where it is dealt what is routed."""
    return GroupRow(
        name,
        pattern,
        GROUP_ORDERED * cursor.ordered | GROUP_SERVED * served,
        pack_offsets(tuple(positions)),
        pack_owed(cursor.unfinished()) if cursor.pending else b"",
        pack_offsets(tuple(doubt)),
    )


def settle_group(
    found: GroupRow, routed: Sequence[int], ends: Sequence[int]
) -> tuple[GroupRow, list[tuple[int, Owed]]]:
    """Return a stored group as a broker that starts must take it, and what it owes; arguments as for `settle`."""
    positions = _reached(unpack_offsets(found.positions), routed, ends)
    owed = [entry for entry in unpack_owed(found.owed) if _exists(entry[0], ends)]
    doubt = pack_offsets(tuple(ends)) if found.options & GROUP_SERVED else found.doubt
    options = found.options & ~GROUP_SERVED
    return GroupRow(found.name, found.filter, options, pack_offsets(positions), pack_owed(owed), doubt), owed


def _reached(positions: Sequence[int], routed: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    reached = []
    for shard, end in enumerate(ends):
        at = positions[shard] if shard < len(positions) else LIVE
        if at == LIVE:
            at = routed[shard] if shard < len(routed) else 0
        reached.append(min(at, end))  # a log that lost its tail gives these offsets out again
    return tuple(reached)


def _cut(rows: tuple[SubscriptionRow, ...], ends: Sequence[int]) -> tuple[SubscriptionRow, ...]:
    """Return subscriptions without a begin above the log's end, which earlier versions stored; the same if none has."""
    if all(_fit(unpack_offsets(one.since), ends) for one in rows if one.since):
        return rows
    return tuple(pack_subscription(unpack_subscription(one), ends) for one in rows)


def _fit(positions: Sequence[int], ends: Sequence[int]) -> bool:
    if len(positions) != len(ends):
        return False
    for at, end in zip(positions, ends, strict=True):  # noqa: SIM110 - twice as fast as all(), once for each session
        if not 0 <= at <= end:
            return False
    return True


def _exists(position: int, ends: Sequence[int]) -> bool:
    shard, offset = unpack_position(position)
    return is_retained(position) or (shard < len(ends) and offset < ends[shard])


def _is_nowhere(position: int) -> bool:
    return unpack_position(position)[0] == NOT_KEPT and not is_retained(position)


def _without(pending: Iterable[tuple[int, int, int]], is_gone: Callable[[int], bool]) -> list[tuple[int, int, int]]:
    """Return what is under way without QoS 1 messages that are gone, since they can't be sent again.

    A QoS 2 message that is gone becomes a PUBREL: the client may have it, and would take the next message with its id
    for the same one.
    """
    return [
        (packet_id, RELEASED if is_gone(position) else state, position)
        for packet_id, state, position in pending
        if state != 1 or not is_gone(position)
    ]


def without_unproven(found: StoredSession, ends: Mapping[int, int]) -> StoredSession:
    """Return a session whose QoS 2 ids are all sure: those stay whose shard has reached what they were stored with."""
    known = _known(found.cursor, [ends.get(shard, 0) for shard in range(max(ends, default=-1) + 1)])
    return StoredSession(found.row, found.subscriptions, replace(found.cursor, received=known, unsure=b""))


def without_retained(found: StoredSession) -> StoredSession:
    """Return a session that is owed no retained messages: they are numbered by the broker that has had it.

    The same object if it is owed none. What it was sent of them and has not acknowledged is as for messages that are
    gone.
    """
    cursor = found.cursor
    pending = unpack_inflight(cursor.inflight)
    if not cursor.feeds and not any(is_retained(position) for _, _, position in pending):
        return found
    left = pack_inflight(_without(pending, is_retained))
    return StoredSession(found.row, found.subscriptions, replace(cursor, inflight=left, feeds=b""))


def _known(cursor: Cursor, ends: Sequence[int]) -> bytes:
    """Return the received QoS 2 ids without those that were stored ahead of a message that the log has lost."""
    if not cursor.unsure:
        return cursor.received
    bits = unpack_ids(cursor.received)
    for shard, end, ids in unpack_unsure(cursor.unsure):
        if shard >= len(ends) or ends[shard] < end:
            for k in range(0, len(ids), 2):
                packet_id = ids[k] | ids[k + 1] << 8
                bits[packet_id >> 3] &= 0xFF ^ 1 << (packet_id & 7)
    return pack_ids(bits)
