"""What can happen to a cluster of brokers, to real processes: owners that hang and come back, batches that arrive late,
databases that fail over. A history of messages judges, and the bytes that each broker has stored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster_load import SessionPublisher, SessionSubscriber, until_acked, wait_until
from tests.cluster_processes import ClusterProcess, ProcessCluster
from tests.fault_proxy import FaultProxy
from tests.message_history import MessageHistory
from tests.postgres_server import ReplicatedServers
from tests.raw_client import Closed

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel

EXPIRY_S = 10_000
QUICK = ("cluster.patience=2s",)  # for a broker that hangs; the rest takes as long as it takes


@contextmanager
def linked_through_a_proxy(cluster: ProcessCluster, name: str) -> Iterator[tuple[ClusterProcess, FaultProxy]]:
    """Start a broker that later ones are linked with through a proxy."""
    port = free_port()
    with FaultProxy(port) as proxy:
        address = f"cluster.advertise=127.0.0.1:{proxy.port}"
        yield cluster.add(name, f"cluster.link=127.0.0.1:{port}", address), proxy


def topic_of(cluster: ProcessCluster, name: str) -> str:
    """Return a topic of a shard that a broker owns."""
    shard = next(shard for shard, owner in cluster.owners().items() if owner == name)
    return cluster.topics()[shard][0]


def test_a_batch_that_arrives_after_its_sender_was_replaced_is_there_once(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 3) as cluster, linked_through_a_proxy(cluster, "a") as (a, proxy):
        a.client("first").close()  # so that it joins before the others
        b, c = cluster.add("b"), cluster.add("c")
        cluster.until_spread(3)
        topic = topic_of(cluster, "a")
        subscriber = a.client("subscriber")
        subscriber.subscribe(topic, qos=2)
        client = b.client("me", clean_start=False, expiry=EXPIRY_S)
        client.publish(topic, b"before", 2)
        proxy.hold_at(b"only-once")
        client.send(Publish(topic, b"only-once", 2, packet_id=77))
        assert proxy.is_held.wait(60)
        b.kill()
        client = c.client("me", clean_start=False, expiry=EXPIRY_S)
        assert c.connack.session_present
        client.send(Publish(topic, b"only-once", 2, False, True, 77))
        assert client.expect(Pubrec).packet_id == 77
        proxy.go_on()  # now the owner gets what the dead broker had sent
        client.send(Pubrel(77))
        assert client.expect(Pubcomp).packet_id == 77
        client.publish(topic, b"behind", 1)
        assert subscriber.payloads(3) == ["before", "only-once", "behind"]
        cluster.until_spread(2)


def test_an_owner_that_hung_acknowledges_nothing_that_is_not_delivered(tmp_path: Path) -> None:
    """Its socket is full of messages when it goes on, and another has owned its shard since, with new subscribers."""
    history = MessageHistory()
    with ProcessCluster(tmp_path, 3, *QUICK) as cluster:
        a, b, c = (cluster.add(name) for name in "abc")
        cluster.until_spread(3)
        topic = topic_of(cluster, "a")
        early = a.client("early")
        early.publish(topic, history.sent("early", topic, 1, 1), 1)
        a.freeze()
        early.send(*[Publish(topic, history.sent("early", topic, n, 1), 1, packet_id=n) for n in range(2, 30)])
        cluster.until_spread(2)
        subscriber = SessionSubscriber("subscriber", [b, c], history)
        late = SessionPublisher("late", [c, b], history, [topic], 1)
        until_acked(history, 10)
        a.thaw()
        try:
            while True:
                answer = early.receive()
                if isinstance(answer, Puback):
                    history.acked("early", topic, answer.packet_id)
        except Closed:
            pass
        cluster.until_spread(3)  # it is back, as another incarnation
        until_acked(history, 10)
        late.end()
        subscriber.end()
        assert history.problems("subscriber") == []
        a.kill()
        assert cluster.copy_of("a")
        assert cluster.differences() == []


@pytest.mark.parametrize("how", ["cut", pytest.param("silent", marks=pytest.mark.soak)])
def test_a_link_that_is_cut_between_two_who_reach_a_third_holds_up_nobody(tmp_path: Path, how: str) -> None:
    history = MessageHistory()
    with ProcessCluster(tmp_path, 3) as cluster:
        b = cluster.add("b")
        b.client("first").close()  # so that it joins before the others, which reach it without the proxy
        with linked_through_a_proxy(cluster, "a") as (a, proxy):
            a.client("first").close()
            c = cluster.add("c")
            cluster.until_spread(3)
            claims = cluster.rows("select thing, owner, epoch from claims order by thing")
            there, back = topic_of(cluster, "a"), topic_of(cluster, "c")
            subscribers = [SessionSubscriber(f"at-{one.name}", [one], history) for one in (a, b, c)]
            publishers = [SessionPublisher(f"c{qos}", [c], history, [there], qos) for qos in (1, 2)]
            publishers += [SessionPublisher(f"a{qos}", [a], history, [back], qos) for qos in (1, 2)]
            until_acked(history, 40)
            if how == "cut":
                proxy.cut(refuse=True)
            else:
                proxy.hold()
            counts = [len(one.waits) for one in publishers]
            wait_until(
                lambda: all(len(one.waits) > count + 20 for one, count in zip(publishers, counts, strict=True)),
                "a publisher behind the cut gets no acks",
            )
            assert "over=b" in a.lines.read_text()
            mover = c.client("mover", clean_start=False, expiry=EXPIRY_S)
            mover.subscribe(there, qos=1)
            moved = a.client("mover", clean_start=False, expiry=EXPIRY_S)  # its holder is asked over the third
            assert a.connack.session_present
            moved.close()
            proxy.go_on()
            until_acked(history, 40)
            for publisher in publishers:
                publisher.end()
            for subscriber in subscribers:
                subscriber.end()
                assert history.problems(subscriber.name) == []
            assert cluster.rows("select thing, owner, epoch from claims order by thing") == claims
            for broker in cluster.brokers:
                broker.kill()
            assert cluster.differences() == []


@pytest.fixture
def pair() -> Iterator[ReplicatedServers]:
    made = ReplicatedServers()
    yield made
    made.stop()


def test_nothing_acknowledged_is_lost_when_the_primary_dies_in_a_wait_and_its_standby_takes_over(
    tmp_path: Path, pair: ReplicatedServers
) -> None:
    history = MessageHistory()
    hosts = f"127.0.0.1:{pair.primary.port},127.0.0.1:{pair.standby.port}"
    url = f"postgresql://{pair.primary.user}@{hosts}/postgres?target_session_attrs=read-write"
    with ProcessCluster(tmp_path, 2, url=url) as cluster:
        a, b = cluster.add("a"), cluster.add("b")
        cluster.until_spread(2)
        topics = [names[0] for names in cluster.topics().values()]
        subscriber = SessionSubscriber("subscriber", [b], history)
        publishers = [SessionPublisher(f"p{qos}", [a], history, topics, qos) for qos in (1, 2)]
        until_acked(history, 20)
        pair.standby.kill()
        pair.until_waiting()
        pair.primary.kill()
        pair.primary.start()
        pair.until_waiting()  # what is in doubt is settled by a write, which waits as well
        pair.primary.kill()
        pair.standby.start()
        pair.standby.promote()
        until_acked(history, 20)
        for publisher in publishers:
            publisher.end()
        subscriber.end()
        assert history.problems("subscriber") == []
        assert all(broker.process.poll() is None for broker in cluster.brokers)
        assert cluster.differences() == []
