"""Rows of the outbox: wills that leave their sessions, numbered without a gap in each shard.

By its number a will is appended once: the outbox is an origin of its own (`origins.OUTBOX_ORIGIN`) in every shard.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from everlog.sessions import SentWill, unpack_will
from everlog.store import shard_of

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_COUNT = """
insert into outbox_ends as old (shard, last) values (%s, %s)
on conflict (shard) do update set last = old.last + excluded.last returning last
"""
_PUT = """
insert into outbox (shard, number, client_id, username, will)
select * from unnest(%s::integer[], %s::bigint[], %s::text[], %s::text[], %b::bytea[])
"""


def put_wills(cursor: "Cursor", wills: Sequence[tuple[Any, ...]], shards: int) -> None:
    """Put wills (client id, user, will) in the outbox of the shards of their topics."""
    if not wills:
        return
    named = []
    for client_id, user, packed in wills:
        will = unpack_will(packed)
        assert will is not None
        named.append((shard_of(will.topic.encode(), shards), client_id, user, packed))
    next_number = {}
    for shard, count in sorted(Counter(row[0] for row in named).items()):  # in one order, as they stay locked
        cursor.execute(_COUNT, (shard, count))
        found = cursor.fetchone()
        assert found is not None
        next_number[shard] = found[0] - count + 1
    rows = []
    for shard, *rest in named:
        rows.append((shard, next_number[shard], *rest))
        next_number[shard] += 1
    cursor.execute(_PUT, [list(column) for column in zip(*rows, strict=True)])


def put_sent(cursor: "Cursor", me: int, sent: Sequence[SentWill], refused: Collection[str], shards: int) -> None:
    """Put wills that an incarnation, whose row is locked, has sent in the outbox, but not those that it put before."""
    cursor.execute("select wills from session_brokers where incarnation = %s", (me,))
    found = cursor.fetchone()
    assert found is not None
    new = [one for one in sent if one.number > found[0]]
    if new:
        put_wills(cursor, [one[1:] for one in new if one.client_id not in refused], shards)
        last = max(one.number for one in new)
        cursor.execute("update session_brokers set wills = %s where incarnation = %s", (last, me))
