"""The journal in PostgreSQL under takeovers, kills and standbys that are away."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.postgres_server import ReplicatedServers, new_schema, shared_server

from everlog.base import Fenced, Unavailable
from everlog.tiering import Database, make_journal_tables
from everlog.tiering.postgres_journal import PostgresWriter

TAKEOVERS = 30


class Held(PostgresWriter):
    """Waits between a write and its commit until it may go on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_written, self.go_on = threading.Event(), threading.Event()

    def _insert(self, cursor: Any, row: dict[str, Any]) -> None:
        super()._insert(cursor, row)
        self.has_written.set()
        assert self.go_on.wait(20)


class NoLock(Held):
    """Looks at the epoch without a lock."""

    insert = PostgresWriter.insert.replace("for share", "")


class KeyShare(Held):
    """Takes a lock that a change of the epoch does not wait for."""

    insert = PostgresWriter.insert.replace("for share", "for key share")
    lock = PostgresWriter.lock.replace("for update", "for no key update")


class NoEpoch(PostgresWriter):
    """Inserts at any epoch."""

    insert = PostgresWriter.insert.replace("where epoch = %(epoch)s", "")


def test_a_new_owner_has_read_all_that_the_one_before_ever_commits() -> None:
    url, schema = shared_server().url, new_schema()
    make_journal_tables(url, schema)
    ends: dict[int, int] = {}  # what each epoch found
    threads = []
    for epoch in range(1, TAKEOVERS + 2):
        writer = PostgresWriter(url, "shard", epoch, schema)
        writer.take_over()
        ends[epoch] = writer.end
        if epoch > TAKEOVERS:
            writer.close()
            break
        has_written = threading.Event()
        threads.append(threading.Thread(target=write, args=(writer, has_written)))
        threads[-1].start()
        assert has_written.wait(20)
    for thread in threads:
        thread.join()
    with psycopg.connect(url) as connection:
        rows = connection.execute(f"select base, count, epoch from {schema}.journal_rows order by base").fetchall()
    assert len(rows) >= TAKEOVERS
    for base, count, epoch in rows:
        assert not any(epoch < later and base + count > end for later, end in ends.items())


def write(writer: PostgresWriter, has_written: threading.Event) -> None:
    try:
        for number in range(2_000):
            writer.write([("stream", b"%d" % number)])
            has_written.set()
    except (Fenced, Unavailable):
        has_written.set()
    finally:
        writer.close()


def is_held_up(url: str) -> bool:
    """Return whether a transaction waits for another one's lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        return connection.execute(query).fetchone() != (0,)


@pytest.mark.parametrize(("kind", "late"), [(Held, 0), (NoLock, 1), (KeyShare, 1)])
def test_a_takeover_waits_for_the_commit_under_way(kind: type[Held], late: int) -> None:
    url, schema = shared_server().url, new_schema()
    make_journal_tables(url, schema)
    with closing(kind(url, "shard", 1, schema)) as first, closing(kind(url, "shard", 2, schema)) as second:
        first.take_over()
        writing = Attempt(first)
        assert first.has_written.wait(20)
        takeover = threading.Thread(target=second.take_over)
        takeover.start()
        while takeover.is_alive() and not is_held_up(url):
            pass
        first.go_on.set()
        writing.join()
        takeover.join()
        assert writing.result == 1
        assert second.end == 1 - late


@pytest.mark.parametrize("kind", [PostgresWriter, NoEpoch])
def test_nothing_is_written_at_an_epoch_that_is_over(kind: type[PostgresWriter]) -> None:
    url, schema = shared_server().url, new_schema()
    make_journal_tables(url, schema)
    with closing(kind(url, "shard", 1, schema)) as first, closing(kind(url, "shard", 2, schema)) as second:
        first.take_over()
        second.take_over()
        writing = Attempt(first)
        writing.join()
        assert isinstance(writing.result, Fenced) == (kind is PostgresWriter)


class LookOnly(PostgresWriter):
    """Settles doubt by a look, which waits for no standby (M1)."""

    def _settle(self, cursor: Any, row: dict[str, Any]) -> None:
        cursor.execute("select nonce from journal_rows where shard = %(shard)s and base = %(base)s", row)
        found = cursor.fetchone()
        if found is None:
            super()._settle(cursor, row)


class Pair(ReplicatedServers):
    """Has the tables of journals."""

    def __init__(self) -> None:
        super().__init__()
        make_journal_tables(self.primary.url)

    def effects(self, url: str) -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return (connection.execute("select count(*) from everlog.journal_rows").fetchone() or (0,))[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.stop()


class Attempt(threading.Thread):
    """A write in a thread of its own, and how it ended."""

    def __init__(self, writer: PostgresWriter) -> None:
        super().__init__()
        self.writer = writer
        self.result: int | Unavailable | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.writer.write([("stream", b"two")])
        except Unavailable as error:
            self.result = error


@pytest.mark.parametrize("kind", [PostgresWriter, LookOnly])
def test_doubt_is_settled_by_a_write_that_waits_for_the_standby(pair: Pair, kind: type[PostgresWriter]) -> None:
    with closing(kind(pair.primary.url, "shard", 1)) as writer:
        writer.take_over()
        assert writer.write([("stream", b"one")]) == 1
        pair.standby.kill()
        first = Attempt(writer)
        pair.until_waiting()
        pair.primary.kill()
        first.join()
        assert isinstance(first.result, Unavailable)
        pair.primary.start()
        assert pair.effects(pair.primary.url) == 2  # it is there, and on no standby
        again = Attempt(writer)
        if kind is LookOnly:
            again.join()
        else:
            pair.until_waiting()
            assert again.result is None
            writer.interrupt()  # PostgreSQL gives up the wait, with a mere warning
            again.join()
            assert isinstance(again.result, Unavailable)
            again = Attempt(writer)
            pair.until_waiting()
            pair.standby.start()
            again.join()
        assert again.result == 2
    pair.primary.kill()
    if kind is LookOnly:
        pair.standby.start()
    pair.standby.promote()
    assert pair.effects(pair.standby.url) == (1 if kind is LookOnly else 2)


def test_a_process_asleep_in_a_transaction_keeps_nobody_from_taking_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.postgres._SILENT_MS", 200)
    url, schema = shared_server().url, new_schema()
    make_journal_tables(url, schema)
    first = PostgresWriter(url, "shard", 1, schema)
    first.take_over()
    locked, awake = threading.Event(), threading.Event()

    def sleep(cursor: Any) -> None:
        cursor.execute("select epoch from journal_shards where shard = 'shard' for share")
        locked.set()
        awake.wait(20)
        cursor.execute("select 1")

    second = PostgresWriter(url, "shard", 2, schema)
    with closing(Database(url, schema)) as database, ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(database.transact, sleep)
        assert locked.wait(20)
        second.take_over()
        awake.set()
        with pytest.raises(Unavailable):
            asleep.result(20)
    first.close()
    second.close()
