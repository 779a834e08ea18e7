"""Where clients are referred to, decided from who lives and how many clients each has."""

import struct
from contextlib import ExitStack

import pytest
from tests.brokers import RunningBroker
from tests.raw_client import Closed, RawClient

from everlog.broker import Referral
from everlog.cluster import ClusterReferrals, LinkKind, describe
from everlog.cluster.formats import encode_about
from everlog.mqtt import Connack, Connect, Disconnect, Properties, Reason
from everlog.ownership import Board, Member


class Keeper:
    """A keeper with a board that a test writes."""

    incarnation = 1

    def __init__(self, *members: Member) -> None:
        self.board = Board(members={one.incarnation: one for one in members})
        self.is_draining = False


class Links:
    """Links that hear what a test says."""

    def __init__(self, *living: int) -> None:
        self.living = set(living)

    def hear(self, kind: LinkKind, call: object) -> None:
        assert kind is LinkKind.CLIENTS
        self.say = call

    def watch(self, call: object) -> None:
        self.changed = call


def member(number: int, clients: str = "", *, draining: bool = False) -> Member:
    return Member(number, f"b{number}", "", "", draining, encode_about(describe(clients)))


class World:
    """Five brokers, of which two may be told to clients."""

    def __init__(self, above: float | None = None) -> None:
        self.keeper = Keeper(
            member(1, "here:1"), member(2, "two:1"), member(3), member(4, "four:1"), member(5, "five:1", draining=True)
        )
        self.links = Links(2, 3, 4, 5)
        self.here = 0
        self.referrals = ClusterReferrals(self.keeper, self.links, lambda: self.here, above)  # type: ignore[arg-type]

    def counts(self, here: int, **others: int) -> None:
        self.here = here
        for name, count in others.items():
            self.links.say(int(name[1:]), 0, struct.pack("<Q", count))  # type: ignore[operator]


@pytest.mark.parametrize("sign", ["board", "signal"])
def test_a_broker_that_is_drained_names_the_living_by_turns(sign: str) -> None:
    world = World()
    assert world.referrals.at_connect(5) is None
    world.keeper.is_draining, world.referrals.is_leaving = sign == "board", sign == "signal"
    named = [world.referrals.at_connect(5) for _ in range(4)]
    assert {one.server for one in named if one is not None} == {"two:1", "four:1"}
    assert len({one.server for one in named[:2] if one is not None}) == 2
    world.links.living.clear()
    assert world.referrals.at_connect(5) == Referral("this broker is drained", None)


def test_far_more_clients_than_the_mean_are_referred_to_the_emptiest_if_that_is_wanted() -> None:
    world = World(above=1.5)
    world.counts(400, b2=100, b3=10, b4=90)
    referral = world.referrals.at_connect(5)
    assert referral is not None
    assert referral.server == "four:1"  # the third has fewer, and does not tell how to reach it
    assert world.referrals.at_connect(4) is None  # it could not be told
    world.counts(200, b2=150, b3=150, b4=150)
    assert world.referrals.at_connect(5) is None
    never = World()
    never.counts(400, b2=1, b3=1, b4=1)
    assert never.referrals.at_connect(5) is None


def test_few_clients_are_no_imbalance_and_no_broker_above_the_mean_is_named() -> None:
    world = World(above=1.5)
    world.counts(12, b2=0, b3=0, b4=0)
    assert world.referrals.at_connect(5) is None
    world.counts(400, b2=300, b3=0, b4=300)
    assert world.referrals.at_connect(5) is None
    world.counts(400, b2=300, b3=0, b4=10)
    world.links.changed(4, False)  # type: ignore[operator]
    world.links.living.discard(4)
    assert world.referrals.at_connect(5) is None


class Elsewhere:
    """Referrals to one server, for all or when the broker ends."""

    def __init__(self, referral: Referral | None) -> None:
        self.referral = referral

    def at_connect(self, version: int) -> Referral | None:
        return self.referral

    def at_end(self) -> str | None:
        return "other.example:1883"


@pytest.mark.parametrize("version", [4, 5])
def test_who_connects_is_told_where_to_go(version: int) -> None:
    with RunningBroker() as running:
        running.broker.connections.gate.referrals = Elsewhere(Referral("drained", "other.example:1883"))
        with RawClient(running.port, version) as client:
            answer = client.connect("device")
            assert answer.reason is (Reason.USE_ANOTHER_SERVER if version == 5 else Reason.SERVER_UNAVAILABLE)
            assert answer.properties.server_reference == ("other.example:1883" if version == 5 else None)
            with pytest.raises(Closed):
                client.receive()


def test_who_does_not_want_words_is_told_the_server_alone() -> None:
    with RunningBroker() as running:
        running.broker.connections.gate.referrals = Elsewhere(Referral("drained", "other.example:1883"))
        with RawClient(running.port, 5) as client:
            client.send(Connect(5, "quiet", properties=Properties(request_problem_information=0)))
            answer = client.receive()
            assert isinstance(answer, Connack)
            assert answer.properties == Properties(server_reference="other.example:1883")


def test_a_broker_that_ends_tells_its_clients_where_to_go() -> None:
    with ExitStack() as clients:
        with RunningBroker() as running:
            running.broker.connections.gate.referrals = Elsewhere(None)
            client = clients.enter_context(RawClient(running.port, 5))
            old = clients.enter_context(RawClient(running.port, 4))
            client.connect("new")
            old.connect("old")
        told = client.receive()
        assert isinstance(told, Disconnect)
        assert told.reason is Reason.USE_ANOTHER_SERVER
        assert told.properties.server_reference == "other.example:1883"
        with pytest.raises(Closed):
            old.receive()
