"""Retained messages in the tables: for each shard what its log has left of them as of an offset, or of a later one.

The shard's owner writes them, and nobody else: what other brokers know of the shard is left out. They never go back:
an owner that has not followed as far as what is stored leaves it as it is. A broker that starts reads the offset first,
then the rows, and follows the log from that offset on.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from everlog.cluster.retained_backlog import RetainedBacklog
from everlog.cluster.session_schema import key_of, message_shard
from everlog.sessions import Changes, RetainedNames, RetainedRow

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_PUT_ROWS = """
insert into retained_messages (key, topic, shard, message, after)
select * from unnest(%b::bytea[], %s::text[], %s::integer[], %b::bytea[], %s::bigint[])
on conflict (key) do update set message = excluded.message, after = excluded.after
"""
_PUT_ENDS = """
insert into retained_shards as old (shard, as_of) select * from unnest(%s::integer[], %s::bigint[])
on conflict (shard) do update set as_of = excluded.as_of where old.as_of <= excluded.as_of returning shard
"""


def write_retained(cursor: "Cursor", me: int, changes: Changes, backlog: RetainedBacklog) -> None:
    """Write the retained messages of those shards that the incarnation owns, and the names that are its own."""
    if changes.retained or changes.retained_at is not None or len(backlog):
        written = _write_rows(cursor, me, changes, backlog)
        cursor.execute("select shard, as_of from retained_shards")
        backlog.found = written, dict(cursor.fetchall())
    if changes.ended_names:
        cursor.execute(
            "delete from retained_names where incarnation = %s and first = any(%s)", (me, list(changes.ended_names))
        )
    if changes.retained_names:
        cursor.executemany(
            "insert into retained_names (incarnation, first, stop, names) values (%s, %s, %s, %b) "
            "on conflict (incarnation, first) do update set stop = excluded.stop, names = excluded.names",
            [(me, *one) for one in changes.retained_names],
        )


def _write_rows(cursor: "Cursor", me: int, changes: Changes, backlog: RetainedBacklog) -> set[int]:
    rows = backlog.with_new(changes)
    ends = dict(enumerate(changes.retained_at or ()))
    wanted = {message_shard(shard): shard for shard in {shard for shard, _ in rows.values()} | ends.keys()}
    cursor.execute(
        "select thing from claims where thing = any(%s) and owner = %s order by thing for share", (sorted(wanted), me)
    )
    owned = {wanted[thing] for (thing,) in cursor.fetchall()}
    if changes.retained_at is not None:
        ours = sorted(owned & ends.keys())
        cursor.execute(_PUT_ENDS, (ours, [ends[shard] for shard in ours]))
        owned = {shard for (shard,) in cursor.fetchall()}
    gone, there = [], []
    for topic, (shard, row) in rows.items():
        if shard in owned and row.message is None and not row.after:
            gone.append(key_of(topic))
        elif shard in owned:
            there.append((key_of(topic), topic, shard, row.message or b"", row.after))
    if gone:
        cursor.execute("delete from retained_messages where key = any(%b)", (gone,))
    if there:
        cursor.execute(_PUT_ROWS, [list(column) for column in zip(*there, strict=True)])
    return owned


def read_ends(cursor: "Cursor") -> tuple[int, ...]:
    """Return as of which offset the retained messages of each shard are stored."""
    cursor.execute("select shard, as_of from retained_shards")
    ends: dict[int, int] = dict(cursor.fetchall())
    return tuple(ends.get(shard, 0) for shard in range(max(ends) + 1)) if ends else ()


def read_rows(transact: Callable[[Callable[["Cursor"], list[Any]]], list[Any]], at_once: int) -> Iterator[RetainedRow]:
    """Yield the retained messages of all shards, some in each transaction."""
    after = b""

    def act(cursor: "Cursor") -> list[Any]:
        cursor.execute(
            "select key, topic, nullif(message, ''::bytea), after from retained_messages where key > %b "
            "order by key limit %s",
            (after, at_once),
            binary=True,
        )
        return cursor.fetchall()

    while rows := transact(act):
        for _, topic, message, older in rows:
            yield RetainedRow(topic, message, older)
        after = rows[-1][0]


def read_names(cursor: "Cursor", me: int) -> list[RetainedNames]:
    """Return the names that an incarnation has stored."""
    cursor.execute("select first, stop, names from retained_names where incarnation = %s order by first", (me,))
    return [RetainedNames(*row) for row in cursor.fetchall()]
