"""Which of a session's overlapping subscriptions count for a message, and how they go together.

[MQTT-3.3.4-3] [MQTT-3.3.4-4] a message that matches several is sent once, with the highest QoS and every identifier. A
replay begins in the past and another subscription at now, so an old message goes by the first alone, and a new one by
both. [MQTT-3.8.3-3] what the session published itself goes by its subscriptions without No Local alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import or_
from typing import TypeAlias

import cython

from everlog.base import QOS_BITS, row_column
from everlog.broker.delivery.partition import merge_rows
from everlog.mqtt import encode_identifiers
from everlog.sessions import Session, Subscribed, is_within

if not cython.compiled:
    from everlog.base import NOT_KEPT, Records
    from everlog.sessions import MergedSubscription, OutgoingRows

# The fields of a MergedSubscription, but for the session.
Combined: TypeAlias = tuple[int, bytes, bool, bool, tuple[int, ...], int, tuple[int, ...], tuple[Subscribed, ...]]
# Rows of a batch that go by one merged subscription: rows (None: every row), start, stop.
Mine: TypeAlias = tuple[MergedSubscription, bytearray | None, int, int]


def merge(session: Session, subscribed: list[Subscribed]) -> MergedSubscription:
    """Return how a session gets what matches all of these, and the session's own messages among it."""
    merged = MergedSubscription(session, *combine(subscribed))
    if merged.no_local and (own := of_own(subscribed)):
        merged.own = MergedSubscription(session, *own)
    return merged


def of_own(subscribed: list[Subscribed]) -> Combined | tuple[()]:
    """Return how the session gets what it published itself, if by fewer subscriptions than other messages."""
    others = [one for one in subscribed if not one.no_local]
    return combine(others) if others and len(others) < len(subscribed) else ()


def combine(subscribed: list[Subscribed]) -> Combined:
    """Return overlapping subscriptions as one: highest QoS, every identifier, first begin."""
    # of thousands, most are alike in all that counts here
    manners = {(one.qos, one.identifier, one.retain_as_published, one.no_local, one.tells) for one in subscribed}
    begins = {one.since for one in subscribed}
    until = tuple(map(max, zip(*filter(None, begins), strict=True)))
    since = () if () in begins else tuple(map(min, zip(*begins, strict=True)))
    return (
        max(manner[0] for manner in manners),
        encode_identifiers(sorted({manner[1] for manner in manners} - {0})),
        any(manner[2] for manner in manners),
        any(manner[3] for manner in manners),
        since,
        reduce(or_, (manner[4] for manner in manners)),
        until,
        tuple(subscribed) if since != until else (),
    )


def is_early(merged: MergedSubscription, records: Records, shard: int) -> bool:
    """Return whether a batch begins before all of the subscriptions have begun."""
    return bool(merged.until) and shard != NOT_KEPT and records.base_offset < merged.until[shard]


def begun_at(merged: MergedSubscription, shard: int, offset: int) -> MergedSubscription | None:
    """Return how a message at an offset goes; None if no subscription had begun."""
    if not merged.parts:
        return merged if not merged.since or merged.since[shard] <= offset else None
    parts = [one for one in merged.parts if not one.since or one.since[shard] <= offset]
    if len(parts) == len(merged.parts):
        return merged
    return merge(merged.session, parts) if parts else None


def stretches(out: OutgoingRows, shard: int, before: list[tuple[int, int]] | None = None) -> Iterable[OutgoingRows]:
    """Return rows in stretches, each by the subscriptions that count for it; rows of none are left out.

    Of the offsets `before` it is known in another way that the session published them itself.
    """
    parts: Iterable[OutgoingRows] = _begun(out, shard) if is_early(out.merged, out.records, shard) else (out,)
    own = [*(before or ()), *out.merged.session.own(shard)] if out.merged.no_local else None
    return parts if not own else (stretch for part in parts for stretch in _without_own(part, own))


def without_qos_0(out: OutgoingRows, below: int) -> bool:
    """Leave out rows below an offset that would go at QoS 0; return whether any are left."""
    rows, flags = out.row_numbers(), out.flags()
    at_most = 0 if out.merged.qos == 0 else QOS_BITS
    left = [row for row, one in zip(rows, flags, strict=True) if one & at_most or out.records.offset(row) >= below]
    if len(left) < len(rows):
        out.rows, out.start, out.stop = row_column(left), 0, len(left)
    return bool(left)


def _begun(out: OutgoingRows, shard: int) -> Iterator[OutgoingRows]:
    merged = out.merged
    if not merged.parts:
        out.skip_below(merged.until[shard])
        if out.start < out.stop:
            yield out
        return
    bounds = sorted({one.since[shard] if one.since else 0 for one in merged.parts})
    for number, bound in enumerate(bounds):
        stretch = OutgoingRows(out.records, out.rows, out.start, out.stop, merged)
        stretch.skip_below(bound)
        if number + 1 < len(bounds):
            stretch.cut_at(bounds[number + 1])
        if stretch.start < stretch.stop:
            stretch.merged = begun_at(merged, shard, bound) or merged
            yield stretch


def _without_own(out: OutgoingRows, own: list[tuple[int, int]]) -> Iterator[OutgoingRows]:
    records, merged = out.records, out.merged
    if not merged.no_local:
        yield out
        return
    for is_own, rows in groupby(out.row_numbers(), lambda row: is_within(records.offset(row), own)):
        by = merged.own if is_own else replace(merged, no_local=False)
        if by is not None:
            chosen = row_column(rows)
            yield OutgoingRows(records, chosen, 0, len(chosen) // 4, by)


def in_order(records: Records, mine: list[Mine], shard: int) -> Iterator[OutgoingRows]:
    """Yield the rows of one session that go by several merged subscriptions in the batch's order."""
    if len({_manner(merged, records, shard) for merged, _, _, _ in mine}) == 1:
        merged, rows, start, stop = mine[0]
        if len(mine) > 1:
            rows = merge_rows([(rows, start, stop) for _, rows, start, stop in mine if rows is not None], records.count)
            start, stop = 0, len(rows) // 4
        yield OutgoingRows(records, rows, start, stop, merged)
        return
    by_row: list[tuple[int, int]] = sorted(
        (row, which)
        for which, (merged, rows, start, stop) in enumerate(mine)
        for row in OutgoingRows(records, rows, start, stop, merged).row_numbers()
    )
    for which, stretch in groupby(by_row, lambda one: one[1]):
        chosen = row_column(row for row, _ in stretch)
        yield OutgoingRows(records, chosen, 0, len(chosen) // 4, mine[which][0])


def _manner(merged: MergedSubscription, records: Records, shard: int) -> tuple[object, ...]:
    """Return what tells one way to deliver a batch from another."""
    alone = merged if merged.no_local or is_early(merged, records, shard) else None
    return (merged.qos, merged.identifiers, merged.retain_as_published, merged.tells, alone)
