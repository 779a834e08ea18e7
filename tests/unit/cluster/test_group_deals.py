"""QoS 2 messages that a group has dealt to clients of other brokers, in the tables: each is decided once."""

from collections.abc import Iterator

import pytest
from tests.cluster_sessions import SHARDS, SessionBroker, SessionCluster

from everlog.base import pack_position
from everlog.sessions import (
    DEAL_BACK,
    DEAL_TAKEN,
    Changes,
    Cursor,
    GroupDeal,
    GroupRow,
    SessionRow,
    SubscriptionRow,
    pack_offsets,
)

KEY = ("g", "t/#")
ENDS = (0,) * SHARDS
HIGH = pack_position(200, 7)  # above what a signed number has


@pytest.fixture
def cluster() -> Iterator[SessionCluster]:
    opened = SessionCluster()
    yield opened
    opened.close()


def dealt(dealer: SessionBroker, taker: SessionBroker, *positions: int) -> None:
    """Deal messages to the client "m" of a broker."""
    row = GroupRow(*KEY, positions=pack_offsets(ENDS))
    deals = tuple(GroupDeal(*KEY, position, "m", taker.incarnation) for position in positions)
    dealer.tables.apply(Changes(groups=(row,), deals=deals))


def taken(taker: SessionBroker, *positions: int) -> Changes:
    """Return the batch that stores messages with the client's session."""
    deals = tuple(GroupDeal(*KEY, position, "m", DEAL_TAKEN) for position in positions)
    return Changes(rows=(SessionRow("m"),), cursors=(("m", Cursor()),), deals=deals)


def left(cluster: SessionCluster) -> list[tuple[int, int]]:
    return [
        (position % (1 << 64), taker) for position, taker in cluster.rows("select position, taker from group_deals")
    ]


def test_what_a_session_has_is_off_the_list_in_the_same_batch(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    assert a.groups.claim([KEY], ENDS).taken == {KEY: None}
    dealt(a, b, 5, HIGH)
    b.tables.apply(taken(b, HIGH))
    assert left(cluster) == [(5, b.incarnation)]
    assert a.groups.settle(KEY, b.incarnation, [5, HIGH]) == [5], "nobody has it: it is owed again"
    assert a.groups.settle(KEY, b.incarnation, [5, HIGH]) == [5], "and so it is when asked again"
    b.tables.apply(taken(b, 5))  # too late
    assert left(cluster) == [(5, 0)]
    a.tables.apply(Changes(deals=(GroupDeal(*KEY, 5, "m", DEAL_BACK),)))
    assert left(cluster) == []


def test_the_next_dealer_finds_what_dead_brokers_had_not_stored(cluster: SessionCluster) -> None:
    a, b, c = cluster.join("a"), cluster.join("b"), cluster.join("c")
    a.groups.claim([KEY], ENDS)
    dealt(a, b, 1, 2)
    dealt(a, c, 3)
    b.tables.apply(taken(b, 2))
    old_b = b
    cluster.join("a")
    b = cluster.join("b")
    answer = b.groups.claim([KEY], ENDS)
    assert answer.deals == {KEY: [(1, "m", 0), (3, "m", c.incarnation)]}
    assert b.groups.is_dead(old_b.incarnation)
    assert not b.groups.is_dead(c.incarnation)


def test_a_session_that_another_broker_has_takes_nothing_off_the_list(cluster: SessionCluster) -> None:
    a, b, c = cluster.join("a"), cluster.join("b"), cluster.join("c")
    a.groups.claim([KEY], ENDS)
    dealt(a, b, 1)
    c.tables.apply(Changes(rows=(SessionRow("m"),)))
    assert b.tables.apply(taken(b, 1)).sessions == ("m",)
    assert left(cluster) == [(1, b.incarnation)]


def test_groups_that_nobody_is_subscribed_to_are_forgotten(cluster: SessionCluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    other = ("other", "t/#")
    for key in (KEY, other):
        a.groups.claim([key], ENDS)
        a.tables.apply(Changes(groups=(GroupRow(*key, positions=pack_offsets(ENDS)),)))
    subscribed = (("m", SubscriptionRow("$share/g/t/#", 1)),)
    a.tables.apply(Changes(rows=(SessionRow("m"),), subscribed=subscribed))
    dealt(a, b, 1)
    assert b.groups.unused([KEY, other]) == [other]
    assert b.groups.forget_unheld() == 0, "a living broker holds them"
    cluster.join("a")
    assert b.groups.forget_unheld() == 1
    assert cluster.rows("select name from session_groups") == [("g",)]
    assert len(left(cluster)) == 1
