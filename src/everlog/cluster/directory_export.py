"""A cluster's history and sessions as the data directory of a single broker; all brokers are stopped meanwhile.

The directory has as many shards as the cluster, so all positions stay. What only a broker can decide, such as QoS 2 ids
of a broker that was killed, or wills that are due, must be decided before: a broker that is started and drained does
that. The cluster stays as it is.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from everlog.base import StorageError, UsageError
from everlog.cluster.cluster_place import find_cluster
from everlog.cluster.cluster_shard import not_owned
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.directory_import import OWN, SOME, Carried, Progress
from everlog.cluster.history import ShardHistory
from everlog.cluster.incarnation_row import rows_of
from everlog.cluster.restored import refuse_living
from everlog.cluster.retained_rows import read_ends, read_rows
from everlog.cluster.session_claims import settled
from everlog.cluster.session_tables import read_sessions
from everlog.commitlog import LogSettings, Origin, ShardLog
from everlog.sessions import Changes, GroupRow, SqliteTables, WillRow, without_retained
from everlog.store import MAX_SHARDS, LogStore, StoreFile, TopicIndexer, write_store_file
from everlog.tiering import Bucket, Database

if TYPE_CHECKING:
    import psycopg

    from everlog.commitlog import Disk

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_HINT = "start one broker, let it settle what others left, drain it (SIGTERM), and export then"
_UNFINISHED = "unfinished-export"  # a file that is there until all is


def export_directory(
    database: ClusterDatabase,
    bucket: Bucket,
    directory: str,
    disk: "Disk",
    tell: Progress = lambda what, done, total: None,
    watch: Callable[[Callable[..., Any]], None] = refuse_living,
) -> Carried:
    """Make a directory that `everlog serve` opens, from a cluster whose brokers are stopped."""
    store = find_cluster(database, bucket)
    if store.shards > MAX_SHARDS:
        raise UsageError(f"a directory has up to {MAX_SHARDS} shards, and the cluster {store.shards}")
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory) not in ([], [_UNFINISHED]):
        raise UsageError(f"{directory} is not empty", hint="give a directory that is new")
    connection = database.connect()
    try:
        watch(connection.call)
        connection.transact(_refuse_undecided)
        with open(os.path.join(directory, _UNFINISHED), "w", encoding="utf-8") as mark:
            mark.write("an export that was broken off leaves this: remove the directory and begin again\n")
        identity = secrets.randbits(63) | 1
        write_store_file(disk, directory, StoreFile(store.shards, identity))
        ends = [
            _copy_shard(database, bucket, directory, disk, Origin(identity, shard), tell)
            for shard in range(store.shards)
        ]
        counts = _copy_sessions(connection, os.path.join(directory, "sessions.db"), ends)
    finally:
        connection.close()
    carried = _check(directory, ends, counts)
    os.unlink(os.path.join(directory, _UNFINISHED))
    sync_tree(directory)
    return carried


def sync_tree(directory: str) -> None:
    """Have all files below a directory, and their names, survive a power cut."""
    for folder, _, names in os.walk(directory):
        for path in (*(os.path.join(folder, name) for name in names), folder):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def _copy_shard(
    database: ClusterDatabase, bucket: Bucket, directory: str, disk: "Disk", origin: Origin, tell: Progress
) -> int:
    """Read a shard from bucket and tail into a log of its own; return where it ends."""
    shard = origin.shard
    history = ShardHistory(database, bucket, shard)
    log = ShardLog.open(
        disk, f"{directory}/shard-{shard}", LogSettings(), indexer=TopicIndexer(), origin=origin, is_copy=True
    )
    try:
        start, end = history.start(), history.end()
        log.follow(not_owned(shard))
        if start > 0:
            log.skip_to(start)
        while log.committed < end:
            behind = history.gaps.get(log.committed)
            if behind is not None:
                log.skip_to(behind, over_gap=bool(log.segments()))
                continue
            found = history.read(log.committed)
            if found is None:
                raise StorageError(f"shard {shard} ends at {log.committed}, and the database says {end}")
            log.take_in(0, found.segment, found.bodies)
            log.write_behind()
            tell(f"shard {shard}", log.committed - start, end - start)
        return end
    finally:
        log.close()
        history.close()


def _copy_sessions(connection: Database, path: str, ends: list[int]) -> dict[str, int]:
    counts = {"sessions": 0, "retained": 0, "groups": 0, "owed_retained": 0}
    tables = SqliteTables(path)
    try:
        alive_us = 1
        for changes in _changes(connection, counts):
            tables.apply(changes)
        retained_at = connection.transact(read_ends)
        at = tuple(map(min, (*retained_at, *(0,) * (len(ends) - len(retained_at))), ends))
        tables.apply(Changes(routed=tuple(ends), alive_us=alive_us, retained_at=at), durable=True)
    finally:
        tables.close()
    return counts


def _changes(connection: Database, counts: dict[str, int]) -> Iterator[Changes]:
    after: bytes = b""
    while keys := connection.transact(partial(_page, after=after)):
        after = keys[-1]
        some = connection.transact(partial(_sessions, keys=keys))
        plain = [without_retained(one) for one in some]
        counts["sessions"] += len(plain)
        counts["owed_retained"] += sum(one is not other for one, other in zip(some, plain, strict=True))
        yield Changes(
            rows=tuple(one.row for one in plain),
            subscribed=tuple((one.row.client_id, row) for one in plain for row in one.subscriptions),
            cursors=tuple((one.row.client_id, one.cursor) for one in plain),
        )
    groups, wills = connection.transact(_groups), connection.transact(_wills)
    counts["groups"] = len(groups)
    yield Changes(groups=tuple(groups), wills=tuple(wills))
    rows = []
    for row in read_rows(connection.transact, SOME):
        if row.topic.startswith(OWN):
            continue
        rows.append(row)
        counts["retained"] += 1
        if len(rows) >= SOME:
            yield Changes(retained=tuple(rows))
            rows = []
    yield Changes(retained=tuple(rows))


def _page(cursor: "Cursor", after: bytes) -> list[bytes]:
    cursor.execute(
        "select client from sessions where is_kept and client > %b order by client limit %s", (after, SOME), binary=True
    )
    return [key for (key,) in cursor.fetchall()]


def _sessions(cursor: "Cursor", keys: list[bytes]) -> list[Any]:
    cursor.execute("select client_id, holder from sessions where client = any(%b)", (keys,))
    holders: dict[str, int] = dict(cursor.fetchall())
    routed = rows_of(cursor, set(holders.values()))
    found = read_sessions(cursor, keys)
    return [settled(one, *routed.get(holders[client_id], ((), 0)), ()) for client_id, one in found.items()]


def _groups(cursor: "Cursor") -> list[GroupRow]:
    cursor.execute(
        "select name, filter, options, positions, owed, doubt from session_groups where is_kept", binary=True
    )
    return [GroupRow(*row) for row in cursor.fetchall()]


def _wills(cursor: "Cursor") -> list[WillRow]:
    cursor.execute("select client_id, username, will from session_wills", binary=True)
    return [WillRow(*row) for row in cursor.fetchall()]


def _refuse_undecided(cursor: "Cursor") -> None:
    """Raise UsageError if something waits for a decision that a broker takes."""
    for what, query in (
        ("sessions have QoS 2 messages that may have arrived or not", "session_cursors where unsure <> ''"),
        ("wills wait to be sent", "outbox"),
        ("imports were broken off", "message_store where importing"),
    ):
        cursor.execute(f"select count(*) from {query}".encode())
        (count,) = cursor.fetchone() or (0,)
        if count:
            raise UsageError(f"{count} {what}", hint=_HINT)


def _check(directory: str, ends: list[int], counts: dict[str, int]) -> Carried:
    """Open what was made, as a broker would, and count it."""
    log = LogStore.open(directory, background=False)
    tables = SqliteTables(os.path.join(directory, "sessions.db"))
    try:
        found = [shard.committed for shard in log.shards]
        snapshot = tables.load()
        sessions = sum(1 for _ in snapshot.sessions)
        retained, groups = sum(1 for _ in snapshot.retained), sum(1 for _ in snapshot.groups)
        if found != ends or [sessions, retained, groups] != [counts["sessions"], counts["retained"], counts["groups"]]:
            raise StorageError(
                f"{directory} has {sessions} sessions, {retained} retained messages, {groups} groups and ends at "
                f"{found}; expected are {counts} and {ends}",
                hint="remove it and begin again",
            )
        numbers = log.statistics()
        return Carried(
            shards=len(found),
            messages=sum(one.committed - one.start for one in numbers),
            history_bytes=sum(one.segment_bytes for one in numbers),
            **counts,
        )
    finally:
        tables.close()
        log.close()
