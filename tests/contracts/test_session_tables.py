"""What every implementation of the session tables does, whatever it keeps them in."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.cluster_sessions import SHARDS, SessionCluster
from tests.memory_tables import MemoryTables

from everlog.cluster import message_shard
from everlog.mqtt import Properties, Will
from everlog.sessions import (
    ALIVE,
    GROUP_ORDERED,
    GROUP_SERVED,
    Changes,
    Cursor,
    GroupRow,
    JournaledTables,
    RetainedNames,
    RetainedRow,
    SessionRow,
    SessionTables,
    SqliteTables,
    StoredSession,
    SubscriptionRow,
    WillRow,
)
from everlog.sessions.row_format import pack_offsets, pack_will

ANNE = SessionRow(
    "anne", "user", 5, 3600, 17, pack_will(Will("gone", b"anne", 1, properties=Properties(will_delay_interval=9)))
)
BERT = SessionRow("bert", None, 4, 60, ALIVE)
CURSOR = Cursor(pack_offsets((7, -1)), 42, b"in flight", b"received", b"unsure", pack_offsets((3, 0)), b"feeds")


class Kept:
    """Tables that can be let go of and found again, as by another process."""

    def __init__(self, make: Callable[[], SessionTables]) -> None:
        self._make = make
        self.tables = make()

    def reopened(self) -> SessionTables:
        self.tables.close()
        self.tables = self._make()
        return self.tables

    def sessions(self) -> dict[str, StoredSession]:
        return {stored.row.client_id: stored for stored in self.reopened().load().sessions}

    def retained(self) -> dict[str, bytes]:
        return {row.topic: row.message for row in self.reopened().load().retained}


@contextmanager
def in_memory(tmp_path: Path) -> Iterator[Callable[[], SessionTables]]:
    memory = MemoryTables()
    yield lambda: memory


@contextmanager
def in_sqlite(tmp_path: Path) -> Iterator[Callable[[], SessionTables]]:
    yield lambda: SqliteTables(tmp_path / "sessions.db")


@contextmanager
def in_sqlite_with_a_journal(tmp_path: Path) -> Iterator[Callable[[], SessionTables]]:
    yield lambda: JournaledTables(tmp_path / "sessions.db")


@contextmanager
def in_postgres(tmp_path: Path) -> Iterator[Callable[[], SessionTables]]:
    with closing(SessionCluster()) as cluster:
        broker = cluster.join("a")
        cluster.ownership.claim([message_shard(shard) for shard in range(SHARDS)], broker.incarnation)
        yield lambda: broker.tables


IMPLEMENTATIONS = {
    "memory": in_memory,
    "sqlite": in_sqlite,
    "journaled": in_sqlite_with_a_journal,
    "postgres": in_postgres,
}


@pytest.fixture(params=IMPLEMENTATIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    with IMPLEMENTATIONS[request.param](tmp_path) as make:
        found = Kept(make)
        yield found
        found.tables.close()


def test_new_tables_are_empty(kept: Kept) -> None:
    snapshot = kept.tables.load()
    assert (snapshot.routed, snapshot.alive_us) == ((), 0)
    assert list(snapshot.sessions) == []
    assert list(snapshot.retained) == []
    assert list(snapshot.groups) == []


def test_a_session_comes_back_as_it_was_written(kept: Kept) -> None:
    filters = (SubscriptionRow("a/#", 0x2E, 5, pack_offsets((1, 2))), SubscriptionRow("b", 1))
    kept.tables.apply(
        Changes(rows=(ANNE,), subscribed=tuple(("anne", one) for one in filters), cursors=(("anne", CURSOR),))
    )
    assert kept.sessions() == {"anne": StoredSession(ANNE, filters, CURSOR)}


def test_a_session_without_more_is_whole(kept: Kept) -> None:
    kept.tables.apply(Changes(rows=(BERT,)), durable=True)
    assert kept.sessions() == {"bert": StoredSession(BERT)}


def test_the_last_state_counts(kept: Kept) -> None:
    kept.tables.apply(
        Changes(rows=(BERT,), subscribed=(("bert", SubscriptionRow("a", 0)),), cursors=(("bert", CURSOR),))
    )
    later = SessionRow("bert", "b", 5, 0, 99)
    moved = Cursor(pack_offsets((8, 8)), 43)
    kept.tables.apply(
        Changes(rows=(later,), subscribed=(("bert", SubscriptionRow("a", 2)),), cursors=(("bert", moved),))
    )
    assert kept.sessions() == {"bert": StoredSession(later, (SubscriptionRow("a", 2),), moved)}


def test_a_cursor_moves_without_its_session_being_written(kept: Kept) -> None:
    kept.tables.apply(Changes(rows=(ANNE, BERT), cursors=(("anne", CURSOR), ("bert", CURSOR))))
    kept.tables.apply(Changes(cursors=(("bert", Cursor(next_id=2)),)))
    found = kept.sessions()
    assert found["anne"].cursor == CURSOR
    assert found["bert"].cursor == Cursor(next_id=2)


def test_a_filter_that_is_given_up_is_gone(kept: Kept) -> None:
    both = (("bert", SubscriptionRow("a", 0)), ("bert", SubscriptionRow("b", 0)))
    kept.tables.apply(Changes(rows=(BERT,), subscribed=both))
    kept.tables.apply(Changes(unsubscribed=(("bert", "a"), ("bert", "never there"))))
    assert kept.sessions()["bert"].subscriptions == (SubscriptionRow("b", 0),)


def test_an_ended_session_leaves_nothing(kept: Kept) -> None:
    kept.tables.apply(
        Changes(rows=(BERT,), subscribed=(("bert", SubscriptionRow("a", 0)),), cursors=(("bert", CURSOR),))
    )
    kept.tables.apply(Changes(ended=("bert", "nobody")))
    assert kept.sessions() == {}
    kept.tables.apply(Changes(rows=(BERT,)))
    assert kept.sessions() == {"bert": StoredSession(BERT)}


def test_a_session_may_end_and_begin_anew_in_one_batch(kept: Kept) -> None:
    kept.tables.apply(
        Changes(rows=(BERT,), subscribed=(("bert", SubscriptionRow("old", 0)),), cursors=(("bert", CURSOR),))
    )
    kept.tables.apply(Changes(ended=("bert",), rows=(BERT,), subscribed=(("bert", SubscriptionRow("new", 0)),)))
    assert kept.sessions() == {"bert": StoredSession(BERT, (SubscriptionRow("new", 0),))}


def test_sessions_come_by_client_id_whatever_its_letters(kept: Kept) -> None:
    names = ["", "Z", "a", "a/b", "ab", "é", "名", "\U0001f600"]
    rows = tuple(SessionRow(name) for name in reversed(names))
    kept.tables.apply(Changes(rows=rows, subscribed=tuple((name, SubscriptionRow(name, 1)) for name in names)))
    found = list(kept.reopened().load().sessions)
    assert [stored.row.client_id for stored in found] == names
    assert [stored.subscriptions for stored in found] == [(SubscriptionRow(name, 1),) for name in names]


def test_many_sessions_keep_their_own_filters(kept: Kept) -> None:
    rows = tuple(SessionRow(f"c{number:05}") for number in range(2_500))
    filters = tuple((row.client_id, SubscriptionRow(f"{row.client_id}/{k}", 1)) for row in rows for k in range(3))
    kept.tables.apply(Changes(rows=rows, subscribed=filters))
    found = kept.sessions()
    assert len(found) == 2_500
    for client_id, stored in found.items():
        assert [one.filter for one in stored.subscriptions] == [f"{client_id}/{k}" for k in range(3)]


def test_a_retained_message_is_replaced_and_removed(kept: Kept) -> None:
    kept.tables.apply(
        Changes(retained=(RetainedRow("a", b"1"), RetainedRow("b", b"2"), RetainedRow("c", b"3"))), durable=True
    )
    kept.tables.apply(
        Changes(retained=(RetainedRow("a", b"new"), RetainedRow("b", None), RetainedRow("nowhere", None)))
    )
    assert kept.retained() == {"a": b"new", "c": b"3"}


def test_a_topic_without_a_message_is_stored_while_it_holds_against_the_log(kept: Kept) -> None:
    rows = (RetainedRow("a", None, 7), RetainedRow("b", b"2", 9), RetainedRow("c", b"3"))
    kept.tables.apply(Changes(retained=rows))
    assert list(kept.reopened().load().retained) == list(rows)
    kept.tables.apply(Changes(retained=(RetainedRow("a", None), RetainedRow("b", b"2"))))
    assert list(kept.reopened().load().retained) == [RetainedRow("b", b"2"), RetainedRow("c", b"3")]


def test_the_numbers_of_topics_are_kept_until_their_messages_are(kept: Kept) -> None:
    named = (RetainedNames(3, 5, b"\0x"), RetainedNames(5, 90, b""))
    kept.tables.apply(Changes(retained_names=named, retained_at=(4, 1 << 50)))
    kept.tables.apply(Changes(ended_names=(3, 4)))
    snapshot = kept.reopened().load()
    assert (list(snapshot.retained_names), snapshot.retained_at) == ([named[1]], (4, 1 << 50))


def test_how_far_the_broker_was_is_kept_until_it_is_said_again(kept: Kept) -> None:
    kept.tables.apply(Changes(routed=(5, 6), alive_us=1234))
    kept.tables.apply(Changes(rows=(BERT,)))
    snapshot = kept.reopened().load()
    assert (snapshot.routed, snapshot.alive_us) == ((5, 6), 1234)


GROUP = GroupRow("g", "t/#", GROUP_ORDERED | GROUP_SERVED, pack_offsets((7, -1)), b"owed", pack_offsets((3, 0)))


def test_a_group_comes_back_as_it_was_written(kept: Kept) -> None:
    kept.tables.apply(Changes(groups=(GROUP, GroupRow("g", "other"))), durable=True)
    assert list(kept.reopened().load().groups) == [GroupRow("g", "other"), GROUP]


def test_a_groups_last_state_counts(kept: Kept) -> None:
    kept.tables.apply(Changes(groups=(GROUP,)))
    moved = GroupRow("g", "t/#", 0, pack_offsets((9, 9)))
    kept.tables.apply(Changes(groups=(moved,)))
    assert list(kept.reopened().load().groups) == [moved]


def test_a_group_that_ends_leaves_nothing(kept: Kept) -> None:
    kept.tables.apply(Changes(groups=(GROUP, GroupRow("h", "t/#"))))
    kept.tables.apply(Changes(ended_groups=(("g", "t/#"), ("g", "nobody"))))
    assert list(kept.reopened().load().groups) == [GroupRow("h", "t/#")]


def test_a_group_may_end_and_begin_anew_in_one_batch(kept: Kept) -> None:
    kept.tables.apply(Changes(groups=(GROUP,)))
    kept.tables.apply(Changes(ended_groups=(("g", "t/#"),), groups=(GroupRow("g", "t/#"),)))
    assert list(kept.reopened().load().groups) == [GroupRow("g", "t/#")]


def test_the_wills_of_clean_sessions_come_back_until_they_end(kept: Kept) -> None:
    anne, bert = WillRow("anne", "user", b"1"), WillRow("bert", None, b"2")
    kept.tables.apply(Changes(wills=(bert, anne)), durable=True)
    assert list(kept.reopened().load().wills) == [anne, bert]
    again = WillRow("bert", None, b"3")
    kept.tables.apply(Changes(ended_wills=("anne", "bert", "nobody"), wills=(again,)))
    assert list(kept.reopened().load().wills) == [again]
    assert not kept.sessions()


def test_closing_twice_is_once(kept: Kept) -> None:
    kept.tables.close()
    kept.tables.close()
