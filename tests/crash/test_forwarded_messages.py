"""Messages of clients at one broker for a shard that another owns, which is lost, let go of, or not there yet."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.fault_proxy import FaultProxy
from tests.linked_brokers import WAIT_S, BrokerCluster
from tests.messages import to_columns
from tests.raw_client import RawClient

from everlog.base import TopicTable
from everlog.broker.delivery.pending_acks import AckQueue, PendingAcks
from everlog.cluster import LinkKind
from everlog.mqtt import Puback, Publish, Pubrec, Pubrel, Reason, Suback, Subscribe, Subscription

pytestmark = pytest.mark.slow


def client(port: int, client_id: str, deadline_s: float = WAIT_S) -> RawClient:
    made = RawClient(port, 5, deadline_s=deadline_s)
    made.connect(client_id)
    return made


def test_a_message_reaches_the_subscribers_of_all_brokers_in_order(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 3, shards=2) as cluster:
        a, b, c = cluster.brokers
        cluster.own(a, 0)
        cluster.own(b, 1)
        with client(c.port, "p") as publisher, client(b.port, "s") as there, client(c.port, "t") as here:
            there.subscribe("#", qos=1)
            here.subscribe("#", qos=1)
            for number in range(40):
                publisher.publish(f"t/{number % 4}", str(number), qos=1)
            for subscriber in (there, here):
                got = [(one.topic, int(one.payload)) for one in (subscriber.message() for _ in range(40))]
                assert sorted(number for _, number in got) == list(range(40))
                for topic in {topic for topic, _ in got}:
                    numbers = [number for one, number in got if one == topic]
                    assert numbers == sorted(numbers)


def test_nothing_acknowledged_is_lost_or_doubled_when_the_owner_is_lost_in_the_middle(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 3) as cluster:
        a, b, c = cluster.brokers
        cluster.own(a)
        with client(b.port, "p") as publisher, client(c.port, "s") as subscriber:
            subscriber.subscribe("t", qos=2)
            publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n) for n in range(1, 51)])
            acked = [publisher.expect(Pubrec).packet_id for _ in range(10)]
            a.kill()
            publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n) for n in range(51, 101)])
            cluster.own(b)
            acked += [publisher.expect(Pubrec).packet_id for _ in range(90)]
            assert acked == list(range(1, 101))
            publisher.send(*[Pubrel(n) for n in range(1, 101)])
            assert subscriber.payloads(100) == [str(n) for n in range(1, 101)]
            subscriber.expect_nothing()
        assert b.log.shards[0].committed == 100
        assert (b.forwarder.numbers, b.forwarder.confirmed) == ([100], [100])


def publish_beside_a_shard_without_owner(folder: Path, deadline_s: float, **mutant: Any) -> None:
    """Publish to a shard that nobody owns, and then to another, which is to go on within a time."""
    with BrokerCluster(folder, 2, shards=2) as cluster:
        a, b = cluster.brokers
        for name, value in mutant.items():
            b.call(lambda name=name, value=value: setattr(b.broker.router, name, value))
        cluster.own(b, 1)
        topics = {b.log.shard_of(b"t/%d" % n): f"t/{n}" for n in range(20)}
        with client(b.port, "p") as waiting, client(b.port, "q", deadline_s) as going:
            waiting.send(*[Publish(topics[0], b"%d" % n, 1, packet_id=n) for n in range(1, 6)])
            b.until(lambda: b.forwarder.numbers[0] == 5)
            going.publish(topics[1], "x", qos=1)
            waiting.expect_nothing()
            cluster.own(a, 0)
            assert [waiting.expect(Puback).packet_id for _ in range(5)] == [1, 2, 3, 4, 5]


def test_messages_wait_while_nobody_owns_the_shard_and_others_go_on(tmp_path: Path) -> None:
    publish_beside_a_shard_without_owner(tmp_path, WAIT_S)


class OneQueue(PendingAcks):
    """M18: acks of all shards and connections leave in one order."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self.order: deque[tuple[int, int]] = deque()
        self.reached: dict[int, int] = {}

    def wait(self, queue: AckQueue, acks: bytes, pubacks: int, positions: list[tuple[int, int]]) -> None:
        super().wait(queue, acks, pubacks, positions)
        self.order.extend(positions)

    def committed(self, shard: int, end: int) -> None:
        self.reached[shard] = max(end, self.reached.get(shard, 0))
        while self.order and self.order[0][1] <= self.reached.get(self.order[0][0], 0):
            super().committed(*self.order.popleft())


