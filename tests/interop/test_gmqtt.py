"""gmqtt, MQTT 3.1.1 and 5."""

import asyncio

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from tests.brokers import RunningBroker

pytestmark = pytest.mark.parametrize("version", [pytest.param(MQTTv311, id="v3.1.1"), pytest.param(MQTTv50, id="v5")])


class Client:
    """A connected gmqtt client and the messages that it got."""

    def __init__(self, name, version, **options):
        self.gmqtt = gmqtt.Client(name, **options)
        self._version = version
        self.got = asyncio.Queue()
        self._subscribed = asyncio.Event()
        self.gmqtt.on_message = self._on_message
        self.gmqtt.on_subscribe = lambda *_: self._subscribed.set()

    async def _on_message(self, _client, topic, payload, qos, properties):
        self.got.put_nowait((topic, payload, qos, properties["retain"]))
        return 0

    async def connect(self, broker):
        async with asyncio.timeout(10):
            await self.gmqtt.connect("127.0.0.1", broker.port, version=self._version)
        return self

    async def subscribe(self, topic, qos):
        self._subscribed.clear()
        self.gmqtt.subscribe(topic, qos)
        async with asyncio.timeout(10):
            await self._subscribed.wait()

    async def take(self, count):
        async with asyncio.timeout(20):
            return [await self.got.get() for _ in range(count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_both_ways(broker: RunningBroker, version, qos):
    client = await Client("c", version).connect(broker)
    await client.subscribe("t/#", qos)
    for number in range(100):
        client.gmqtt.publish(f"t/{number % 5}", str(number), qos=qos)
    found = await client.take(100)
    assert [int(payload) for _, payload, _, _ in found] == list(range(100))
    assert {level for _, _, level, _ in found} == {qos}
    await client.gmqtt.disconnect()


async def test_large_retained_messages(broker: RunningBroker, version):
    payload = b"x" * 1_000_000
    publisher = await Client("p", version).connect(broker)
    await publisher.subscribe("big", 1)
    publisher.gmqtt.publish("big", payload, qos=1, retain=True)
    assert await publisher.take(1) == [("big", payload, 1, False)]
    await publisher.gmqtt.disconnect()
    subscriber = await Client("s", version).connect(broker)
    await subscriber.subscribe("big", 1)
    assert await subscriber.take(1) == [("big", payload, 1, True)]
    await subscriber.gmqtt.disconnect()


async def test_a_session_is_resumed(broker: RunningBroker, version):
    options = {"clean_session": False}
    if version == MQTTv50:
        options["session_expiry_interval"] = 100
    first = await Client("s", version, **options).connect(broker)
    await first.subscribe("t", 1)
    await first.gmqtt.disconnect()
    publisher = await Client("p", version).connect(broker)
    await publisher.subscribe("t", 1)
    for number in range(20):
        publisher.gmqtt.publish("t", str(number), qos=1)
    await publisher.take(20)
    second = await Client("s", version, **options).connect(broker)
    assert [int(payload) for _, payload, _, _ in await second.take(20)] == list(range(20))
    await second.gmqtt.disconnect()
    await publisher.gmqtt.disconnect()
