"""Sessions that brokers share, while brokers fall dead, go on as if they lived, and lose their connections."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.cluster_sessions import SessionBroker, SessionCluster

from everlog.base import Unavailable
from everlog.cluster import Claimant, PostgresTables, outbox, take_off
from everlog.cluster.change_writer import put_cursors, write_changes
from everlog.cluster.incarnation_row import lock_own
from everlog.mqtt import Will
from everlog.ownership import Overruled
from everlog.sessions import (
    LIVE,
    Changes,
    Cursor,
    Refused,
    SessionRow,
    StoredSession,
    WillRow,
    pack_offsets,
    pack_will,
    unpack_offsets,
)

ENDS = (900, 900)
AT = Cursor(pack_offsets((LIVE, LIVE)))
WILL = pack_will(Will("gone", b"x", 1))


@pytest.fixture
def cluster() -> Iterator[SessionCluster]:
    opened = SessionCluster()
    yield opened
    opened.close()


def taken(broker: SessionBroker, client_id: str) -> StoredSession | None:
    return broker.claims.claim([Claimant(client_id)], ENDS).taken[client_id]


class RoutedApart(PostgresTables):
    """M7: `routed` in a transaction of its own."""

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        self._database.transact(lambda cursor: lock_own(cursor, self.incarnation, changes.routed, changes.alive_us))
        return self._database.transact(
            lambda cursor: write_changes(cursor, self.incarnation, self._shards, Changes(cursors=changes.cursors))
        )


class RefusalsIgnored(PostgresTables):
    """M7: does not tell what was refused."""

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        super().apply(changes, durable)
        return Refused()


class HoldersIgnored(PostgresTables):
    """M7: writes cursors whoever holds the sessions."""

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        refused = super().apply(changes, durable)
        self._database.transact(lambda cursor: put_cursors(cursor, dict(changes.cursors)))
        return refused


# Two brokers, the same ids


def test_two_brokers_never_hold_one_session(cluster: SessionCluster) -> None:
    names = ["clean1", "clean2", *(f"c{number}" for number in range(4))]
    serving: dict[str, str] = {}
    written: Counter[str] = Counter()
    failures: list[BaseException] = []

    def live(name: str, seed: int) -> None:
        random = Random(seed)
        broker = cluster.join(name)
        for _ in range(25):
            answer = broker.claims.claim(map(Claimant, random.sample(names, 4)), ENDS)
            for client_id in answer.taken:
                assert serving.setdefault(client_id, name) == name
            kept = {client_id: stored for client_id, stored in answer.taken.items() if "clean" not in client_id}
            ids = {client_id: stored.cursor.next_id if stored else 1 for client_id, stored in kept.items()}
            rows = tuple(SessionRow(client_id) for client_id in ids)
            cursors = tuple((client_id, Cursor(next_id=number + 1)) for client_id, number in ids.items())
            assert broker.tables.apply(Changes(rows=rows, cursors=cursors)) == Refused()
            written.update(ids.keys())
            for client_id in answer.taken:
                assert serving.pop(client_id) == name
            if random.random() < 0.3:
                dead, broker = broker, cluster.join(name)
                with pytest.raises(Overruled):
                    dead.tables.apply(Changes(rows=rows, cursors=cursors))
                with pytest.raises(Overruled):
                    dead.claims.claim([Claimant(names[0])], ENDS)
            else:
                assert broker.claims.release(list(answer.taken), Changes()) == Refused()

    def guarded(*args: Any) -> None:
        try:
            live(*args)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(name, seed)) for seed, name in enumerate("ab")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = cluster.rows("select client_id, next_id from sessions join session_cursors using (client)")
    assert {client_id: number - 1 for client_id, number in found} == written


# Zombies


def write_late(cluster: SessionCluster, tables: type[PostgresTables]) -> None:
    """Let a living broker write a session that it has let go of, and one that it holds, in one batch."""
    a, b = cluster.join("a", tables), cluster.join("b")
    rows = (SessionRow("gone"), SessionRow("here"))
    a.tables.apply(Changes(rows=rows, cursors=(("gone", AT), ("here", AT)), routed=(1, 1)))
    a.claims.release(["gone"], Changes())
    assert taken(b, "gone") is not None
    b.tables.apply(Changes(cursors=(("gone", Cursor(next_id=7)),)))
    late = Changes(
        rows=rows, cursors=(("gone", Cursor(next_id=2)), ("here", Cursor(next_id=3))), ended=("ended",), routed=(5, 5)
    )
    assert a.tables.apply(late) == Refused(("gone",))
    assert a.tables.apply(Changes(ended=("gone",))) == Refused(("gone",))
    assert a.tables.apply(Changes(cursors=(("nobody's", AT),))) == Refused(("nobody's",))
    assert a.claims.release(["gone", "here"], Changes()) == Refused(("gone",))
    found = {one.row.client_id: one.cursor.next_id for one in b.tables.load().sessions}
    assert found == {"gone": 7}
    stored = taken(b, "here")
    assert stored is not None
    assert stored.cursor.next_id == 3


def test_what_another_holds_is_refused_and_told_and_the_rest_is_written(cluster: SessionCluster) -> None:
    write_late(cluster, PostgresTables)


@pytest.mark.parametrize("mutant", [RefusalsIgnored, HoldersIgnored])
def test_refusals_that_are_ignored_are_caught(cluster: SessionCluster, mutant: type[PostgresTables]) -> None:
    with pytest.raises(AssertionError):
        write_late(cluster, mutant)


def test_a_dead_broker_writes_nothing_whether_or_not_its_sessions_were_taken(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    a.tables.apply(Changes(rows=(SessionRow("moved"), SessionRow("left")), routed=(1, 1)))
    cluster.ownership.leave(a.incarnation)
    taken(b, "moved")
    for act in (
        lambda: a.tables.apply(Changes(cursors=(("moved", AT),))),
        lambda: a.tables.apply(Changes(cursors=(("left", AT),), routed=(9, 9))),
        lambda: a.claims.release(["left"], Changes()),
        lambda: a.outbox.send_wills(["left"], Changes()),
        lambda: a.groups.release([], Changes(groups=())),
    ):
        with pytest.raises(Overruled):
            act()
    stored = taken(b, "left")
    assert stored is not None
    assert unpack_offsets(stored.cursor.positions) == (1, 1)


class HeldTables(PostgresTables):
    """Waits between a write and its commit until it may go on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_written, self.go_on = threading.Event(), threading.Event()
        transact = self._database.transact
        self._database.transact = lambda act: transact(lambda cursor: self._hold(act, cursor))  # type: ignore[method-assign]

    def _hold(self, act: Callable[[Any], Any], cursor: Any) -> Any:
        result = act(cursor)
        self.has_written.set()
        assert self.go_on.wait(20)
        return result


