"""Ways to get sessions of a cluster wrong, each by one thought (M and its hole), which must be noticed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests import cluster_brokers
from tests.cluster_brokers import SHARDS, BrokerCluster, ClusterNode
from tests.messages import to_columns
from tests.restarts import eventually

from everlog.base import TopicTable, Unavailable
from everlog.broker import Registry
from everlog.cluster import Closed, ClusterShard, PostgresTables, SessionHolding, session_holding
from everlog.cluster.origin_closing import OriginClosing
from everlog.mqtt import Connack, Puback, Publish, Reason
from everlog.sessions import (
    Changes,
    Cursor,
    Refused,
    SessionRow,
    StoredSession,
    pack_ids,
    pack_offsets,
    pack_unsure,
    unpack_offsets,
)

# M2: a broker that is behind takes "not arrived yet" for "the log has lost its end"


async def move_behind(folder: Path) -> None:
    """Move a session that has got everything to a broker that has nothing of it yet."""
    async with BrokerCluster(folder) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        await client.subscribe("t", qos=1)
        await second.saved()
        second.stop_following()
        publisher = await first.client("publisher")
        for number in range(5):
            await publisher.publish("t", str(number).encode())
            client.send(Puback((await client.expect(Publish)).packet_id))
        await client.nothing_more()
        moving = await second.client("me", answer=False)
        await eventually(lambda: cluster.holders().get("me") == second.incarnation)
        second.go_on_following()
        await moving.expect(Connack)
        await publisher.publish("t", b"next")
        assert (await moving.expect(Publish)).payload == b"next"


@pytest.mark.soak  # test_cluster_holding has a short one
async def test_a_session_that_moves_to_a_broker_that_is_behind_goes_on_where_it_was(tmp_path: Path) -> None:
    await move_behind(tmp_path)


class ClampingRegistry:
    """A registry that takes sessions in no further than the log here goes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def adopt(self, found: StoredSession) -> None:
        routed = self._registry.router.routed
        here = [min(pair) for pair in zip(unpack_offsets(found.cursor.positions), routed, strict=False)]
        self._registry.adopt(replace(found, cursor=replace(found.cursor, positions=pack_offsets(tuple(here)))))


async def test_positions_that_are_set_back_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SessionHolding.start
    monkeypatch.setattr(SessionHolding, "start", lambda self, registry: start(self, ClampingRegistry(registry)))
    monkeypatch.setattr(session_holding, "needed", lambda found: [0] * SHARDS)
    with pytest.raises(AssertionError, match="next"):
        await move_behind(tmp_path)


# M3: what a dead broker sent is asked for, and may still arrive after the answer


async def send_late(folder: Path) -> None:
    """Ask for the last message of a broker that is dead, and then let one more of it arrive."""
    async with BrokerCluster(folder) as cluster:
        owner, other = await cluster.join("a"), await cluster.join("b")
        await (await owner.client("publisher")).publish("t")
        shard = next(number for number, one in enumerate(owner.log.shards) if one.committed)
        unsure = pack_unsure([(shard, 1, b"\x01\x00")])
        found = StoredSession(SessionRow("me"), (), Cursor(received=pack_ids(bytearray(8192)), unsure=unsure))
        closing = OriginClosing(other.log, other.peers)
        await closing.prove(found, 77)  # an incarnation of which nothing has come
        closing.stop()
        table = TopicTable()
        columns = to_columns([(b"t", 2, b"", b"late")], table)
        try:
            owner.log.cluster_shards[shard].append_from(77, 1, columns, 0, 1, 0, table)
        except Closed:
            return
        raise AssertionError("it is taken")


async def test_nothing_of_a_dead_broker_arrives_once_it_was_asked_for(tmp_path: Path) -> None:
    await send_late(tmp_path)


async def test_an_answer_that_does_not_close_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: ClusterShard, origin: int, timeout: float | None = None) -> int:
        return self.last_number(origin)

    monkeypatch.setattr(ClusterShard, "close_origin", answer)
    with pytest.raises(AssertionError, match="it is taken"):
        await send_late(tmp_path)


# M4: a holder that does not answer in time is overruled


async def connect_beside(folder: Path) -> None:
    """Connect with a client id whose broker lives and does not answer."""
    async with BrokerCluster(folder) as cluster:
        cluster.holding_options = {"wait_s": 1.5}
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        first.peers.is_asleep = True
        refused = await second.client("me", answer=False)
        assert (await refused.expect(Connack)).reason == Reason.SERVER_UNAVAILABLE
        assert cluster.holders() == {"me": first.incarnation}
        await client.nothing_more()
        first.peers.is_asleep = False


@pytest.mark.soak  # test_cluster_holding has a short one
async def test_a_living_broker_is_not_overruled_for_its_silence(tmp_path: Path) -> None:
    await connect_beside(tmp_path)


async def test_a_claim_after_a_second_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def impatient(self: SessionHolding, holder: int, client_ids: list[str]) -> None:
        await asyncio.sleep(1.0)
        free = "update sessions set holder = 0 where client_id = any(%s)"
        self._claims._database.transact(lambda cursor: cursor.execute(free, (client_ids,)))
        self._again(client_ids, 0)

    monkeypatch.setattr(SessionHolding, "_ask", impatient)
    with pytest.raises(AssertionError):
        await connect_beside(tmp_path)


# M16: a subscription begins at what is appended, and that is lost


async def subscribe_ahead(folder: Path) -> None:
    """Subscribe while the owner has messages that it can't commit and then loses, with the session there."""
    async with BrokerCluster(folder) as cluster:
        owner, other = await cluster.join("a"), await cluster.join("b")
        if isinstance(owner.tables, BeginsAtTheEnd):
            owner.tables.node = owner
        stop_commits(owner)
        publisher = await owner.client("publisher")
        publisher.send(*[Publish("t", b"lost", 1, packet_id=number) for number in range(1, 6)])
        await eventually(lambda: sum(shard.end for shard in owner.log.shards) == 5)
        client = await owner.client("me")
        await client.subscribe("t", qos=1)  # waits for no shard
        await owner.saved()
        await asyncio.to_thread(owner.log.release, list(range(SHARDS)))  # what is not committed is lost
        await owner.kill()
        other.own(*range(SHARDS))
        publisher = await other.client("later")
        for number in range(7):
            await publisher.publish("t", str(number).encode())
        moved = await other.client("me")
        assert moved.connack.session_present
        assert (await moved.expect(Publish)).payload == b"0"


def stop_commits(node: ClusterNode) -> None:
    """Let no commit of a broker go through."""

    def fails(parts: Any) -> None:
        raise Unavailable("the database is away")

    tables: Any = node.log._commits.tables
    tables.insert = tables.settle = fails


class BeginsAtTheEnd(PostgresTables):
    """Stores how far messages are appended, in place of how far they are routed."""

    node: ClusterNode | None = None

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        if self.node is not None and changes.routed:
            changes = replace(changes, routed=tuple(shard.end for shard in self.node.log.shards))
        return super().apply(changes, durable)


@pytest.mark.soak
async def test_a_subscription_begins_at_what_is_committed(tmp_path: Path) -> None:
    await subscribe_ahead(tmp_path)


@pytest.mark.soak
async def test_a_subscription_that_begins_at_the_appended_end_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_brokers, "PostgresTables", BeginsAtTheEnd)
    with pytest.raises(AssertionError):
        await subscribe_ahead(tmp_path)
