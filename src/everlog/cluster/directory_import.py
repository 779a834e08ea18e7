"""The history and the sessions of a single broker's data directory, brought into a new cluster.

A topic's shard follows from the number of shards, so the cluster has as many as the directory: all positions stay, and
with them what sessions have read, what is in flight and what clients noted. Batches are carried over byte for byte, in
segments that go straight to the bucket. While it lasts the store is marked, and no broker joins; what was broken off is
begun anew. At the end all is counted in the cluster, and only then the mark is taken off. The directory stays as it is.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c

from everlog.base import EverlogError, StorageError, UsageError
from everlog.cluster.cluster_place import init_cluster
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.history import end_query
from everlog.cluster.ports import TABLES
from everlog.cluster.restored import refuse_living
from everlog.cluster.rows import ListedSegment, State
from everlog.cluster.schema import Store, tail_name
from everlog.cluster.segment_list import segment_folder
from everlog.cluster.session_schema import message_shard
from everlog.cluster.session_tables import PostgresTables
from everlog.commitlog import HEADER_BYTES, Origin, SegmentHeader, SegmentView, read_segment, read_whole, write_segment
from everlog.ownership import NOBODY, PostgresOwnership
from everlog.sessions import Changes, saved_tables, settle, settle_group, without_retained
from everlog.store import LogStore, read_store_file
from everlog.tiering import Bucket, Database

if TYPE_CHECKING:
    import psycopg

    from everlog.commitlog import Disk

    Cursor = psycopg.Cursor[tuple[Any, ...]]

OWN = "$SYS/"  # topics that each broker has for itself
SOME = 500  # rows in one transaction
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True, slots=True)
class Carried:
    """How much was carried over, as it was counted where it is now."""

    shards: int
    messages: int
    history_bytes: int
    sessions: int
    retained: int
    groups: int
    owed_retained: int = 0  # sessions that were owed retained messages, and get them when they subscribe again


def import_directory(
    directory: str,
    database: ClusterDatabase,
    bucket: Bucket,
    disk: "Disk",
    tell: Progress = lambda what, done, total: None,
    watch: Callable[[Callable[..., Any]], None] = refuse_living,
) -> Carried:
    """Fill a cluster, which is made if there is none, from a directory whose broker is stopped."""
    about = read_store_file(disk, directory)
    if about is None:
        raise UsageError(f"{directory} holds no messages of a broker", hint="give the directory that log.data names")
    with _opened(directory) as log:
        store = init_cluster(database, bucket, about.shards)
        connection = database.connect()
        ownership = PostgresOwnership(database.url, database.schema, database.connect())
        try:
            watch(connection.call)
            connection.transact(partial(_begin, shards=store.shards))
            me = ownership.join("import", "")
            epochs = ownership.claim([message_shard(shard) for shard in range(store.shards)], me)
            carrying = _Carrying(log, store, connection, bucket, epochs, tell)
            carrying.history()
            tables = PostgresTables(database.connect(), me, store.shards)
            try:
                carried = carrying.sessions(os.path.join(directory, "sessions.db"), tables)
            finally:
                tables.close()
            connection.transact(partial(_check, expected=carrying.expected(carried)))
            ownership.leave(me)
            connection.transact(_finish)
            return carried
        finally:
            ownership.close()
            connection.close()


class _opened:
    """The directory's log, which no broker may have open."""

    def __init__(self, directory: str) -> None:
        self._log = LogStore.open(directory, background=False)

    def __enter__(self) -> LogStore:
        damaged = sum(shard.damaged for shard in self._log.statistics())
        if damaged:
            self._log.close()
            raise StorageError(
                f"the directory has {damaged} damaged places: its history can't be carried over whole",
                hint="run: everlog verify DATA_DIR, and restore what is damaged from a backup",
            )
        return self._log

    def __exit__(self, *_: object) -> None:
        self._log.close()


