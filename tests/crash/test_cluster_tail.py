"""The tail of message shards in PostgreSQL under takeovers, kills, standbys that are away, and restarts."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cluster_shards import append, close, owned_log, owner_of, row_at
from tests.fault_proxy import FaultProxy
from tests.postgres_server import PostgresServer, ReplicatedServers, new_schema, shared_server

from everlog.base import Fenced, StorageError, Unavailable
from everlog.cluster import ClusterSettings, ShardHistory, cluster_shard
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES, Outcome, ShardRows
from everlog.cluster.postgres_tail import PostgresTail
from everlog.cluster.schema import make_message_tables, read_store, tail_name
from everlog.commitlog import RealDisk
from everlog.tiering import MemoryBucket


def fresh(**options: Any) -> ClusterDatabase:
    """A database with the tables of two shards."""
    database = ClusterDatabase(shared_server().url, new_schema(), **options)
    make_message_tables(database.url, 2, database.schema)
    return database


def rows_of(url: str, schema: str) -> list[tuple[int, int]]:
    """(end, epoch) of all rows of shard 0, in order."""
    tables = " union all ".join(f"select base, count, epoch from {schema}.{tail_name(0, n)}" for n in range(TABLES))
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(f"select base + count, epoch from ({tables}) as rows order by base").fetchall()
    return [(end, epoch) for end, epoch in found]


def test_the_tables_say_which_store_it_is_for_ever() -> None:
    database = fresh()
    before = read_store(database)
    make_message_tables(database.url, 2, database.schema)
    assert read_store(database) == before
    assert before.shards == 2


def fight(takeovers: int) -> None:
    """Owners write as fast as they can while others replace them; nobody commits what its successor has not seen."""
    database = fresh()
    ends: dict[int, int] = {}
    threads = []
    for epoch in range(1, takeovers + 2):
        target = owner_of(database, epoch)
        ends[epoch] = target.end
        if epoch > takeovers:
            close(target)
            break
        has_written = threading.Event()
        threads.append(threading.Thread(target=write, args=(PostgresTail(database), target, has_written)))
        threads[-1].start()
        assert has_written.wait(20)
    for thread in threads:
        thread.join()
    rows = rows_of(database.url, database.schema)
    assert len(rows) >= takeovers
    for end, epoch in rows:
        assert not any(epoch < later and end > found for later, found in ends.items())


def part_of(epoch: int, *bases: int) -> list[ShardRows]:
    """Rows of shard 0 in its first table."""
    return [ShardRows(0, epoch, 0, [row_at(base, epoch) for base in bases])]


def insert(tail: PostgresTail, epoch: int, *bases: int) -> None:
    """Commit rows of shard 0; raise `Fenced` if it is another's."""
    outcome = Outcome.BUSY
    while outcome is Outcome.BUSY:
        (outcome,) = tail.insert(part_of(epoch, *bases))
    if outcome is Outcome.FENCED:
        raise Fenced("replaced")


def write(tail: PostgresTail, target: Any, has_written: threading.Event) -> None:
    end = target.end
    close(target)
    try:
        for base in range(end, end + 2_000):
            insert(tail, target.epoch, base)
            has_written.set()
    except Unavailable:
        has_written.set()
    finally:
        tail.close()


def test_a_new_owner_has_read_all_that_the_one_before_ever_commits() -> None:
    fight(20)


@pytest.mark.soak
def test_a_thousand_owners() -> None:
    fight(1_000)


class Held(PostgresTail):
    """Waits between an insert and its commit until it may go on."""

    def __init__(self, database: ClusterDatabase) -> None:
        super().__init__(database)
        self.has_written, self.go_on = threading.Event(), threading.Event()

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        def act(cursor: Any) -> None:
            one = self._statement(parts[0], parts[0].rows[0], -1)
            found = cursor.connection.pgconn.exec_params(one.query, one.values, param_formats=one.formats)
            assert found.get_value(0, 1) == b"1"
            self.has_written.set()
            assert self.go_on.wait(20)

        self._writing.transact(act)
        return [Outcome.COMMITTED]


class NoLock(Held):
    """Looks at the epoch without a lock (M21)."""

    insert_statement = PostgresTail.insert_statement.replace("for share skip locked", "")


class KeyShare(Held):
    """Takes a lock that a change of the epoch does not wait for (M21)."""

    insert_statement = PostgresTail.insert_statement.replace("for share", "for key share")
    lock_statement = PostgresTail.lock_statement.replace("for update", "for no key update")


