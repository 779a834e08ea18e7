"""Replay by other people's clients: `$replay/...` with MQTT 3.1.1, a user property with MQTT 5."""

import asyncio
from collections.abc import Iterator

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import RunningBroker, ServedBroker
from tests.interop.clients import PahoClient
from tests.memory_log import MemoryLog


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """It keeps everything; a hundred messages have been."""
    with ServedBroker(MemoryLog(4), keep=[("#", 0)]) as running:
        publisher = PahoClient(running, paho.MQTTv311, "publisher")
        for number in range(100):
            publisher.publish("past/t", str(number), 1)
        publisher.stop()
        yield running


def asked(**pairs: str) -> Properties:
    properties = Properties(PacketTypes.SUBSCRIBE)
    properties.UserProperty = [(f"everlog-{key}", value) for key, value in pairs.items()]
    return properties


@pytest.mark.parametrize("begin", ["earliest", "-1h", "2024-01-01T00:00:00Z", "0:0", "2:5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_with_311_replays_by_a_filter(broker: RunningBroker, begin: str, qos: int) -> None:
    shard = broker.log.shard_of(b"past/t")
    skipped = 5 if begin == f"{shard}:5" else 0
    client = PahoClient(broker, paho.MQTTv311, "c")
    client.subscribe(f"$replay/{begin}/past/#", qos)
    found = client.got.wait(100 - skipped)
    assert [int(payload) for _, payload, _, _ in found] == list(range(skipped, 100))
    assert {topic for topic, _, _, _ in found} == {"past/t"}
    client.publish("past/t", "100", 1)
    assert client.got.wait(101 - skipped)[-1][:2] == ("past/t", b"100")
    client.paho.unsubscribe(f"$replay/{begin}/past/#")
    client.stop()


def test_paho_with_311_is_told_of_a_beginning_that_is_none(broker: RunningBroker) -> None:
    client = PahoClient(broker, paho.MQTTv311, "c")
    answers = []
    client.paho.on_subscribe = lambda _c, _u, _mid, reasons, _p: (answers.extend(reasons), client._subscribed.set())
    client.subscribe("$replay/whenever/past/#", 1)
    assert [reason.is_failure for reason in answers] == [True]
    client.stop()


async def test_aiomqtt_with_5_replays_by_a_property(broker: RunningBroker) -> None:
    options = {"identifier": "c", "protocol": aiomqtt.ProtocolVersion.V5}
    async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
        await client.subscribe("past/#", 1, properties=asked(**{"from": "earliest", "position": "yes"}))
        found: list[aiomqtt.Message] = []
        async with asyncio.timeout(20):
            async for message in client.messages:
                found.append(message)
                if len(found) == 100:
                    await client.publish("past/t", "100", 1)
                if len(found) == 101:
                    break
    assert [int(message.payload) for message in found] == list(range(101))
    shard = broker.log.shard_of(b"past/t")
    pairs = [dict(message.properties.UserProperty) for message in found]
    assert [one["everlog-position"] for one in pairs] == [f"{shard}:{number}" for number in range(101)]
    assert all(one["everlog-time"].endswith("Z") for one in pairs)
