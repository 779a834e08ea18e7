"""Wills and expiries of a cluster's sessions, each once, and QoS 2 messages of brokers that died."""

from pathlib import Path

import pytest
from tests.cluster_brokers import SHARDS, BrokerCluster, ClusterNode
from tests.restarts import eventually

from everlog.base import MessageColumns, TopicTable, Unavailable
from everlog.cluster import Closed, Outbox, session_claims
from everlog.cluster.origin_closing import OriginClosing
from everlog.mqtt import Properties, Publish, Pubrec, Will
from everlog.sessions import Cursor, SessionRow, StoredSession, pack_ids, pack_unsure, unpack_unsure


def ends(node: ClusterNode) -> int:
    return sum(shard.committed for shard in node.log.shards)


async def test_the_will_of_a_client_is_sent_once_and_leaves_the_outbox(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        owner, other = await cluster.join("a"), await cluster.join("b")
        listener = await owner.client("listener")
        await listener.subscribe("w")
        for name, expiry in (("clean", 0), ("kept", 1000)):
            client = await other.client(name, will=Will("w", name.encode(), 1), expiry=expiry)
            await client.drop()
            assert (await listener.expect(Publish)).payload == name.encode()
        await eventually(lambda: cluster.rows("select * from outbox") == [])
        await listener.nothing_more()
        assert ends(owner) == 2


async def test_a_session_of_a_dead_broker_waits_for_its_client_unless_something_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        monkeypatch.setattr(session_claims, "LEFT_US", 1 << 50)
        owner, other, dying = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        listener = await owner.client("listener")
        await listener.subscribe("w")
        await dying.client("back", expiry=1000)
        await dying.client("late", expiry=1000)
        await dying.client("short", expiry=1)
        await dying.client("clean", clean=True, expiry=0)
        await dying.client("will", expiry=1000, will=Will("w", b"gone", 1))
        await dying.saved()
        await dying.kill()
        assert (await listener.expect(Publish)).payload == b"gone"
        await eventually(lambda: not {"short", "clean"} & cluster.holders().keys())
        assert cluster.holders() == {
            "listener": owner.incarnation,
            "will": owner.incarnation,
            "back": dying.incarnation,
            "late": dying.incarnation,
        }
        back = await other.client("back")
        assert back.connack.session_present
        assert owner.peers._links.said == [], "nobody had to be asked for it"
        monkeypatch.setattr(session_claims, "LEFT_US", 0)
        await eventually(lambda: cluster.holders()["late"] == owner.incarnation)


async def test_the_wills_of_a_dead_brokers_clients_are_sent_once(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        owner, dying = await cluster.join("a"), await cluster.join("b")
        listener = await owner.client("listener")
        await listener.subscribe("w/#")
        names = [f"{kind}-{number}" for kind in ("clean", "kept") for number in range(5)]
        for name in names:
            await dying.client(name, will=Will(f"w/{name}", b"", 1), expiry=1000 * name.startswith("kept"))
        await dying.saved()
        await dying.kill()
        found = [await listener.expect(Publish) for _ in names]
        assert sorted(one.topic for one in found) == sorted(f"w/{name}" for name in names)
        await eventually(lambda: cluster.rows("select * from outbox") == [])
        await listener.nothing_more()
        assert ends(owner) == len(names)


async def test_a_will_in_the_outbox_is_appended_once_whoever_owns_the_shard_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fails(self: Outbox, shard: int, last: int) -> None:
        tried.append(shard)
        raise Unavailable("the database is away")

    async with BrokerCluster(tmp_path) as cluster:
        owner = await cluster.join("a")
        client = await owner.client("me", will=Will("w", b"gone", 1), expiry=0)
        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "take_off", fails)
            await client.drop()
            await eventually(lambda: tried)
            await owner.kill()
        assert len(cluster.rows("select * from outbox")) == 1
        successor = await cluster.join("b")
        successor.own(*range(SHARDS))
        await eventually(lambda: cluster.rows("select * from outbox") == [])
        assert ends(successor) == 1


async def test_a_session_that_was_let_go_of_expires_though_nobody_holds_it(tmp_path: Path) -> None:
    clock = [1_000_000_000_000_000]
    async with BrokerCluster(tmp_path, now_us=lambda: clock[0]) as cluster:
        owner, leaving = await cluster.join("a"), await cluster.join("b")
        will = Will("w", b"late", 1, properties=Properties(will_delay_interval=500))
        client = await leaving.client("me", will=will, expiry=1000)
        await client.subscribe("t")
        await client.drop()
        await eventually(lambda: not leaving.inside.connections)
        await leaving.stop()
        assert cluster.rows("select client_id from sessions") == [("me",)]
        clock[0] += 1_001_000_000
        await eventually(lambda: cluster.rows("select client_id from sessions") == [])
        await eventually(lambda: ends(owner) == 1)
        await eventually(lambda: cluster.rows("select * from outbox") == [])
        assert ends(owner) == 1


async def test_a_session_that_is_not_due_stays_with_nobody(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        owner, leaving = await cluster.join("a"), await cluster.join("b")
        await (await leaving.client("me")).leave()
        await (await leaving.client("dead", expiry=0)).leave()
        await leaving.stop()
        assert cluster.holders() == {"me": 0}
        await owner.client("other")
        assert cluster.holders()["me"] == 0


async def test_an_id_of_a_dead_broker_counts_if_its_message_has_arrived(tmp_path: Path) -> None:
    """The packet ids were stored before their messages were sent: of one of them nothing ever came."""
    async with BrokerCluster(tmp_path) as cluster:
        owner, dying = await cluster.join("a"), await cluster.join("b")
        client = await owner.client("me")
        client.send(Publish("t", b"once", qos=2, packet_id=7))
        await client.expect(Pubrec)
        await owner.saved()
        shard = next(number for number, one in enumerate(owner.log.shards) if one.committed)
        received = bytearray(8192)
        for packet_id in (7, 9):
            received[packet_id >> 3] |= 1 << (packet_id & 7)
        unsure = pack_unsure([(shard, 1, b"\x07\x00"), (shard, 2, b"\x09\x00")])
        await owner.kill()
        cluster.plain.execute(
            "update session_cursors set received = %b, unsure = %b where client = 'me'", (pack_ids(received), unsure)
        )
        dying.own(*range(SHARDS))
        third = await cluster.join("c")
        moved = await third.client("me")
        assert moved.connack.session_present
        assert cluster.rows("select final from message_origins where shard = %s", shard) == [(1,)]
        session = third.inside.wake("me")
        assert session is not None
        assert not session.unsure
        bits = session.received_bits
        assert bits is not None
        assert bits[7 >> 3] & 1 << 7, "its message has arrived: it is not taken again"
        assert not bits[9 >> 3] & 1 << (9 & 7), "its message never came: the client sends it again, and it is taken"


async def test_the_owner_of_a_shard_closes_a_dead_origin_for_others(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        owner, other = await cluster.join("a"), await cluster.join("b")
        await (await owner.client("publisher")).publish("t")
        shard = next(number for number, one in enumerate(owner.log.shards) if one.committed)
        received = bytearray(8192)
        received[0] = 0b0110
        unsure = pack_unsure([(shard, 1, b"\x01\x00"), (shard, 2, b"\x02\x00")])
        found = StoredSession(SessionRow("me"), (), Cursor(received=pack_ids(received), unsure=unsure))
        closing = OriginClosing(other.log, other.peers)
        proven = await closing.prove(found, owner.incarnation)  # as if it had died since, and another owned the shard
        received[0] = 0b0010
        assert proven.cursor.received == pack_ids(received)
        assert unpack_unsure(proven.cursor.unsure) == []
        with pytest.raises(Closed):
            owner.log.cluster_shards[shard].append_from(owner.incarnation, 2, MessageColumns(1), 0, 1, 0, TopicTable())
        owner.log.release([0, 1])
        with pytest.raises(Unavailable, match="no broker that can be reached owns shard"):
            await closing.prove(found, 77)
        closing.stop()