def is_held_up(url: str) -> bool:
    """Whether a transaction waits for another one's lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        return connection.execute(query).fetchone() != (0,)


@pytest.mark.parametrize(("kind", "late"), [(Held, 0), (NoLock, 1), (KeyShare, 1)])
def test_a_takeover_waits_for_the_commit_under_way(kind: type[Held], late: int) -> None:
    database = fresh()
    with closing(kind(database)) as first, closing(kind(database)) as second:
        first.take_over(0, 1, 11)
        writing = Attempt(lambda: insert(first, 1, 0))
        assert first.has_written.wait(20)
        takeover = Attempt(lambda: second.take_over(0, 2, 22))
        while takeover.is_alive() and not is_held_up(database.url):
            pass
        first.go_on.set()
        writing.join()
        takeover.join()
        assert writing.result is None
        assert takeover.result.end == 1 - late


class NoEpoch(PostgresTail):
    """Inserts at any epoch (M21)."""

    insert_statement = PostgresTail.insert_statement.replace("where epoch = $4", "where $4 = $4")


@pytest.mark.parametrize("kind", [PostgresTail, NoEpoch])
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_written_at_an_epoch_that_is_over(kind: type[PostgresTail], count: int) -> None:
    database = fresh()
    with closing(kind(database)) as first, closing(kind(database)) as second:
        first.take_over(0, 1, 11)
        second.take_over(0, 2, 22)
        writing = Attempt(lambda: insert(first, 1, *range(count)))
        writing.join()
        assert isinstance(writing.result, Fenced) == (kind is PostgresTail)
        assert len(rows_of(database.url, database.schema)) == (0 if kind is PostgresTail else count)


class Attempt(threading.Thread):
    """A call in a thread of its own, and how it ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.result: Any = "not ended"
        self.start()

    def again(self) -> "Attempt":
        """Make the same call anew."""
        return Attempt(self._call)

    def run(self) -> None:
        try:
            self.result = self._call()
        except (Unavailable, StorageError) as error:
            self.result = error


def until_waiting(pair: ReplicatedServers, attempt: Attempt) -> Attempt:
    """Return an attempt that waits for the standby; one that ended before, on a busy machine, is made again."""
    while not pair.is_waiting():
        if not attempt.is_alive():
            assert isinstance(attempt.result, Unavailable)
            attempt = attempt.again()
    return attempt


@pytest.fixture
def pair() -> Iterator[ReplicatedServers]:
    made = ReplicatedServers()
    make_message_tables(made.primary.url, 1)
    yield made
    made.stop()


class LookOnly(PostgresTail):
    """Settles doubt by a look, which waits for no standby (M1)."""

    def _settle(self, cursor: Any, parts: Sequence[ShardRows]) -> tuple[list[Outcome], str]:
        row = parts[0].rows[0]
        cursor.execute(f"select nonce from {tail_name(0, parts[0].table)} where base = {row.base}")
        is_there = cursor.fetchone() == (row.nonce,)
        return ([Outcome.COMMITTED], "") if is_there else super()._settle(cursor, parts)


@pytest.mark.parametrize("kind", [PostgresTail, LookOnly])
def test_doubt_is_settled_by_a_write_that_waits_for_the_standby(
    pair: ReplicatedServers, kind: type[PostgresTail]
) -> None:
    with closing(kind(ClusterDatabase(pair.primary.url))) as tail:
        tail.take_over(0, 1, 11)
        insert(tail, 1, 0)
        pair.standby.kill()
        parts = part_of(1, 1)
        first = Attempt(lambda: tail.insert(parts))
        pair.until_waiting()
        pair.primary.kill()
        first.join()
        assert isinstance(first.result, Unavailable)
        pair.primary.start()
        assert len(rows_of(pair.primary.url, "everlog")) == 2  # it is there, and on no standby
        again = Attempt(lambda: tail.settle(parts))
        if kind is LookOnly:
            again.join()
        else:
            again = until_waiting(pair, again)
            tail.interrupt()  # PostgreSQL gives up the wait, with a mere warning
            again.join()
            assert isinstance(again.result, Unavailable)
            again = until_waiting(pair, Attempt(lambda: tail.settle(parts)))
            pair.standby.start()
            again.join()
            while isinstance(again.result, Unavailable):
                again = Attempt(lambda: tail.settle(parts))
                again.join()
        assert again.result == [Outcome.COMMITTED]
    pair.primary.kill()
    if kind is LookOnly:
        pair.standby.start()
    pair.standby.promote()
    assert len(rows_of(pair.standby.url, "everlog")) == (1 if kind is LookOnly else 2)


class LooksOnly(ShardHistory):
    """Believes what it sees (M1)."""

    def make_certain(self) -> None:
        pass