class _Carrying:
    """One import under way."""

    def __init__(
        self,
        log: LogStore,
        store: Store,
        connection: Database,
        bucket: Bucket,
        epochs: dict[str, int],
        tell: Progress,
    ) -> None:
        self._log = log
        self._store = store
        self._connection = connection
        self._bucket = bucket
        self._epochs = epochs
        self._tell = tell
        self._bytes = 0
        self.starts = [shard.start for shard in log.shards]
        self.ends = [shard.committed for shard in log.shards]

    def history(self) -> None:
        """Store all segments in the bucket, and list them."""
        total = sum(view.size_bytes for shard in self._log.shards for view in shard.segments())
        for shard, log in enumerate(self._log.shards):
            epoch = self._epochs[message_shard(shard)]
            salt = self._connection.transact(partial(self._take, shard=shard, epoch=epoch))
            at = self.starts[shard]
            for view in log.segments():
                if view.end_offset > view.base_offset:
                    at = self._store_segment(shard, epoch, salt, view, at)
                    self._tell("history", self._bytes, max(total, self._bytes))
            if at != self.ends[shard]:
                raise StorageError(f"shard {shard} ends at {self.ends[shard]}, and its segments at {at}")

    def _take(self, cursor: "Cursor", shard: int, epoch: int) -> int:
        """Own a shard, and let it begin where the directory's does; return its salt."""
        start, end = self.starts[shard], self.ends[shard]
        cursor.execute(
            "update message_shards set epoch = %s, probe = %s, start = %s where shard = %s and epoch < %s "
            "returning salt",
            (epoch, secrets.randbits(56), start, shard, epoch),
        )
        found = cursor.fetchone()
        if found is None:
            raise StorageError(f"shard {shard} has another owner", hint="stop all brokers and begin again")
        if start == end and start > 0:  # all was deleted: there is no segment that tells where offsets go on
            cursor.execute("insert into message_gaps (shard, start, stop) values (%s, 0, %s)", (shard, start))
        return int(found[0])

    def _store_segment(self, shard: int, epoch: int, salt: int, view: SegmentView, at: int) -> int:
        label = f"shard {shard}, the segment at offset {view.base_offset}"
        _, batches = read_segment(view.read_at(0, view.size_bytes), label)
        if view.base_offset != at or not batches or batches[-1][0] + batches[-1][1] != view.end_offset:
            raise StorageError(f"{label}: messages are missing before or in it", hint="run: everlog verify DATA_DIR")
        try:
            read_whole([body for _, _, body in batches], at)  # each is checked, and that they follow each other
        except EverlogError as error:
            raise StorageError(f"{label} is damaged: {error.message}", hint="run: everlog verify DATA_DIR") from error
        header = SegmentHeader(at, 0, salt, previous_end=at, origin=Origin(self._store.identity, shard, epoch))
        data = write_segment(header, batches)
        name = f"{segment_folder(shard)}/{at:020d}-{epoch}-{secrets.token_hex(8)}.log"
        crc = crc32c.crc32c(data[HEADER_BYTES:])
        listed = ListedSegment(at, view.end_offset, epoch, len(data), crc, name)
        self._bucket.put(name, data)
        self._connection.transact(lambda cursor: _list(cursor, shard, listed))
        self._bytes += view.size_bytes
        return view.end_offset

    def sessions(self, path: str, tables: PostgresTables) -> Carried:
        """Write sessions, groups, wills and retained messages; return how many, and how much history there is."""
        counts = {"sessions": 0, "retained": 0, "groups": 0, "owed_retained": 0}
        if os.path.exists(path):
            source = saved_tables(path)
            try:
                snapshot = source.load()
                tables.apply(Changes(routed=tuple(self.ends), alive_us=snapshot.alive_us))
                for changes in self._changes(snapshot, counts):
                    tables.apply(changes)
                    self._tell("sessions and retained messages", counts["sessions"] + counts["retained"], 0)
            finally:
                source.close()
        messages = sum(self.ends) - sum(self.starts)
        return Carried(shards=self._store.shards, messages=messages, history_bytes=self._bytes, **counts)

    def _changes(self, snapshot: Any, counts: dict[str, int]) -> Iterator[Changes]:
        for some in _by(snapshot.sessions):
            found = [settle(one, snapshot.routed, snapshot.alive_us, self.ends) for one in some]
            plain = [without_retained(one) for one in found]
            counts["sessions"] += len(found)
            counts["owed_retained"] += sum(one is not other for one, other in zip(found, plain, strict=True))
            yield Changes(
                rows=tuple(one.row for one in plain),
                subscribed=tuple((one.row.client_id, row) for one in plain for row in one.subscriptions),
                cursors=tuple((one.row.client_id, one.cursor) for one in plain),
            )
        for some in _by(snapshot.groups):
            counts["groups"] += len(some)
            yield Changes(groups=tuple(settle_group(one, snapshot.routed, self.ends)[0] for one in some))
        for some in _by(snapshot.wills):
            yield Changes(wills=tuple(some))
        for some in _by(row for row in snapshot.retained if not row.topic.startswith(OWN)):
            counts["retained"] += sum(bool(row.message is not None or row.after) for row in some)
            yield Changes(retained=tuple(some))
        at = tuple(snapshot.retained_at) + tuple(self.ends[len(snapshot.retained_at) :])
        yield Changes(retained_at=tuple(map(min, at, self.ends)))

    def expected(self, carried: Carried) -> "_Counts":
        """Return what the cluster must have by now."""
        spans = {shard: (self.starts[shard], self.ends[shard]) for shard in range(self._store.shards)}
        return _Counts(spans, carried.sessions, carried.retained, carried.groups)


