"""A slow disk commits more at once than a read of the log gives at once: who is connected gets all of it."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import BrokerProcess
from tests.crash.persistent_clients import WINDOW, Publisher, Sent, Subscriber, connected
from tests.crash.test_broker_kills import until

from everlog.mqtt import Publish

NAME = "p" * 200_000  # of a publisher, in each of its messages


class Writer(Publisher):
    """Publishes two windows of large messages."""

    def _fill(self) -> None:
        self.stopped = self.count >= 2 * WINDOW
        super()._fill()

    def _publish(self, packet_id: int, sent: Sent, dup: bool) -> Publish:
        return Publish(sent.topic, f"{NAME} {sent.number}".encode(), qos=self.qos, packet_id=packet_id, dup=dup)


async def publish(served: BrokerProcess, writer: Writer, subscriber: Subscriber) -> None:
    async with connected([subscriber], served.port):
        await until(subscriber.is_subscribed.is_set, [subscriber], "subscribed")
        async with connected([writer], served.port):
            await until(lambda: writer.is_done, [writer, subscriber], "acknowledged")

        def is_done() -> bool:
            subscriber.acknowledge()
            return len(subscriber.distinct) >= writer.count

        await until(is_done, [subscriber], "everything", lambda: len(subscriber.seen), subscriber.state)


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
def test_a_connected_subscriber_gets_all_of_a_large_commit(tmp_path: Path, qos: int) -> None:
    writer, subscriber = Writer("w", qos, ["t/1", "t/2"]), Subscriber("s", "t/#", qos, Random(qos))
    with BrokerProcess(tmp_path, sync_ms=40) as served:
        asyncio.run(publish(served, writer, subscriber))
    assert [message.number for message in subscriber.seen] == list(range(writer.count))
