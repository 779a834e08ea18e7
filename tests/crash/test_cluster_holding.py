"""Client ids of a cluster: each served by one broker, moved by asking its holder or by its death."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_brokers import BrokerCluster
from tests.restarts import Client, eventually

from everlog.broker import Security, set_password
from everlog.mqtt import Connack, Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason
from everlog.sessions import Changes


async def test_a_client_id_is_served_by_one_broker(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        one = await first.client("me")
        assert cluster.holders() == {"me": first.incarnation}
        other = await second.client("me")
        assert (await one.expect(Disconnect)).reason == Reason.SESSION_TAKEN_OVER
        assert cluster.holders() == {"me": second.incarnation}
        await eventually(lambda: "me" not in first.inside.sessions and "me" not in first.inside.asleep)
        await other.nothing_more()


async def test_a_session_moves_with_its_filters_and_what_it_is_owed(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        await client.subscribe("t/#")
        await client.leave()
        publisher = await first.client("publisher")
        for number in range(5):
            await publisher.publish(f"t/{number}", str(number).encode())
        moved = await second.client("me")
        assert moved.connack.session_present
        found = await moved.publishes(5)
        assert sorted(one.payload for one in found) == [b"0", b"1", b"2", b"3", b"4"]
        await publisher.publish("t/late", b"late")
        assert (await moved.expect(Publish)).payload == b"late"


async def test_a_session_of_a_dead_broker_goes_on_where_that_one_was(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        owner, dying, other = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        client = await dying.client("me")
        await client.subscribe("t")
        publisher = await owner.client("publisher")
        await publisher.publish("t", b"seen")
        seen = await client.expect(Publish)
        client.send(Puback(seen.packet_id))
        await client.nothing_more()
        await dying.saved()
        await dying.kill()
        await publisher.publish("t", b"missed")
        moved = await other.client("me")
        assert moved.connack.session_present
        assert (await moved.expect(Publish)).payload == b"missed"
        await moved.nothing_more()


async def test_a_session_of_a_holder_that_does_not_answer_is_never_taken(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        cluster.holding_options = {"wait_s": 2.5}  # longer than a question
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        first.peers.is_asleep = True
        refused = await second.client("me", answer=False)
        assert (await refused.expect(Connack)).reason == Reason.SERVER_UNAVAILABLE
        assert cluster.holders() == {"me": first.incarnation}
        await client.nothing_more()
        first.peers.is_asleep = False
        again = await second.client("me")
        assert again.connack.reason == 0
        assert cluster.holders() == {"me": second.incarnation}


async def test_who_waits_for_a_session_gets_it_when_its_holder_is_dead(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        cluster.holding_options = {"wait_s": 20.0}
        owner, dying, other = await cluster.join("a"), await cluster.join("b"), await cluster.join("c")
        await dying.client("me")
        dying.peers.is_asleep = True
        waits = await other.client("me", answer=False)
        await eventually(lambda: any(said[1] == dying.incarnation for said in cluster.links.said))
        await dying.kill()
        assert (await waits.expect(Connack)).reason == 0
        assert cluster.holders() == {"me": other.incarnation}
        assert owner.is_running


async def test_a_session_waits_until_the_log_here_has_what_it_was_sent(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        await client.subscribe("t", qos=2)
        await second.saved()
        second.stop_following()
        publisher = await first.client("publisher")
        for number in range(10):
            await publisher.publish("t", str(number).encode())
        for _ in range(10):
            got = await client.expect(Publish)
            client.send(Puback(got.packet_id))
        await client.nothing_more()
        waits = await second.client("me", answer=False)
        await eventually(lambda: cluster.holders().get("me") == second.incarnation)
        assert "me" not in second.inside.sessions
        assert "me" not in second.inside.asleep
        second.go_on_following()
        assert (await waits.expect(Connack)).session_present
        await waits.nothing_more()  # nothing is sent again


async def test_qos_2_both_ways_across_a_polite_move(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        await client.subscribe("t", qos=2)
        client.send(Publish("t", b"once", qos=2, packet_id=7))
        client_got = [await client.receive() for _ in range(2)]
        assert {type(one) for one in client_got} == {Pubrec, Publish}
        sent = next(one for one in client_got if isinstance(one, Publish))
        client.send(Pubrec(sent.packet_id))
        await client.expect(Pubrel)
        moved = await second.client("me")
        assert (await moved.expect(Pubrel)).packet_id == sent.packet_id
        moved.send(Pubcomp(sent.packet_id), Pubrel(7))
        assert (await moved.expect(Pubcomp)).packet_id == 7
        await moved.nothing_more()
        assert sum(shard.committed for shard in second.log.shards) == 1


async def test_a_clean_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        node = await cluster.join("a")
        clients = [await node.client(f"clean-{number}", clean=True, expiry=0) for number in range(20)]
        assert len(cluster.holders()) == 20
        for client in clients:
            await client.leave()
        await eventually(lambda: not cluster.holders())
        await eventually(lambda: not node.holding.held)


async def test_another_users_session_is_refused_before_its_holder_is_asked(tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    set_password(users, "ann", b"a")
    set_password(users, "bob", b"b")
    async with BrokerCluster(tmp_path, security=Security(password_file=users)) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me", user_name="ann", password=b"a")
        refused = await second.client("me", user_name="bob", password=b"b", answer=False)
        assert (await refused.expect(Connack)).reason == Reason.NOT_AUTHORIZED
        assert not cluster.links.said
        await client.nothing_more()


async def test_refused_rows_close_the_connection_and_what_waited_does_not_leave(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        client = await first.client("me")
        await first.saved()
        cluster.plain.execute("update sessions set holder = %s where client_id = 'me'", (second.incarnation,))
        with pytest.raises(AssertionError, match=r"SESSION_TAKEN_OVER|142"):
            await client.subscribe("t")
        await eventually(lambda: "me" not in first.inside.sessions and "me" not in first.inside.asleep)
        assert not first.overruled
        assert cluster.holders() == {"me": second.incarnation}


async def test_an_overruled_broker_tells_that_it_is_over(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        node = await cluster.join("a")
        await node.client("me")
        cluster.declare_dead(node.incarnation)
        await node.client("other", answer=False)
        await eventually(lambda: node.overruled)


async def test_claims_of_many_clients_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        dying, other = await cluster.join("a"), await cluster.join("b")
        names = [f"c-{number}" for number in range(300)]
        await asyncio.gather(*(dying.client(name) for name in names))
        await dying.saved()
        await dying.kill()
        other.own(0, 1)
        claims: list[int] = []
        claim = other.claims.claim

        def counted(claimants: Any, ends: Any) -> Any:
            claims.append(len(claimants))
            return claim(claimants, ends)

        monkeypatch.setattr(other.claims, "claim", counted)
        clients: list[Client] = await asyncio.gather(*(other.client(name) for name in names))
        assert all(client.connack.session_present for client in clients)
        assert sum(claims) == 300
        assert len(claims) < 150


async def test_a_claim_whose_answer_was_lost_is_let_go_when_another_asks(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path) as cluster:
        first, second = await cluster.join("a"), await cluster.join("b")
        first.tables.apply(Changes())
        cluster.plain.execute(
            "insert into sessions (client, client_id, holder, is_kept, version, expiry_s, away_us) "
            "values ('me', 'me', %s, false, 4, 0, 0)",
            (first.incarnation,),
        )
        client = await second.client("me")
        assert client.connack.reason == 0
        assert cluster.holders() == {"me": second.incarnation}