@dataclass(frozen=True, slots=True)
class _Counts:
    spans: dict[int, tuple[int, int]]
    sessions: int
    retained: int
    groups: int


def _by(rows: Any) -> Iterator[list[Any]]:
    """Yield rows some at a time."""
    some: list[Any] = []
    for row in rows:
        some.append(row)
        if len(some) >= SOME:
            yield some
            some = []
    if some:
        yield some


def _begin(cursor: "Cursor", shards: int) -> None:
    """Mark the store, or raise UsageError if it holds something; what an import left that was broken off goes."""
    cursor.execute("select importing from message_store for update")
    (is_begun,) = cursor.fetchone() or (False,)
    tables = [tail_name(shard, table) for shard in range(shards) for table in range(TABLES)]
    tables += ["message_segments", "message_gaps", "sessions", "session_groups", "session_wills", "retained_messages"]
    if is_begun:
        others = ["session_filters", "session_cursors", "retained_shards", "retained_names", "message_origins"]
        cursor.execute(f"truncate {', '.join((*tables, *others))}".encode())
        cursor.execute("update message_shards set start = 0")
    for table in tables:
        cursor.execute(f"select 1 from {table} limit 1".encode())
        if cursor.fetchone() is not None:
            raise UsageError(
                "the cluster holds messages or sessions already: a directory is imported into a new one only",
                hint="choose another --schema and bucket, or bridge the two brokers",
            )
    cursor.execute("update incarnations set is_alive = false where is_alive")  # none of them beats
    cursor.execute("update claims set owner = %s", (NOBODY,))
    cursor.execute("update message_store set importing = true")


def _list(cursor: "Cursor", shard: int, one: ListedSegment) -> None:
    cursor.execute(
        "insert into message_segments (name, shard, base, epoch, state, stop, size, crc, origins) "
        "values (%s, %s, %s, %s, %s, %s, %s, %s, '{}'::jsonb)",
        (one.name, shard, one.base, one.epoch, State.PRESENT, one.end, one.size, one.crc),
    )


def _check(cursor: "Cursor", expected: _Counts) -> None:
    """Raise StorageError if the cluster does not have what it should."""
    found: dict[int, tuple[int, int]] = {}
    for shard in expected.spans:
        cursor.execute("select start from message_shards where shard = %s", (shard,))
        (start,) = cursor.fetchone() or (-1,)
        cursor.execute(end_query(shard).encode())
        (end,) = cursor.fetchone() or (None,)
        found[shard] = (start, end or 0)
        cursor.execute("select coalesce(sum(stop - base), 0) from message_segments where shard = %s", (shard,))
        (count,) = cursor.fetchone() or (0,)
        if count != expected.spans[shard][1] - expected.spans[shard][0]:
            raise StorageError(
                f"shard {shard} has {count} messages in the bucket: {expected.spans[shard]} are expected"
            )
    counts = []
    for table in ("sessions where is_kept", "retained_messages", "session_groups"):
        cursor.execute(f"select count(*) from {table}".encode())
        counts.append((cursor.fetchone() or (0,))[0])
    if found != expected.spans or counts != [expected.sessions, expected.retained, expected.groups]:
        raise StorageError(
            f"the cluster has {counts} sessions, retained messages and groups and {found}, and {expected} are expected",
            hint="run the import again: it begins anew",
        )


def _finish(cursor: "Cursor") -> None:
    cursor.execute("update message_store set importing = false")
