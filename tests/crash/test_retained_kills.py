"""A durable subscriber is owed retained messages while a real broker is stopped and killed: all of them come."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import BrokerProcess
from tests.crash.persistent_clients import WINDOW, Publisher, Sent, Subscriber, connected
from tests.crash.test_broker_kills import until

from everlog.mqtt import Publish


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
        (1, 400, WINDOW + 5, ["kill"]),
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