def while_another_writes(cluster: SessionCluster, a: SessionBroker, changes: Changes, act: Callable[[], None]) -> None:
    """Do something while the batch of a broker is written and not committed; it is, once that waits or is done."""
    tables = a.tables
    assert isinstance(tables, HeldTables)
    writing = threading.Thread(target=lambda: tables.apply(changes))
    writing.start()
    assert tables.has_written.wait(20)
    acting = threading.Thread(target=act)
    acting.start()
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    while acting.is_alive() and cluster.rows(waiting) == [(0,)]:
        pass
    tables.go_on.set()
    writing.join()
    acting.join()


def test_a_claim_waits_for_what_the_dead_holder_has_under_way(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    a.tables.apply(Changes(rows=(SessionRow("s"), SessionRow("other")), cursors=(("s", AT),), routed=(1, 1)))
    a.tables = HeldTables(a.database, a.incarnation, 2)
    found: list[StoredSession | None] = []

    def claim() -> None:
        cluster.ownership.leave(a.incarnation)
        found.append(taken(b, "s"))

    # `s` is LIVE all along: only `routed` tells how far it is
    while_another_writes(cluster, a, Changes(rows=(SessionRow("other"),), routed=(5, 5)), claim)
    assert found[0] is not None
    assert unpack_offsets(found[0].cursor.positions) == (5, 5)


def test_of_two_brokers_that_begin_a_session_at_once_one_is_refused(cluster: SessionCluster) -> None:
    a, b = cluster.join("a", HeldTables), cluster.join("b")
    refused = []
    later = Changes(rows=(SessionRow("s", "b"),), cursors=(("s", Cursor(next_id=2)),))
    while_another_writes(
        cluster, a, Changes(rows=(SessionRow("s", "a"),)), lambda: refused.append(b.tables.apply(later))
    )
    assert refused == [Refused(("s",))]
    assert list(a.tables.load().sessions) == [StoredSession(SessionRow("s", "a"))]


# Connections that break


def break_a_batch(cluster: SessionCluster, tables: type[PostgresTables]) -> None:
    """Let a session that was LIVE fall behind in a batch that breaks, and be taken by another."""
    for step in range(4):
        a, b = cluster.join("a"), cluster.join("b")
        name = f"s{step}"
        a.tables.apply(Changes(rows=(SessionRow(name),), cursors=((name, AT),), routed=(100, 100)))
        a.tables = tables(a.database, a.incarnation, 2)
        a.database.break_at(step)
        batch = Changes(cursors=((name, Cursor(pack_offsets((150, LIVE)))),), routed=(200, 200))
        with suppress(Unavailable):
            a.tables.apply(batch)
        cluster.ownership.leave(a.incarnation)
        stored = taken(b, name)
        assert stored is not None
        assert unpack_offsets(stored.cursor.positions) == ((100, 100) if step == 0 else (150, 200))


def test_a_batch_that_breaks_leaves_live_and_routed_as_of_one_moment(cluster: SessionCluster) -> None:
    break_a_batch(cluster, PostgresTables)


def test_routed_in_a_transaction_of_its_own_is_caught(cluster: SessionCluster) -> None:
    with pytest.raises(AssertionError, match=r"\(200, 200\)"):
        break_a_batch(cluster, RoutedApart)


# The outbox


def sent(cluster: SessionCluster) -> dict[str, int]:
    """Return how often the log has the will of each client."""
    return dict(cluster.rows("select client_id, count(*) from tail group by client_id"))


def send(broker: SessionBroker) -> None:
    """Sweep: put the wills of all that nobody living holds in the outbox, and end their sessions."""
    due = broker.claims.unattended(1)
    answer = broker.claims.claim([Claimant(name, is_sweep=True) for name in due], ENDS)
    ids = tuple(answer.taken)
    assert broker.outbox.send_wills(ids, Changes(ended=ids)) == Refused()
    broker.claims.release(ids, Changes())


def append(broker: SessionBroker) -> None:
    """As the owner of all shards, append what is in the outbox, in one transaction a shard."""
    for shard in (0, 1):
        rows = broker.outbox.waiting(shard)

        def act(cursor: Any, shard: int = shard, rows: Any = rows) -> None:
            for row in rows:
                cursor.execute("insert into tail (shard, client_id) values (%s, %s)", (shard, row.client_id))
            take_off(cursor, shard, [row.number for row in rows])

        broker.database.transact(act)


def append_apart(broker: SessionBroker) -> None:
    """M13: as above, in two transactions."""
    for shard in (0, 1):
        for row in broker.outbox.waiting(shard):
            insert, values = "insert into tail (shard, client_id) values (%s, %s)", (shard, row.client_id)
            broker.database.transact(lambda cursor, insert=insert, values=values: cursor.execute(insert, values))
            broker.database.transact(lambda cursor, shard=shard, row=row: take_off(cursor, shard, [row.number]))


def send_apart(broker: SessionBroker) -> None:
    """M13: take the wills off the sessions in one transaction, and put them in the outbox in another."""
    due = broker.claims.unattended(1)
    answer = broker.claims.claim([Claimant(name, is_sweep=True) for name in due], ENDS)
    wills = [(name, None, one.row.will) for name, one in answer.taken.items() if one is not None and one.row.will]
    broker.tables.apply(Changes(ended=tuple(answer.taken)))
    broker.database.transact(lambda cursor: outbox.put_wills(cursor, wills, 2))


def break_each_step(cluster: SessionCluster, *acts: Callable[[SessionBroker], None]) -> None:
    """Break a broker's connection at each transaction on the way of two wills, then let another broker go on."""
    for step in range(30):
        first, broker = cluster.join("first"), cluster.join("broker")
        kept, clean = f"kept{step}", f"clean{step}"
        row = SessionRow(kept, None, 5, 60, 0, WILL)
        first.tables.apply(Changes(rows=(row,), wills=(WillRow(clean, None, WILL),), routed=(1, 1)))
        cluster.ownership.leave(first.incarnation)
        broker.database.break_at(step)
        is_broken = False
        for act in acts:
            try:
                act(broker)
            except Unavailable:
                is_broken = True
                broker = cluster.join("broker")
        broker.database.transactions_left = None
        send(broker)
        append(broker)
        assert cluster.rows("select count(*) from outbox") == [(0,)]
        assert sent(cluster).get(kept) == sent(cluster).get(clean) == 1
        assert cluster.holders() == {}
        if not is_broken:
            assert step == 16
            return
    raise AssertionError("it always broke")


def test_a_will_is_appended_once_wherever_the_connection_breaks(cluster: SessionCluster) -> None:
    break_each_step(cluster, send, append)


@pytest.mark.parametrize("mutants", [(send, append_apart), (send_apart, append)], ids=["append", "send"])
def test_two_transactions_for_a_will_are_caught(
    cluster: SessionCluster, mutants: tuple[Callable[[SessionBroker], None], ...]
) -> None:
    with pytest.raises(AssertionError, match=r"kept\d"):
        break_each_step(cluster, *mutants)


def test_what_was_appended_by_another_owner_is_not_appended_again(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    a.tables.apply(Changes(rows=(SessionRow("s", None, 5, 60, 0, WILL),)))
    assert a.outbox.send_wills(["s"], Changes(routed=(1, 1))) == Refused()
    assert a.outbox.send_wills(["s"], Changes()) == Refused()  # as after an answer that was lost
    stale = {shard: a.outbox.waiting(shard) for shard in (0, 1)}
    append(b)
    a.outbox.waiting = lambda shard, limit=0: stale[shard]  # type: ignore[method-assign,assignment,misc]
    with pytest.raises(Unavailable, match="appended already"):
        append(a)
    assert sent(cluster) == {"s": 1}


def test_the_will_of_a_session_that_another_holds_stays_where_it_is(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    wills = (WillRow("clean", None, WILL),)
    a.tables.apply(Changes(rows=(SessionRow("s", None, 5, 60, 0, WILL), SessionRow("clean")), wills=wills))
    assert b.outbox.send_wills(["s", "clean"], Changes()) == Refused(("clean", "s"))
    assert b.tables.apply(Changes(wills=wills, ended_wills=("clean",))) == Refused(("clean",))
    assert cluster.rows("select count(*) from outbox") == [(0,)]
    assert [one.row.will for one in a.tables.load().sessions] == [None, WILL]
    assert list(a.tables.load().wills) == list(wills)
