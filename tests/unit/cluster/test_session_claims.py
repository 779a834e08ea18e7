"""Who holds a session, a group or a shard's retained messages, and what the next holder finds."""

from collections.abc import Iterator

import pytest
from tests.cluster_sessions import SessionBroker, SessionCluster

from everlog.cluster import Claimant, message_shard
from everlog.mqtt import Will
from everlog.ownership import NOBODY, Overruled
from everlog.sessions import (
    ALIVE,
    GROUP_SERVED,
    LIVE,
    Changes,
    Cursor,
    GroupRow,
    Refused,
    RetainedRow,
    SessionRow,
    StoredSession,
    SubscriptionRow,
    WillRow,
    pack_offsets,
    pack_will,
    unpack_offsets,
)
from everlog.store import shard_of

ENDS = (900, 900)
WILL = pack_will(Will("gone", b"x", 1))


@pytest.fixture
def cluster() -> Iterator[SessionCluster]:
    opened = SessionCluster()
    yield opened
    opened.close()


def taken(broker: SessionBroker, client_id: str, user: str | None = None) -> StoredSession | None:
    """Claim a session that may be had."""
    answer = broker.claims.claim([Claimant(client_id, user)], ENDS)
    assert set(answer.taken) == {client_id}
    return answer.taken[client_id]


def positions(stored: StoredSession | None) -> tuple[int, ...]:
    assert stored is not None
    return unpack_offsets(stored.cursor.positions)


