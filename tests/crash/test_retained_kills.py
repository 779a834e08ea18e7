"""A real broker is stopped and killed: what was acknowledged is retained, and durable subscribers get all of it."""

import asyncio
import socket
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.crash.persistent_clients import WINDOW, Publisher, Sent, Subscriber, connected
from tests.crash.test_broker_kills import until
from tests.raw_client import RawClient

from everlog.mqtt import PacketType, Pingreq, Puback, Publish


class Retainer(Publisher):
    """Publishes a retained message to each of its topics."""

    def _fill(self) -> None:
        self.stopped = self.count >= len(self.topics)
        super()._fill()

    def _publish(self, packet_id: int, sent: Sent, dup: bool) -> Publish:
        payload = f"{self.client_id} {sent.number}".encode()
        return Publish(sent.topic, payload, qos=self.qos, packet_id=packet_id, retain=True, dup=dup)


async def come_again_and_again(served: BrokerProcess, subscriber: Subscriber, count: int, ends: list[str]) -> None:
    """Have the broker end in these ways, the first time with the SUBACK, then whenever some more has come."""
    retainer = Retainer("r", subscriber.qos, [f"r/{number}" for number in range(count)])
    async with connected([retainer], served.port):
        await until(lambda: retainer.is_done, [retainer], "retained")
    async with connected([subscriber], served.port):
        await until(subscriber.is_subscribed.is_set, [subscriber], "subscribed")
        for number, end in enumerate(ends, 1):
            (served.kill if end == "kill" else served.stop)()
            await until(lambda: not subscriber.connected, [subscriber], "not connected")
            served.start()
            await until(lambda: subscriber.connected, [subscriber], "connected")
            some = number * count // (len(ends) + 1)
            await until(lambda some=some: len(subscriber.distinct) >= some, [subscriber], "some of it")  # type: ignore[misc]

        def is_done() -> bool:
            subscriber.acknowledge()
            return len(subscriber.distinct) == count

        await until(is_done, [subscriber], "everything", lambda: len(subscriber.seen), subscriber.state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("qos", "sync_ms", "count", "ends"),
    [
        (1, 0, 3 * WINDOW, ["kill", "stop"]),
        (2, 0, 3 * WINDOW, ["stop", "kill"]),
        (1, 40, 2 * WINDOW, ["kill", "stop"]),
        (2, 40, 2 * WINDOW, ["kill", "stop"]),
        pytest.param(1, 400, WINDOW + 5, ["kill"], marks=pytest.mark.soak),
        pytest.param(2, 400, WINDOW + 5, ["kill", "stop"], marks=pytest.mark.soak),
    ],
)
def test_retained_messages_owed_to_a_durable_session_survive_restarts(
    tmp_path: Path, qos: int, sync_ms: int, count: int, ends: list[str]
) -> None:
    subscriber = Subscriber("s", "r/#", qos, Random(qos + sync_ms))
    with BrokerProcess(tmp_path, sync_ms=sync_ms) as served:
        asyncio.run(come_again_and_again(served, subscriber, count, ends))
    assert not subscriber.forgotten
    assert subscriber.distinct == {("r", number) for number in range(count)}
    if qos == 2:
        assert max(Counter(message.number for message in subscriber.seen).values()) == 1


def client_of(served: BrokerProcess) -> RawClient:
    """Connect to a broker that may still be starting."""
    until_s = time.monotonic() + PATIENCE_S
    while not listens(served.port):
        assert time.monotonic() < until_s, "the broker does not start"
        time.sleep(0.05)
    client = RawClient(served.port)
    client.connect("c")
    return client


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def retained_of(served: BrokerProcess) -> dict[str, bytes]:
    """Return all retained messages."""
    with client_of(served) as client:
        client.subscribe("r/#", qos=0)
        client.send(Pingreq())
        found = {}
        while (packet := client.receive()).type is not PacketType.PINGRESP:
            assert isinstance(packet, Publish)
            found[packet.topic] = packet.payload
    return found


def operation(random: Random, number: int) -> tuple[str, bytes]:
    """Return a topic and what is retained there, or nothing to delete it."""
    place = random.randrange(60)
    topic = f"r/{'odd' if place % 2 else 'even'}/{place}"
    return topic, random.choice([b"", b"%d" % number, b"longer %d" % number])


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["r/#", "r/even/#"])  # the rest is in the tables alone
def test_acknowledged_messages_are_retained_after_kills(tmp_path: Path, kept: str) -> None:
    random = Random(kept)
    acked: dict[str, bytes] = {}
    with BrokerProcess(tmp_path, "--keep", kept) as served:
        for _ in range(2):
            unsure: dict[str, set[bytes]] = {}
            with client_of(served) as client:
                sent = [operation(random, number) for number in range(400)]
                client.send(*(Publish(topic, text, 1, True, packet_id=k + 1) for k, (topic, text) in enumerate(sent)))
                some = random.randrange(50, 400)
                for topic, text in sent[:some]:
                    client.expect(Puback)
                    acked[topic] = text
                served.kill()
                for topic, text in sent[some:]:
                    unsure.setdefault(topic, set()).add(text)
            served.start()
            found = retained_of(served)
            for topic in {*acked, *unsure, *found}:
                assert found.get(topic, b"") in {acked.get(topic, b""), *unsure.get(topic, ())}
            acked = found