def test_m18_one_queue_of_acks_over_all_shards_is_caught(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        publish_beside_a_shard_without_owner(tmp_path, 3.0, pending=OneQueue(4))


def test_a_shard_that_is_let_go_of_goes_on_elsewhere_with_the_next_number(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        with client(a.port, "p") as publisher, client(b.port, "s") as subscriber:
            subscriber.subscribe("t", qos=1)
            publisher.publish("t", "1", qos=1)
            a.let_go(0)
            publisher.send(Publish("t", b"2", 1, packet_id=2))
            publisher.expect_nothing()
            cluster.own(b)
            assert publisher.expect(Puback).packet_id == 2
            b.let_go(0)
            cluster.own(a)
            publisher.publish("t", "3", qos=1)
            assert subscriber.payloads(3) == ["1", "2", "3"]
            subscriber.expect_nothing()
        assert a.forwarder.numbers == [3]
        assert a.call(lambda: a.log.cluster_shards[0].last_number(a.incarnation)) == 3


def test_what_was_sent_over_a_link_that_is_cut_is_sent_again_once(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        with client(b.port, "p") as publisher, client(a.port, "s") as subscriber:
            subscriber.subscribe("t", qos=2)
            for turn in range(3):
                first = turn * 20 + 1
                publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n) for n in range(first, first + 20)])
                a.call(lambda: [link.close() for link in list(a.links._connections)])
            assert [publisher.expect(Pubrec).packet_id for _ in range(60)] == list(range(1, 61))
            assert subscriber.payloads(60) == [str(n) for n in range(1, 61)]
            subscriber.expect_nothing()


def test_retained_messages_are_the_same_on_all_brokers_and_no_local_holds_for_what_was_forwarded(
    tmp_path: Path,
) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        with client(b.port, "p") as publisher, client(a.port, "s") as subscriber:
            publisher.subscribe(Subscription("t", 1, no_local=True))
            publisher.publish("t", "old", qos=1, retain=True)
            publisher.publish("t", "new", qos=1, retain=True)
            publisher.publish("t", "end", qos=1)
            subscriber.subscribe("t", qos=1)
            assert subscriber.message().payload == b"new"
            b.until(lambda: b.broker.router.routed == [3])
            publisher.expect_nothing()
            with client(b.port, "r") as late:
                late.subscribe("t", qos=1)
                assert late.message().payload == b"new"
                subscriber.publish("t", "more", qos=1)
                assert [late.message().payload, publisher.message().payload] == [b"more", b"more"]


def test_a_shard_that_could_not_be_let_go_of_takes_what_came_meanwhile(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        with client(a.port, "p") as publisher, client(b.port, "q") as other:
            publisher.publish("t", "1", qos=1)
            a.run(a.forwarder.let_go(0))
            publisher.send(Publish("t", b"2", 1, packet_id=2))
            other.send(Publish("t", b"other", 1, packet_id=1))
            publisher.expect_nothing()
            other.expect_nothing()
            a.call(lambda: a.forwarder.kept(0))
            assert publisher.expect(Puback).packet_id == 2
            assert other.expect(Puback).packet_id == 1
        assert (a.log.shards[0].committed, a.forwarder.confirmed) == (3, [2])


def test_what_the_lost_owner_had_committed_without_saying_so_is_not_appended_again(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        say = a.links.send
        a.links.send = lambda who, kind, number, body: (  # type: ignore[method-assign]
            kind != LinkKind.CONFIRM and say(who, kind, number, body)
        )
        with client(b.port, "p") as publisher:
            publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 11)])
            b.until(lambda: b.log.shards[0].committed == 10)
            publisher.expect_nothing()
            a.kill()
            publisher.send(Publish("t", b"11", 1, packet_id=11))
            cluster.own(b)
            assert [publisher.expect(Puback).packet_id for _ in range(11)] == list(range(1, 12))
        assert b.log.shards[0].committed == 11