def test_a_client_id_is_held_by_one_broker_whether_or_not_its_session_is_stored(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    assert taken(a, "clean") is None
    assert taken(a, "clean") is None  # a claim may be made again
    assert b.claims.claim([Claimant("clean")], ENDS).held == {"clean": a.incarnation}
    a.tables.apply(Changes(rows=(SessionRow("clean"),)))
    a.tables.apply(Changes(ended=("clean",)))
    assert b.claims.claim([Claimant("clean")], ENDS).held == {"clean": a.incarnation}
    assert a.claims.release(["clean"], Changes()) == Refused()
    assert cluster.holders() == {}
    assert taken(b, "clean") is None


def test_a_released_session_is_found_where_its_holder_left_it(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    filters = (("anne", SubscriptionRow("a/#", 1)), ("anne", SubscriptionRow("b", 2)))
    taken(a, "anne")
    a.tables.apply(Changes(rows=(SessionRow("anne", "u", 5, 60),), subscribed=filters, routed=(5, 5), alive_us=1))
    progress = Cursor(pack_offsets((LIVE, 7)), 9, b"inflight", b"received", b"unsure")
    a.claims.release(["anne"], Changes(cursors=(("anne", progress),), routed=(50, 60), alive_us=123))
    assert cluster.holders() == {"anne": NOBODY}
    a.tables.apply(Changes(routed=(70, 80)))
    found = taken(b, "anne", "u")
    assert found is not None
    assert found.row == SessionRow("anne", "u", 5, 60, 123)
    assert found.subscriptions == tuple(one for _, one in filters)
    assert found.cursor == Cursor(pack_offsets((50, 7)), 9, b"inflight", b"received", b"unsure")
    assert list(b.tables.load().sessions) == [found]


def test_live_of_a_dead_holder_is_what_that_one_had_routed(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    rows = tuple(SessionRow(name, None, 4, 60, away) for name, away in (("on", ALIVE), ("off", 7), ("new", ALIVE)))
    cursors = (("on", Cursor(pack_offsets((LIVE, 4)))), ("off", Cursor(pack_offsets((3, 1000)))))
    a.tables.apply(Changes(rows=rows, cursors=cursors, routed=(50, 60), alive_us=123))
    b.tables.apply(Changes(routed=(1000, 1000), alive_us=999))
    assert b.claims.claim([Claimant("on")], ENDS).held == {"on": a.incarnation}
    cluster.ownership.leave(a.incarnation)
    for _ in range(2):  # what the claim returned is what is stored
        found = b.claims.claim(map(Claimant, ("on", "off", "new")), ENDS).taken
        assert {name: positions(one) for name, one in found.items()} == {
            "on": (50, 4), "off": (3, 1000), "new": (50, 60),  # not set back to where the claimant's copy ends
        }  # fmt: skip
        assert {name: one.row.away_us for name, one in found.items() if one} == {"on": 123, "off": 7, "new": 123}
        assert {name: one.cursor.doubt for name, one in found.items() if one} == {
            "on": pack_offsets(ENDS), "off": b"", "new": pack_offsets(ENDS),
        }  # fmt: skip


def test_an_incarnations_row_stays_until_nothing_names_it(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    a.tables.apply(Changes(rows=(SessionRow("s"),), wills=(WillRow("w", None, WILL),), groups=(GroupRow("g", "f"),)))
    b.tables.apply(Changes(routed=(1, 1)))
    assert b.tables.remove_unnamed() == 0
    cluster.ownership.leave(a.incarnation)
    for claim in (
        lambda: b.claims.claim([Claimant("s")], ENDS),
        lambda: b.claims.claim([Claimant("w", is_sweep=True)], ENDS),
        lambda: b.groups.claim([("g", "f")], ENDS),
    ):
        assert b.tables.remove_unnamed() == 0
        claim()
    assert b.tables.remove_unnamed() == 1
    assert cluster.rows("select incarnation from session_brokers") == [(b.incarnation,)]


def test_another_user_is_refused_before_the_holder_is_named(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    a.claims.claim([Claimant("kept", "u"), Claimant("clean", "u")], ENDS)
    a.tables.apply(Changes(rows=(SessionRow("kept", "u"), SessionRow("open"))))
    asked = [Claimant(name, user, True) for name, user in (("kept", "v"), ("clean", "v"), ("open", "v"))]
    answer = b.claims.claim(asked, ENDS)
    assert answer.anothers == {"kept"}
    assert set(answer.held) == {"clean", "open"}
    assert b.claims.claim([Claimant("clean", "v")], ENDS).anothers == {"clean"}
    cluster.ownership.leave(a.incarnation)
    assert b.claims.claim([Claimant("kept", "v")], ENDS).anothers == {"kept"}
    assert set(b.claims.claim([Claimant("kept", is_sweep=True)], ENDS).taken) == {"kept"}


def test_many_claims_are_gathered(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    names = [f"c{number}" for number in range(450)]
    a.tables.apply(Changes(rows=tuple(SessionRow(name, None, 4, 60) for name in names), routed=(5, 6)))
    a.claims.release(names[:100], Changes())
    answer = b.claims.claim(map(Claimant, names), ENDS)
    assert (set(answer.taken), set(answer.held)) == (set(names[:100]), set(names[100:]))
    cluster.ownership.leave(a.incarnation)
    found = b.claims.claim(map(Claimant, names), ENDS).taken
    assert {positions(stored) for stored in found.values()} == {(5, 6)}
    assert set(cluster.holders().values()) == {b.incarnation}


def test_names_too_long_for_an_index_are_told_apart(cluster: SessionCluster) -> None:
    a = cluster.join("a")
    one, other = "é" * 20_000 + "1", "é" * 20_000 + "2"
    filters = tuple((name, SubscriptionRow(text, 1)) for name in (one, other) for text in (one, other))
    a.tables.apply(Changes(rows=(SessionRow(one), SessionRow(other)), subscribed=filters))
    a.tables.apply(Changes(ended=(other,), unsubscribed=((one, one),)))
    assert [found.subscriptions for found in a.tables.load().sessions] == [(SubscriptionRow(other, 1),)]


def test_what_nobody_living_holds_and_is_due_is_found_for_the_sweep(cluster: SessionCluster) -> None:
    a, b, c = cluster.join("a"), cluster.join("b"), cluster.join("c")
    kinds = {"due": (60, None), "later": (61, None), "never": (0xFFFF_FFFF, None), "will": (0xFFFF_FFFF, WILL)}
    rows = tuple(SessionRow(name, None, 4, expiry_s, 1, will) for name, (expiry_s, will) in kinds.items())
    a.tables.apply(Changes(rows=rows))
    a.claims.release(list(kinds), Changes())
    b.tables.apply(Changes(rows=(SessionRow("dead"),), wills=(WillRow("clean", None, WILL),)))
    c.tables.apply(Changes(rows=(SessionRow("alive", None, 4, 0, 1),)))
    cluster.ownership.leave(b.incarnation)
    assert c.claims.unattended(60_000_001) == ["clean", "dead", "due", "will"]
    assert c.claims.unattended(60_000_001, "dead", 1) == ["due"]
    assert c.claims.unattended(60_000_000, "dead") == ["will"]


def test_a_group_has_one_holder(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    key, row = ("g", "t/#"), GroupRow("g", "t/#", GROUP_SERVED, pack_offsets((LIVE, 4)), b"owed")
    assert a.groups.claim([key], ENDS).taken == {key: None}
    assert list(a.tables.load().groups) == []
    a.tables.apply(Changes(groups=(row,), routed=(50, 60)))
    assert b.groups.claim([key, ("g", "other")], ENDS).held == {key: a.incarnation}
    assert b.tables.apply(Changes(ended_groups=(key,))) == Refused(groups=(key,))
    assert b.tables.apply(Changes(groups=(row, GroupRow("g", "other")))) == Refused(groups=(key,))
    a.groups.release([key], Changes(routed=(51, 61)))
    assert b.groups.claim([key], ENDS).taken == {key: GroupRow("g", "t/#", 0, pack_offsets((51, 4)), b"owed")}
    assert a.tables.apply(Changes(groups=(row,))) == Refused(groups=(key,))
    b.tables.apply(Changes(groups=(row,), routed=(52, 62)))
    cluster.ownership.leave(b.incarnation)
    found = GroupRow("g", "t/#", 0, pack_offsets((52, 4)), b"owed", pack_offsets(ENDS))
    assert [a.groups.claim([key], ENDS).taken for _ in range(2)] == [{key: found}] * 2
    with pytest.raises(Overruled):
        b.groups.claim([key], ENDS)
    a.tables.apply(Changes(ended_groups=(key,)))
    a.groups.release([key], Changes())
    assert cluster.rows("select filter from session_groups") == [("other",)]


def test_retained_messages_are_written_by_the_owner_of_their_shard_and_never_go_back(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    zero, one = (next(f"t{n}" for n in range(99) if shard_of(b"t%d" % n, 2) == shard) for shard in (0, 1))
    cluster.ownership.claim([message_shard(0)], a.incarnation)
    cluster.ownership.claim([message_shard(1)], b.incarnation)

    def write(broker: SessionBroker, text: bytes, at: tuple[int, int]) -> None:
        rows = (RetainedRow(zero, text), RetainedRow(one, text))
        broker.tables.apply(Changes(retained=rows, retained_at=at))

    def found() -> tuple[dict[str, bytes | None], tuple[int, ...]]:
        snapshot = cluster.join("c").tables.load()
        return {row.topic: row.message for row in snapshot.retained}, snapshot.retained_at

    write(a, b"1", (10, 10))
    assert found() == ({zero: b"1"}, (10,))
    write(b, b"2", (20, 20))
    assert found() == ({zero: b"1", one: b"2"}, (10, 20))
    cluster.ownership.leave(b.incarnation)
    cluster.ownership.claim([message_shard(1)], a.incarnation)
    write(a, b"3", (30, 19))  # it has not followed the other shard as far as what is stored
    assert found() == ({zero: b"3", one: b"2"}, (30, 20))
    write(a, b"4", (30, 20))
    assert found() == ({zero: b"4", one: b"4"}, (30, 20))
