"""Shared groups of a cluster move to a broker that has joined: nothing is lost, and nothing comes twice."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.cluster_brokers import BrokerCluster, ClusterNode
from tests.crash.test_cluster_groups import ack, completed, numbers, published
from tests.restarts import Client, eventually

from everlog.cluster import GroupClaims, group_holding
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel

GROUPS = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_holding, "SWEEP_S", 0.05)
    monkeypatch.setattr(group_holding, "SHARE_SWEEPS", 1)


async def members(node: ClusterNode, name: str, qos: int) -> list[Client]:
    """Return a client for each group."""
    made = []
    for number in range(GROUPS):
        client = await node.client(f"{name}{number}")
        await client.subscribe(f"$share/g{number}/t/#", qos=qos)
        made.append(client)
    return made


async def shared(count: int, *clients: Client) -> dict[Client, list[Publish]]:
    """Return so many messages, by who of the clients got them."""
    got: dict[Client, list[Publish]] = {client: [] for client in clients}

    async def take(client: Client) -> None:
        while True:
            got[client].append(await client.expect(Publish))

    takers = [asyncio.create_task(take(client)) for client in clients]
    try:
        await eventually(lambda: sum(map(len, got.values())) >= count or any(taker.done() for taker in takers))
    finally:
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
    return got


async def until_shared(cluster: BrokerCluster, *counts: int) -> None:
    """Wait until so many groups are dealt for by each broker."""

    def found() -> list[int]:
        nodes = [node for node in cluster.nodes if node.is_running]
        return sorted(len(node.broker.groups.far.dealt) for node in nodes if node.broker.groups.far is not None)

    await eventually(lambda: found() == sorted(counts))


def is_seated(*nodes: ClusterNode) -> bool:
    """Return whether all seats have a dealer."""
    return all(seat.is_seated for node in nodes for seat in node.broker.groups.far.seats.values())


@pytest.mark.parametrize("qos", [1, 2])
async def test_groups_move_to_a_newcomer_and_nothing_is_lost_or_comes_twice(tmp_path: Path, qos: int) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        ones, twos = await members(a, "one", qos), await members(b, "two", qos)
        await until_shared(cluster, 2, 2)
        await eventually(lambda: is_seated(a, b))
        await published(a, 0, 20, qos=qos)
        first = [await shared(20, one, two) for one, two in zip(ones, twos, strict=True)]
        c = await cluster.join("c")
        await until_shared(cluster, 2, 1, 1)
        await eventually(lambda: is_seated(a, b, c))
        for one, two, got in zip(ones, twos, first, strict=True):
            assert numbers(*got.values()) == list(range(20))
            await acked(one, got[one], qos)
            await acked(two, got[two], qos)
        await published(a, 20, 40, qos=qos)
        for one, two in zip(ones, twos, strict=True):
            assert numbers(*(await shared(20, one, two)).values()) == list(range(20, 40))
            await one.nothing_more()
            await two.nothing_more()


async def acked(client: Client, messages: list[Publish], qos: int) -> None:
    if qos == 2:
        await completed(client, *messages)
    else:
        ack(client, *messages)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_group_that_moves_while_messages_are_dealt_loses_none(tmp_path: Path, qos: int) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a = await cluster.join("a")
        ones = await members(a, "one", qos)
        got: list[list[Publish]] = [[] for _ in ones]

        async def work(which: int) -> None:
            client = ones[which]
            while True:
                packet = await client.receive()
                if isinstance(packet, Publish):
                    got[which].append(packet)
                    client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
                elif isinstance(packet, Pubrel):
                    client.send(Pubcomp(packet.packet_id))

        workers = [asyncio.create_task(work(which)) for which in range(GROUPS)]
        publishing = asyncio.create_task(published(a, 0, 150, qos=qos))
        await eventually(lambda: all(len(some) > 10 for some in got))
        await cluster.join("b")
        await until_shared(cluster, 2, 2)
        await publishing
        await eventually(lambda: all(set(numbers(some)) == set(range(150)) for some in got))
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if qos == 2:
            assert all(Counter(numbers(some)) == Counter(range(150)) for some in got)


async def test_what_nobody_took_has_a_dealer_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_holding, "TAKEN_S", 0.1)
    async with BrokerCluster(tmp_path) as cluster:
        a = await cluster.join("a")
        (one, *_) = await members(a, "one", 1)
        b = await cluster.join("b")
        b.groups._claims = NeverClaims(b.groups_database, b.incarnation, 2)
        await eventually(lambda: NeverClaims.asked > 0)
        monkeypatch.setattr(group_holding, "plan_moves", lambda counts: {})
        await until_shared(cluster, 4, 0)
        await published(a, 0, 10)
        assert numbers(await one.publishes(10)) == list(range(10))


class NeverClaims(GroupClaims):
    """Asks for groups, and then takes none."""

    asked = 0

    def claim(self, keys, ends):  # type: ignore[no-untyped-def]
        NeverClaims.asked += 1
        return group_holding.GroupAnswer()


async def test_a_group_that_is_claimed_twice_at_once_is_dealt_for_once(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a = await cluster.join("a")
        ones = await members(a, "one", 1)
        far, key = a.broker.groups.far, ("g0", "t/#")
        assert far is not None
        assert far.let_go(key)
        await a.saved()
        a.groups._claims.release([key], group_holding.Changes())
        del far.leaving[key]
        owned: list[object] = []
        really = far.own
        far.own = lambda *what: (owned.append(what[0]), really(*what))  # type: ignore[method-assign, assignment, func-returns-value]
        await asyncio.gather(a.groups._claim([key]), a.groups._claim([key]))
        await eventually(lambda: key in far.dealt and not a.groups._owning)
        assert owned == [key]
        await published(a, 0, 10)
        assert numbers(await ones[0].publishes(10)) == list(range(10))


async def test_a_subscription_while_its_group_moves_is_served(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        a = await cluster.join("a")
        ones = await members(a, "one", 1)
        far = a.broker.groups.far
        assert far is not None
        key = ("g0", "t/#")
        assert far.let_go(key)
        two = await a.client("two")
        asked = asyncio.create_task(two.subscribe("$share/g0/t/#", qos=1))
        await a.saved()
        assert not asked.done()
        a.groups._claims.release([key], group_holding.Changes())
        del far.leaving[key]
        far.dealer_lost(0, [key])
        await asked
        await published(a, 0, 10)
        assert numbers(*(await shared(10, ones[0], two)).values()) == list(range(10))