def test_of_a_batch_that_the_shard_has_a_part_of_the_rest_is_appended(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        a.call(lambda: a.forwarder._intake.let_go(0))  # what b sends is not taken
        table = TopicTable()
        part = to_columns([(b"t", 2, b"", b"%d" % n) for n in (1, 2)], table)
        with client(b.port, "p") as publisher, client(b.port, "s") as subscriber:
            subscriber.subscribe("t", qos=1)
            publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 6)])
            publisher.expect_nothing()
            a.call(lambda: a.log.cluster_shards[0].append_from(b.incarnation, 1, part, 0, 2, 1, table))
            a.call(a.broker.router.ask_turn)
            b.until(lambda: b.log.shards[0].committed == 2)
            a.kill()
            cluster.own(b)
            assert [publisher.expect(Puback).packet_id for _ in range(5)] == [1, 2, 3, 4, 5]
            assert subscriber.payloads(5) == ["1", "2", "3", "4", "5"]


def test_what_nothing_keeps_reaches_the_clients_of_other_brokers_and_sys_topics_do_not(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 2) as cluster:
        a, b = cluster.brokers
        cluster.own(a)
        with client(a.port, "s") as subscriber, client(b.port, "p") as publisher:
            subscriber.subscribe("free/#", "$SYS/#")
            b.call(lambda: b.broker.router.send(Publish("$SYS/own", b"hidden", 0)))
            publisher.publish("free/t", "seen", qos=0)
            assert subscriber.message().payload == b"seen"
            subscriber.expect_nothing()
        assert a.log.shards[0].committed == 0


def test_shared_groups_are_refused_since_each_broker_would_deal_its_own_members_everything(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, 1) as cluster, client(cluster.brokers[0].port, "s") as subscriber:
        subscriber.send(Subscribe(1, (Subscription("$share/g/t", 1), Subscription("t", 1))))
        assert tuple(subscriber.expect(Suback).reasons) == (Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, 1)


def test_messages_take_a_way_around_a_link_that_is_cut_and_are_there_once_and_in_order(tmp_path: Path) -> None:
    cluster = BrokerCluster(tmp_path, 3, shards=2)
    cluster.ways = {3: {}}  # they meet when the proxy is there
    with cluster:
        a, b, c = cluster.brokers
        with FaultProxy(a.links.address) as proxy:
            cluster.ways = {3: {1: proxy.address}}
            cluster.meet()
            cluster.own(a, 0)
            cluster.own(c, 1)
            topics = {a.log.shard_of(b"t/%d" % n): f"t/{n}" for n in range(20)}
            with client(c.port, "p") as forth, client(a.port, "q") as back, client(b.port, "s") as subscriber:
                subscriber.subscribe("#", qos=2)
                for turn in range(6):
                    first = turn * 20 + 1
                    if turn == 1:
                        proxy.cut(refuse=True)
                    elif turn == 3:
                        proxy.go_on()
                    elif turn == 4:
                        proxy.cut()
                    forth.send(*[Publish(topics[0], b"%d" % n, 2, packet_id=n) for n in range(first, first + 20)])
                    back.send(*[Publish(topics[1], b"%d" % n, 1, packet_id=n) for n in range(first, first + 20)])
                    assert [forth.expect(Pubrec).packet_id for _ in range(20)] == list(range(first, first + 20))
                    assert [back.expect(Puback).packet_id for _ in range(20)] == list(range(first, first + 20))
                    if turn == 1:
                        assert (a.links.relayed, b.links.relayed, c.links.relayed) == (1, 0, 1)
                got = [subscriber.message() for _ in range(240)]
                for topic in (topics[0], topics[1]):
                    numbers = [int(one.payload) for one in got if one.topic == topic]
                    assert numbers == list(range(1, 121))
                subscriber.expect_nothing()
            assert [a.log.shards[0].committed, c.log.shards[1].committed] == [120, 120]
            proxy.go_on()