@pytest.mark.parametrize("kind", [ShardHistory, LooksOnly])
def test_a_follower_takes_in_only_what_a_failover_does_not_lose(
    pair: ReplicatedServers, kind: type[ShardHistory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_shard, "ShardHistory", kind)
    database, settings = ClusterDatabase(pair.primary.url), ClusterSettings()
    follower = cluster_shard.ClusterShard.open(
        0, str(tmp_path / "copy"), 5, database, MemoryBucket(), RealDisk(), settings
    )
    with closing(follower):
        target = owner_of(database, 1)
        log = owned_log(target)
        append(log, 3)
        log.wait_committed(3, 20)
        assert follower.catch_up() == 3
        pair.standby.kill()
        append(log, 4)
        log.commit()
        pair.until_waiting()
        pair.primary.kill()
        target.stop()
        pair.primary.start()
        with suppress(Unavailable):  # its connection is lost
            follower.catch_up()
        following = Attempt(follower.catch_up)
        if kind is ShardHistory:
            following = until_waiting(pair, following)
            assert follower.log.committed == 3
        else:
            following.join()
            assert follower.log.committed == 7  # its clients get what is lost in a moment
        pair.primary.kill()
        following.join()
        log.close()
        close(target)
    pair.standby.start()
    pair.standby.promote()
    assert rows_of(pair.standby.url, "everlog")[-1][0] == 3


def test_a_standby_is_not_used_nor_an_old_primary_that_lives_on(pair: ReplicatedServers) -> None:
    old = ClusterDatabase(pair.primary.url)
    read_store(old)
    with pytest.raises(Unavailable, match="is a standby"):
        read_store(ClusterDatabase(pair.standby.url))
    pair.standby.promote()
    new = ClusterDatabase(pair.standby.url)
    read_store(new)
    assert new.known is not None
    assert old.known is not None
    assert new.known[0] == old.known[0]
    assert new.known[1] > old.known[1]
    old.learn(*new.known)
    with pytest.raises(Unavailable, match="timeline"):
        read_store(old)


def test_the_log_waits_for_a_database_that_restarts_and_goes_on_by_itself() -> None:
    server = PostgresServer("fsync=off")
    try:
        make_message_tables(server.url, 1)
        target = owner_of(ClusterDatabase(server.url), 1)
        log = owned_log(target)
        append(log, 10)
        log.wait_committed(10, 20)
        server.kill()
        told: list[StorageError | None] = []
        is_over = threading.Event()

        def trouble(_: Any, error: StorageError | None) -> None:
            told.append(error)
            if error is None:
                is_over.set()

        log.on_trouble = trouble
        append(log, 10)
        log.commit()
        while not told:
            pass
        assert log.committed == 10
        assert isinstance(log.trouble, StorageError)
        append(log, 5)  # what comes meanwhile waits
        server.start()
        assert is_over.wait(20)
        log.wait_committed(25, 20)
        assert log.failure is None
        assert log.trouble is None
        assert rows_of(server.url, "everlog")[-1] == (25, 1)
        target.stop()
        log.close()
        close(target)
    finally:
        server.stop()


def test_a_commit_that_is_never_answered_is_given_up_when_the_shard_is_let_go_of() -> None:
    database = fresh()
    port = shared_server().port
    with FaultProxy(port) as proxy:
        through = ClusterDatabase(database.url.replace(f":{port}/", f":{proxy.port}/"), database.schema)
        target = owner_of(through, 1)
        log = owned_log(target)
        proxy.hold_at(b"held back", both=True)
        append(log, 1, b"held back")
        log.commit()
        assert proxy.is_held.wait(20)
        target.stop()  # or this process would never join again
        with pytest.raises(Unavailable):
            log.wait_committed(1, 20)
        log.close()
        close(target)


def test_nothing_is_acknowledged_below_the_standbys_that_are_demanded() -> None:
    database = fresh(min_standbys=1)
    with closing(PostgresTail(database)) as tail, pytest.raises(Unavailable, match="min_standbys is 1"):
        tail.take_over(0, 1, 11)
    enough = ClusterDatabase(database.url, database.schema)
    with closing(PostgresTail(enough)) as tail:
        tail.take_over(0, 2, 22)
        enough.min_standbys = 1
        with pytest.raises(Unavailable, match="waits for 0 standbys"):
            tail.insert(part_of(2, 0))


def test_a_fenced_owner_drops_what_it_did_not_commit() -> None:
    database = fresh()
    first = owner_of(database, 1)
    log = owned_log(first)
    append(log, 3)
    log.wait_committed(3, 20)
    lost: list[object] = []
    log.on_lost = lambda _, error: lost.append(error)
    second = owner_of(database, 2)
    assert second.end == 3
    assert second.origins.last(1) == 3
    append(log, 4)
    with pytest.raises(Fenced):
        log.wait_committed(7, 20)
    assert isinstance(lost[0], Fenced)
    assert (log.committed, log.end) == (3, 3)
    with pytest.raises(Fenced):
        append(log, 1)
    for target in (first, second):
        target.stop()
        close(target)
    log.close()


def test_a_closed_origin_leaves_the_map_and_its_number_stays() -> None:
    database = fresh()
    first = owner_of(database, 1)
    log = owned_log(first)
    append(log, 3)
    log.wait_committed(3, 20)
    first.close_origin(1, first.origins.close(1))
    second = owner_of(database, 2)
    assert second.origins.last(1) == 3
    with pytest.raises(Unavailable, match="closed"):
        second.origins.append(1, 4, 1, lambda skipped: 4)
    with pytest.raises(Fenced):
        first.close_origin(5, 0)
    for target in (first, second):
        target.stop()
        close(target)
    log.close()
