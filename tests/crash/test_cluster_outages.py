"""A cluster of brokers through longer troubles, in real processes: each is a soak, judged by a history of messages.

Times are printed, for docs/explanation/scale.md, and never asserted.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.cluster_load import SessionPublisher, SessionSubscriber, until_acked, wait_until
from tests.cluster_processes import ClusterProcess, ProcessCluster
from tests.crash.test_cluster_faults import EXPIRY_S, QUICK, linked_through_a_proxy, topic_of
from tests.fault_proxy import FaultProxy
from tests.message_history import MessageHistory
from tests.postgres_server import PostgresServer, shared_server
from tests.raw_client import Closed, RawClient

from everlog.bench.load.usage import cpu_of
from everlog.mqtt import Connect, Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel, encode

pytestmark = pytest.mark.soak


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = PostgresServer("fsync=off")
    yield made
    made.stop()


def all_topics(cluster: ProcessCluster) -> list[str]:
    """Return a topic of each shard."""
    return [names[0] for names in cluster.topics().values()]


def ended(history: MessageHistory, publishers: list[SessionPublisher], *subscribers: SessionSubscriber) -> None:
    """End all clients, and look at what they have noted."""
    for publisher in publishers:
        publisher.end()
    for subscriber in subscribers:
        subscriber.end()
        assert history.problems(subscriber.name) == []


def until_longer(publishers: list[SessionPublisher], counts: list[int]) -> None:
    """Wait until each publisher has 200 more answers than it had."""
    wait_until(
        lambda: all(len(one.waits) >= count + 200 for one, count in zip(publishers, counts, strict=True)),
        "a publisher gets no answers",
    )


def told(what: str, seconds: list[float]) -> None:
    """Print how long something took."""
    print(
        f"\n{what}: {statistics.median(seconds):.2f} s at the median, {max(seconds):.2f} s at most, of {len(seconds)}"
    )


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_shards_and_sessions_go_on_elsewhere_when_a_broker_is_gone(tmp_path: Path, fault: str) -> None:
    history = MessageHistory()
    served: list[float] = []
    resumed: list[float] = []
    with ProcessCluster(tmp_path, 6) as cluster:
        a, b, c = (cluster.add(name) for name in "abc")
        cluster.until_spread(3)
        topics = all_topics(cluster)
        subscriber = SessionSubscriber("subscriber", [a], history)
        mover = SessionSubscriber("mover", [b, c], history)
        publishers = [SessionPublisher(f"p{shard}", [a], history, [topic], 1) for shard, topic in enumerate(topics)]
        for number in range(5):
            until_acked(history, 100)
            moves, counts = len(mover.moves), [len(one.waits) for one in publishers]
            began = time.monotonic()
            if fault == "kill":
                b.kill()
            else:
                b.freeze()
                mover.move()
            wait_until(lambda moves=moves: len(mover.moves) > moves, "the session does not go on")
            resumed.append(time.monotonic() - began)
            wait_until(
                lambda counts=counts: all(
                    len(one.waits) > count + 5 for one, count in zip(publishers, counts, strict=True)
                ),
                "a shard is served no more",
            )
            served.append(max(max(one.waits[count:]) for one, count in zip(publishers, counts, strict=True)))
            if fault == "kill":
                b.start()
            else:
                b.thaw()
            cluster.until_spread(3)
            if number < 4:
                mover.move()
                wait_until(lambda: mover.at is b, "the session does not come back")
        ended(history, publishers, mover, subscriber)
    told(f"{fault}: a session goes on elsewhere", resumed)
    told(f"{fault}: all shards are served", served)


def test_a_session_that_moves_to_a_broker_that_is_behind_gets_nothing_again(tmp_path: Path) -> None:
    with (
        ProcessCluster(tmp_path, 2, "cluster.patience=20s") as cluster,
        linked_through_a_proxy(cluster, "a") as (a, proxy),
    ):
        a.client("first").close()
        b = cluster.add("b")
        cluster.until_spread(2)
        topic = topic_of(cluster, "a")
        publisher = a.client("publisher")
        client = a.client("me", clean_start=False, expiry=EXPIRY_S)
        client.subscribe(topic, qos=2)
        proxy.delay_s = 3.0
        for number in range(50):
            publisher.publish(topic, str(number), 2)
        assert client.payloads(50) == [str(number) for number in range(50)]
        client.send(Publish(topic, b"mine", 2, packet_id=9))
        client.close()
        moved = b.client("me", clean_start=False, expiry=EXPIRY_S)
        assert b.connack.session_present
        moved.send(Publish(topic, b"mine", 2, False, True, 9))
        publisher.publish(topic, b"behind", 1)
        got: list[bytes] = []
        while len(got) < 2:
            packet = moved.receive()
            if isinstance(packet, Publish):
                got.append(packet.payload)
                moved.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                moved.send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Pubrec):
                moved.send(Pubrel(packet.packet_id))
        assert sorted(got) == [b"behind", b"mine"]


def test_acks_of_other_shards_go_on_while_one_owner_hangs(tmp_path: Path) -> None:
    history = MessageHistory()
    with ProcessCluster(tmp_path, 8, "cluster.patience=60s") as cluster:
        a, b = cluster.add("a"), cluster.add("b")
        cluster.until_spread(2)
        owners, topics = cluster.owners(), cluster.topics()
        mine = [topics[shard][0] for shard, owner in owners.items() if owner == "a"]
        theirs = [topics[shard][0] for shard, owner in owners.items() if owner == "b"]
        subscriber = SessionSubscriber("subscriber", [a], history)
        stuck = SessionPublisher("stuck", [a], history, theirs, 1)
        going = [SessionPublisher(f"going{number}", [a], history, mine, 1) for number in range(3)]
        until_longer(going, [0] * len(going))
        before = [len(one.waits) for one in going]
        b.freeze()
        blocked = len(stuck.waits)
        until_longer(going, before)
        assert len(stuck.waits) <= blocked + 3  # what was on its way; its shards have no owner that answers
        for when, at in (("before", [0] * len(going)), ("while", before)):
            waits = sorted(
                wait for one, count in zip(going, at, strict=True) for wait in one.waits[count : count + 200]
            )
            print(f"\nacks {when} the owner of another shard hangs: p99 {1e3 * waits[int(0.99 * len(waits))]:.1f} ms")
        b.thaw()
        ended(history, [stuck, *going], subscriber)


@pytest.mark.parametrize("fault", ["down", "frozen"])
def test_a_database_that_is_away_for_long_makes_all_wait_and_nobody_is_replaced(
    tmp_path: Path, server: PostgresServer, fault: str
) -> None:
    history = MessageHistory()
    with ProcessCluster(tmp_path, 4, url=server.url) as cluster:
        brokers = [cluster.add(name) for name in "abc"]
        cluster.until_spread(3)
        subscriber = SessionSubscriber("subscriber", brokers, history)
        publishers = [
            SessionPublisher(f"p{n}", [brokers[n]], history, all_topics(cluster), 1 + n % 2) for n in range(3)
        ]
        until_acked(history, 100)
        state = "select thing, owner, epoch from claims order by thing"
        before = cluster.rows(state)
        if fault == "down":
            server.kill()
        else:
            server.freeze()
        time.sleep(40)  # the outage itself
        if fault == "down":
            server.start()
        else:
            server.thaw()
        counts = [len(one.waits) for one in publishers]
        wait_until(
            lambda: all(len(one.waits) > count + 20 for one, count in zip(publishers, counts, strict=True)),
            "a publisher does not go on",
        )
        assert cluster.rows(state) == before
        ended(history, publishers, subscriber)


def test_a_broker_whose_commits_hang_while_it_beats_is_replaced_and_comes_back(tmp_path: Path) -> None:
    history = MessageHistory()
    with ProcessCluster(tmp_path, 4, *QUICK) as cluster, FaultProxy(shared_server().port) as proxy:
        url = cluster.url.replace(f":{shared_server().port}/", f":{proxy.port}/")
        cluster.add("a", url=url)
        b = cluster.add("b")
        cluster.until_spread(2)
        subscriber = SessionSubscriber("subscriber", [b], history)
        publishers = [SessionPublisher(f"p{qos}", [b], history, all_topics(cluster), qos) for qos in (1, 2)]
        until_acked(history, 50)
        incarnations = "select number from incarnations where is_alive and name = 'a'"
        before = cluster.rows(incarnations)
        began = time.monotonic()
        proxy.hold_at(b"p1 t/", both=True)  # the next commit of the owner, and its answer
        assert proxy.is_held.wait(60)
        until_acked(history, 200)
        print(f"\na broker whose commits hang: all goes on after {time.monotonic() - began:.1f} s")
        cluster.until_spread(2)
        assert cluster.rows(incarnations) != before
        until_acked(history, 50)
        ended(history, publishers, subscriber)


def test_a_bucket_that_is_away_leaves_the_database_bounded(tmp_path: Path) -> None:
    limit = 1 << 20
    with ProcessCluster(tmp_path, 1, f"cluster.tail_bytes={limit}", "log.segment_bytes=200kB") as cluster:
        broker = cluster.add("a")
        publisher = broker.client("publisher")
        publisher.publish("t", "first", 1)
        away = cluster.bucket.with_suffix(".away")
        cluster.bucket.rename(away)
        cluster.bucket.write_bytes(b"no directory")
        payload = Random(1).randbytes(16_000)
        answered: list[bool] = []

        def publish() -> None:
            for _ in range(400):
                answered.append(not publisher.publish("t", payload, 1).is_error)

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        wait_until(lambda: "not in the bucket" in broker.lines.read_text(), "the limit is not told")
        size = "select sum(pg_total_relation_size(oid)) from pg_class where starts_with(relname, 'message_tail') "
        size += "and relkind = 'r' and relnamespace = %s::regnamespace"
        found = int(cluster.rows(size, cluster.schema)[0][0])
        print(f"\na bucket that is away: {len(answered)} of 400 answered, {found >> 10} KiB in the database")
        assert len(answered) < 400
        assert found < 3 * limit
        cluster.bucket.unlink()
        away.rename(cluster.bucket)
        publishing.join(100)
        assert answered == [True] * 400


def test_a_client_id_at_two_brokers_in_a_loop_is_served_by_one(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 2) as cluster:
        a, b = cluster.add("a"), cluster.add("b")
        cluster.until_spread(2)
        before: RawClient | None = None
        for number in range(14):
            broker = (a, b)[number % 2]
            client = broker.client("me", clean_start=number == 0, expiry=EXPIRY_S)
            assert broker.connack.session_present == (number > 0)
            if before is not None:
                with pytest.raises((Closed, AssertionError, OSError)):
                    before.publish("t", "too late", 1)  # who was thrown out is told nothing but that
            assert not client.publish("t", str(number), 1 + number % 2).is_error
            before = client
        reader = a.client("reader")
        reader.subscribe("none")
        texts = b"".join(cluster.contents().values())
        assert b"too late" not in texts


async def crowd(ports: list[int], names: list[str]) -> list[float]:
    """Connect durable clients, those that are refused again; return how long each took from the first attempt on."""
    took: list[float] = []
    began = time.monotonic()
    turn = asyncio.Semaphore(500)

    async def one(number: int) -> None:
        packet = encode(Connect(5, names[number], False, 0, properties=Properties(session_expiry_interval=9999)), 5)
        port = ports[number % len(ports)]
        while True:
            async with turn:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(packet)
                    head = await reader.readexactly(4)
                except (OSError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.05)
                    continue
            if head[3] == 0:
                took.append(time.monotonic() - began)
                kept.append(writer)
                return
            writer.close()
            await asyncio.sleep(0.05)

    kept: list[asyncio.StreamWriter] = []
    await asyncio.gather(*map(one, range(len(names))))
    for writer in kept:
        writer.transport.abort()
    return took


def test_ten_thousand_sessions_go_on_elsewhere(tmp_path: Path) -> None:
    names = [f"device-{number}" for number in range(10_000)]
    with ProcessCluster(tmp_path, 6, "limits.connects_per_second=1000000") as cluster:
        a, b, c = (cluster.add(name) for name in "abc")
        cluster.until_spread(3)
        asyncio.run(crowd([b.port], names))
        wait_until(lambda: cluster.rows("select count(*) from sessions") == [(len(names),)], "not all are stored")
        b.kill()
        before, began = [cpu_of(one.process.pid) for one in (a, c)], time.process_time()
        took = asyncio.run(crowd([a.port, c.port], names))
        told("10,000 sessions of a broker that was killed", took)
        spent = [cpu_of(one.process.pid) - cpu for one, cpu in zip((a, c), before, strict=True)]
        clients = time.process_time() - began
        print(f"CPU of the two brokers {spent[0]:.1f} and {spent[1]:.1f} s, of the clients {clients:.1f} s")


@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_faults(tmp_path: Path, seed: int) -> None:
    """Brokers are killed, frozen, drained, and started again, clients move, and the database restarts."""
    random = Random(seed)
    history = MessageHistory()
    server = PostgresServer("fsync=off")
    try:
        with ProcessCluster(tmp_path, 5, *QUICK, url=server.url) as cluster:
            brokers = [cluster.add(name) for name in "abc"]
            cluster.until_spread(3)
            topics = all_topics(cluster)
            subscribers = [SessionSubscriber(f"s{number}", brokers[number:] + brokers, history) for number in range(2)]
            publishers = [
                SessionPublisher(f"p{qos}{number}", brokers[number:] + brokers, history, topics, qos)
                for qos in (1, 2)
                for number in range(3)
            ]
            for _ in range(8):
                until_acked(history, 60)
                play(random, cluster, server, random.choice(brokers), [*subscribers, *publishers])
            ended(history, publishers, *subscribers)
            for broker in brokers:
                broker.kill()
            assert cluster.differences() == []
    finally:
        server.stop()


def play(
    random: Random,
    cluster: ProcessCluster,
    server: PostgresServer,
    broker: ClusterProcess,
    clients: list[SessionSubscriber | SessionPublisher],
) -> None:
    """Let something happen, and go on when all brokers are back."""
    fault = random.choice(["kill", "freeze", "drain", "database", "move"])
    print(f"{fault} {broker.name}", flush=True)
    if fault == "kill":
        broker.kill()
        cluster.until_spread(2)
        broker.start()
    elif fault == "freeze":
        broker.freeze()
        for client in clients:
            if client.at is broker:
                client.move()
        cluster.until_spread(2)
        broker.thaw()
    elif fault == "drain":
        broker.drain()
        broker.start()
    elif fault == "database":
        server.kill()
        server.start()
    else:
        for client in random.sample(clients, 3):
            client.move()
    cluster.until_spread(3)
