"""aiomqtt, MQTT 3.1.1 and 5."""

import asyncio
import contextlib

import aiomqtt
import pytest
from tests.brokers import RunningBroker

VERSIONS = [
    pytest.param(aiomqtt.ProtocolVersion.V311, id="v3.1.1"),
    pytest.param(aiomqtt.ProtocolVersion.V5, id="v5"),
]
pytestmark = pytest.mark.parametrize("version", VERSIONS)


def client(broker: RunningBroker, version: aiomqtt.ProtocolVersion, name: str, **options: object) -> aiomqtt.Client:
    return aiomqtt.Client("127.0.0.1", broker.port, identifier=name, protocol=version, **options)


async def take(source: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    found: list[aiomqtt.Message] = []
    async with asyncio.timeout(20):
        async for message in source.messages:
            found.append(message)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_both_ways(broker: RunningBroker, version, qos):
    async with client(broker, version, "c") as one:
        await one.subscribe("t/#", qos)
        for number in range(100):
            await one.publish(f"t/{number % 5}", str(number), qos)
        found = await take(one, 100)
    assert [int(message.payload) for message in found] == list(range(100))
    assert {message.qos for message in found} == {qos}


async def test_large_retained_messages(broker: RunningBroker, version):
    payload = b"x" * 1_000_000
    async with client(broker, version, "p") as one:
        await one.publish("big", payload, 1, retain=True)
    async with client(broker, version, "s") as two:
        await two.subscribe("big", 1)
        (found,) = await take(two, 1)
    assert found.payload == payload
    assert found.retain


async def test_a_will(broker: RunningBroker, version):
    async with client(broker, version, "w") as watcher:
        await watcher.subscribe("will", 1)
        lost = client(broker, version, "c", will=aiomqtt.Will("will", "gone", 1))
        await lost.__aenter__()
        lost._client.socket().shutdown(2)
        (found,) = await take(watcher, 1)
        with contextlib.suppress(aiomqtt.MqttError):  # whether it has noticed yet is its own affair
            await lost.__aexit__(None, None, None)
    assert found.payload == b"gone"


async def test_many_messages_to_many_subscribers(broker: RunningBroker, version):
    async def subscriber(name: str, ready: asyncio.Semaphore) -> list[int]:
        async with client(broker, version, name) as one:
            await one.subscribe("many", 1)
            ready.release()
            return [int(message.payload) for message in await take(one, 500)]

    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(subscriber(f"s{number}", ready)) for number in range(5)]
    for _ in tasks:
        await ready.acquire()
    async with client(broker, version, "p") as publisher:
        for number in range(500):
            await publisher.publish("many", str(number), 1)
    assert await asyncio.gather(*tasks) == [list(range(500))] * 5
