"""Shared groups of a cluster: one broker deals, to members at all of them, whatever happens to brokers and links."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_brokers import BrokerCluster, ClusterNode
from tests.restarts import Client, eventually

from everlog.broker import GroupOptions
from everlog.broker.groups import group_seat
from everlog.broker.groups.far_members import FarMembers
from everlog.cluster import LinkKind, group_holding
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel

FILTER = "$share/g/t/#"


async def member(node: ClusterNode, name: str, qos: int = 1, **connect: Any) -> Client:
    client = await node.client(name, **connect)
    await client.subscribe(FILTER, qos=qos)
    return client


async def published(node: ClusterNode, first: int, stop: int, qos: int = 1) -> None:
    publisher = await node.client("publisher", clean=True, expiry=0)
    for number in range(first, stop):
        topic, payload = f"t/{number % 5}", str(number).encode()
        publisher.send(Publish(topic, payload, qos, packet_id=number % 1000 + 1))
        if qos == 2:
            await publisher.expect(Pubrec)
            publisher.send(Pubrel(number % 1000 + 1))
        await publisher.expect(Puback if qos == 1 else Pubcomp)
    await publisher.leave()


def ack(client: Client, *messages: Publish) -> None:
    client.send(*(Puback(one.packet_id) for one in messages))


async def completed(client: Client, *messages: Publish) -> None:
    client.send(*(Pubrec(one.packet_id) for one in messages))
    for _ in messages:
        client.send(Pubcomp((await client.expect(Pubrel)).packet_id))


def numbers(*lists: list[Publish]) -> list[int]:
    return sorted(int(one.payload) for some in lists for one in some)


async def shared(count: int, *clients: Client) -> list[Publish]:
    """Return so many messages, whoever of the clients gets them."""
    got: list[Publish] = []

    async def take(client: Client) -> None:
        while True:
            got.append(await client.expect(Publish))

    takers = [asyncio.create_task(take(client)) for client in clients]
    try:
        await eventually(lambda: len(got) >= count or any(taker.done() for taker in takers))
    finally:
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
    return got


def lag(node: ClusterNode) -> int:
    (state,) = node.inside.group_states()
    return state.lag


def deals(cluster: BrokerCluster) -> int:
    (found,) = cluster.rows("select count(*) from group_deals")[0]
    return int(found)


async def test_each_message_goes_to_one_member_wherever_it_is_connected(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one"), await member(b, "two")
        await published(a, 0, 40)
        first, second = await one.publishes(20), await two.publishes(20)
        assert numbers(first, second) == list(range(40))
        ack(one, *first)
        ack(two, *second)
        await one.nothing_more()
        await two.nothing_more()
        await eventually(lambda: lag(a) == 0)
        assert [state.members for state in a.inside.group_states()] == [2]
        assert b.inside.group_states() == []


async def test_a_group_without_a_member_at_its_dealer_gets_everything(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one"), await member(b, "two")
        await one.unsubscribe(FILTER)
        await published(a, 0, 20)
        got = await two.publishes(20)
        assert numbers(got) == list(range(20))
        ack(two, *got)
        await two.leave()
        await published(a, 20, 30)
        two = await b.client("two")
        assert numbers(await two.publishes(10)) == list(range(20, 30))


async def test_a_small_window_is_given_no_more_than_it_takes(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one"), await member(b, "two", receive_maximum=2)
        await published(a, 0, 30)
        mine = await one.publishes(28)
        theirs = await two.publishes(2)
        assert numbers(mine, theirs) == list(range(30))
        await published(a, 30, 31)
        mine += await one.publishes(1)
        ack(two, *theirs)
        await two.nothing_more()
        await published(a, 31, 33)
        assert numbers(mine, theirs, await shared(2, one, two)) == list(range(33))


async def test_qos_2_goes_to_one_member_once(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one", 2), await member(b, "two", 2)
        await published(a, 0, 20, qos=2)
        first, second = await one.publishes(10), await two.publishes(10)
        assert numbers(first, second) == list(range(20))
        assert deals(cluster) == 0, "what was sent is with the session"
        await completed(one, *first)
        await completed(two, *second)
        await one.nothing_more()
        await two.nothing_more()
        await eventually(lambda: lag(a) == 0)


async def test_what_a_lost_member_has_not_acknowledged_goes_to_others(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one"), await member(b, "two")
        await published(a, 0, 20)
        mine, theirs = await one.publishes(10), await two.publishes(10)
        ack(two, *theirs[:4])
        await two.nothing_more()
        await two.drop()
        again = await one.publishes(6)
        assert numbers(again) == numbers(theirs[4:])
        assert numbers(mine, theirs[:4], again) == list(range(20))


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_arrives_when_the_last_member_has_left_goes_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one", qos), await member(b, "two", qos)
        await one.unsubscribe(FILTER)
        held: list[tuple[Any, ...]] = []
        really, seats = a.peers.tell, b.broker.groups.far.seats

        def tell(incarnation: int, kind: LinkKind, body: bytes) -> None:
            if kind == LinkKind.GROUP_DEAL:
                held.append((incarnation, kind, body))
            else:
                really(incarnation, kind, body)

        monkeypatch.setattr(a.peers, "tell", tell)
        await published(a, 0, 10, qos=qos)
        await a.saved()
        await eventually(lambda: bool(held))
        await two.unsubscribe(FILTER)
        await eventually(lambda: not seats)
        for said in held:
            really(*said)
        monkeypatch.undo()
        await one.subscribe(FILTER, qos=qos)
        assert numbers(await one.publishes(10)) == list(range(10))
        await one.nothing_more()


async def test_what_a_dead_broker_had_goes_to_others_but_not_what_its_sessions_have(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one = await member(a, "one", 2)
        two, three = await member(b, "two", 2), await member(b, "three", 1)
        await published(a, 0, 15, qos=2)
        mine, theirs, others = await one.publishes(5), await two.publishes(5), await three.publishes(5)
        assert numbers(mine, theirs, others) == list(range(15))
        await b.kill()
        assert numbers(await one.publishes(5)) == numbers(others), "at QoS 1 nobody has them"
        two = await c.client("two")
        again = await two.publishes(5)
        assert numbers(again) == numbers(theirs)
        assert all(one.dup for one in again)
        await completed(two, *again)
        await two.nothing_more()
        await one.nothing_more()


async def test_what_a_dead_broker_was_dealt_and_had_not_stored_goes_to_others(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one", 2), await member(b, "two", 2)
        assert b.broker.write_behind is not None
        b.broker.write_behind.is_over = True  # it stores nothing any more
        await published(a, 0, 10, qos=2)
        mine = await one.publishes(5)
        await eventually(lambda: deals(cluster) == 5)
        await b.kill()
        with pytest.raises(asyncio.IncompleteReadError):
            await two.receive()
        assert numbers(mine, await one.publishes(5)) == list(range(10))
        await one.nothing_more()
        await a.saved()
        assert deals(cluster) == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_when_the_dealer_is_dead_another_deals_and_nothing_is_lost(tmp_path: Path, qos: int) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one, two, three = await member(b, "one", qos), await member(a, "two", qos), await member(c, "three", qos)
        await published(a, 0, 30, qos=qos)
        first, second, third = [await client.publishes(10) for client in (one, two, three)]
        if qos == 1:
            ack(three, *third[:5])
        await b.saved()
        await three.nothing_more()
        await b.kill()
        await published(a, 30, 60, qos=qos)
        if qos == 1:  # what the dead one's member had goes to others
            got = Counter(numbers(second, third, await shared(40, two, three)))
            assert set(got) == set(range(60))
            assert sum(got.values()) == 60, "what members had was not dealt again"
        else:
            got = Counter(numbers(first, second, third, await shared(30, two, three)))
            assert got == Counter(range(60))
        await two.nothing_more()
        await three.nothing_more()
        one = await c.client("one")
        if qos == 2:
            assert numbers(await one.publishes(10)) == numbers(first)
        assert deals(cluster) == 0


async def test_what_was_dealt_and_never_heard_of_is_dealt_by_the_next_dealer(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one, two, three = await member(b, "one", 2), await member(a, "two", 2), await member(c, "three", 2)
        b.peers.is_mute = True  # what it says is lost on the way
        await published(a, 0, 9, qos=2)
        first = await one.publishes(3)
        await eventually(lambda: deals(cluster) == 6)
        await b.kill()
        got = await shared(6, two, three)
        assert numbers(first, got) == list(range(9))
        await two.nothing_more()
        await three.nothing_more()


@pytest.mark.parametrize("qos", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_a_dealer_that_ends_in_order_hands_over_and_nothing_comes_twice(tmp_path: Path, qos: int) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one, two, three = await member(b, "one", qos), await member(a, "two", qos), await member(c, "three", qos)
        await published(a, 0, 30, qos=qos)
        first, second, third = [await client.publishes(10) for client in (one, two, three)]
        await b.stop()
        got = numbers(second, third) if qos == 1 else numbers(first, second, third)
        left = 20 if qos == 1 else 10
        await published(a, 30, 40, qos=qos)
        assert sorted(got + numbers(await shared(left, two, three))) == list(range(40))
        await two.nothing_more()
        await three.nothing_more()


@pytest.mark.parametrize("qos", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_a_link_that_is_cut_for_a_while_loses_nothing(tmp_path: Path, qos: int) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one", qos), await member(b, "two", qos)
        await published(a, 0, 10, qos=qos)
        mine, theirs = await one.publishes(5), await two.publishes(5)
        cluster.links.cut(a.incarnation, b.incarnation)
        await published(a, 10, 20, qos=qos)
        mine += await one.publishes(10)
        if qos == 1:
            ack(two, *theirs)
        else:
            await completed(two, *theirs)
        await two.nothing_more()
        cluster.links.mend(a.incarnation, b.incarnation)
        seat = next(iter(b.broker.groups.far.seats.values()))
        await eventually(lambda: seat.is_seated)
        await published(a, 20, 30, qos=qos)
        assert numbers(mine, theirs, await shared(10, one, two)) == list(range(30))
        await one.nothing_more()
        await two.nothing_more()


@pytest.mark.parametrize("end", ["kill", pytest.param("cut", marks=pytest.mark.soak)])
async def test_what_a_session_has_is_not_dealt_again_though_nobody_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(group_seat, "_RECENT", 0)  # what was done is not said again either
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one", 2), await member(b, "two", 2)
        b.peers.is_mute = True  # what it says is lost on the way
        await published(a, 0, 10, qos=2)
        mine, theirs = await one.publishes(5), await two.publishes(5)
        await completed(one, *mine)
        await completed(two, *theirs)
        await b.saved()
        if end == "kill":
            await b.kill()
        else:
            b.peers.is_mute = False
            cluster.links.cut(a.incarnation, b.incarnation)
            cluster.links.mend(a.incarnation, b.incarnation)
        await eventually(lambda: lag(a) == 0)
        await one.nothing_more()


async def test_a_member_that_moves_to_another_broker_or_qos_loses_nothing(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one, two = await member(a, "one", 2), await member(b, "two", 2)
        await one.unsubscribe(FILTER)
        await published(a, 0, 6, qos=2)
        await published(a, 6, 10)
        got = await two.publishes(10)
        plain = [each for each in got if each.qos == 1]
        ack(two, *plain[:2])
        await two.nothing_more()
        two = await c.client("two")  # its session is let go by the other broker
        again = await two.publishes(8)
        assert numbers([each for each in again if each.qos == 2]) == list(range(6))
        assert numbers([each for each in again if each.qos == 1]) == numbers(plain[2:])
        await completed(two, *[each for each in again if each.qos == 2])
        ack(two, *[each for each in again if each.qos == 1])
        await two.subscribe(FILTER, qos=1)
        await published(a, 10, 15, qos=2)
        got = await two.publishes(5)
        assert (numbers(got), {each.qos for each in got}) == (list(range(10, 15)), {1})
        ack(two, *got)
        await two.nothing_more()
        await eventually(lambda: lag(a) == 0)
        assert deals(cluster) == 0


async def test_messages_of_one_topic_are_with_one_member_at_a_time(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, groups=GroupOptions(ordered=("g",))) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one, two = await member(a, "one"), await member(b, "two")
        await published(a, 0, 50)
        got: dict[str, list[Publish]] = {"one": [], "two": []}

        async def work(name: str, client: Client) -> None:
            while True:
                message = await client.expect(Publish)
                got[name].append(message)
                ack(client, message)

        workers = [asyncio.create_task(work("one", one)), asyncio.create_task(work("two", two))]
        await eventually(lambda: len(got["one"]) + len(got["two"]) == 50)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert numbers(*got.values()) == list(range(50))
        assert all(got.values()), "both have worked"
        for mine in got.values():
            for topic in {message.topic for message in mine}:
                of_topic = [int(message.payload) for message in mine if message.topic == topic]
                assert of_topic == sorted(of_topic)


async def test_a_group_whose_members_are_away_goes_on_where_it_was(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        one = await member(b, "one")
        await published(a, 0, 5)
        ack(one, *await one.publishes(5))
        await one.nothing_more()
        await one.leave()
        await published(a, 5, 10)
        await b.saved()
        await b.kill()
        await published(a, 10, 15)
        one = await c.client("one")
        got = await one.publishes(10)
        assert numbers(got) == list(range(5, 15))
        ack(one, *got)
        await one.nothing_more()
        await eventually(lambda: lag(c) == 0)


async def test_a_group_may_begin_in_the_past(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        await published(a, 0, 10)
        one = await b.client("one")
        await one.subscribe("$replay/earliest/" + FILTER)
        got = await one.publishes(10)
        two = await member(a, "two")
        await published(a, 10, 12)
        assert numbers(got, await shared(2, one, two)) == list(range(12))


async def test_a_group_of_clean_members_ends_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_holding, "IDLE_SWEEPS", 1)
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        one = await member(a, "one", clean=True, expiry=0)
        two = await member(b, "two", clean=True, expiry=0)
        assert cluster.rows("select count(*) from session_groups")[0] == (1,)
        await one.leave()
        await published(a, 0, 3)
        assert numbers(await two.publishes(3)) == [0, 1, 2]
        await two.leave()
        await eventually(lambda: cluster.rows("select count(*) from session_groups")[0] == (0,))


class DealsAtOnce(FarMembers):
    """M12: the seat hears of a QoS 2 message before it is stored that the group has dealt it."""

    def flush(self) -> None:
        for seat in self.seats.values():
            if seat.open is not None:
                seat.open.has_sure = False
        super().flush()


async def deal_and_die(cluster: BrokerCluster) -> list[int]:
    """Let a dealer die that could not store anything of what it has dealt; return what its members have got."""
    a, b, c = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
    one, two = await member(b, "one", 2), await member(c, "two", 2)
    await one.unsubscribe(FILTER)
    await b.saved()
    assert b.broker.write_behind is not None
    b.broker.write_behind.is_over = True
    await published(a, 0, 5, qos=2)
    far = b.broker.groups.far
    assert far is not None
    (dealt,) = far.dealt.values()
    given = lambda: sum(one.given for seat in dealt.seats.values() for one in seat.members.values())  # noqa: E731
    await eventually(lambda: given() == 5)
    await asyncio.sleep(0)  # what leaves, leaves in this turn
    await eventually(lambda: c.broker.router.routed == a.broker.router.routed)
    await c.saved()
    await b.kill()
    await published(a, 5, 6, qos=2)
    got: list[Publish] = []
    while 5 not in numbers(got):
        got += await two.publishes(1)
    return numbers(got)


async def test_what_is_not_stored_as_dealt_was_not_sent(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        assert await deal_and_die(cluster) == list(range(6))


async def test_m12_a_publish_before_the_groups_row_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.broker.groups.far_groups.FarMembers", DealsAtOnce)
    async with BrokerCluster(tmp_path) as cluster:
        assert Counter(await deal_and_die(cluster)) > Counter(range(6))
