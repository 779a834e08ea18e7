"""What is retained when a broker stops or crashes: in the log, in the tables that follow behind, or in them alone."""

import asyncio
from random import Random

import pytest
from tests.restarts import Client, Disk, Running, eventually

from everlog.broker.delivery import RetainedSaving
from everlog.mqtt import Puback, Publish, Subscribe, Subscription

KEPT = [("k/#", 0)]


async def retain(broker: Running, topic: str, payload: bytes, qos: int = 1) -> None:
    client = await broker.client("publisher", clean=True, expiry=0)
    client.send(Publish(topic, payload, qos, True, packet_id=qos))
    if qos:
        await client.expect(Puback)
    await client.nothing_more()
    await client.leave()


async def retained(broker: Running) -> dict[str, bytes]:
    """Return all retained messages, as a new subscriber gets them."""
    client = await broker.client("reader", clean=True, expiry=0)
    client.send(Subscribe(1, (Subscription("#", 0),)))
    await client.receive()
    found: dict[str, bytes] = {}
    for _ in range(broker.inside.retained_count):
        one = await client.expect(Publish)
        found[one.topic] = one.payload
    await client.nothing_more()
    await client.leave()
    return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tables take one change at a time."""
    monkeypatch.setattr(RetainedSaving, "rows_each", 1)


async def test_a_kept_message_is_acknowledged_and_there_after_a_crash_without_the_tables() -> None:
    async with Running(Disk(), keep=KEPT) as first:
        first.disk.tables.failing = True
        await retain(first, "k/1", b"one")
        await retain(first, "k/2", b"two")
        await retain(first, "k/1", b"")
        await retain(first, "k/3", b"three")
        await retain(first, "k/3", b"four")
        left = first.disk.after_crash()
        first.disk.tables.failing = False
        async with Running(left, keep=KEPT) as second:
            assert await retained(second) == {"k/2": b"two", "k/3": b"four"}


async def test_what_is_in_no_log_is_acknowledged_when_the_tables_have_it() -> None:
    async with Running(Disk(), keep=KEPT) as first:
        first.disk.tables.failing = True
        client = await first.client("publisher", clean=True, expiry=0)
        client.send(Publish("n/1", b"one", 1, True, packet_id=1))
        waiting = asyncio.create_task(client.expect(Puback))
        await eventually(lambda: first.inside.write_failures)
        assert not waiting.done()
        first.disk.tables.failing = False
        await waiting
        async with Running(first.disk.after_crash(), keep=KEPT) as second:
            assert await retained(second) == {"n/1": b"one"}


async def test_what_was_cleared_does_not_come_back(slow: None) -> None:
    async with Running(Disk(), keep=KEPT) as first:
        for number in range(5):
            await retain(first, f"k/{number}", b"old")
        while first.inside.retained_unsaved:
            await first.saved()
        for number in range(4):
            await retain(first, f"k/{number}", b"")
        left = first.disk.after_crash()
        assert len(list(left.tables.load().retained)) == 5
        async with Running(left, keep=KEPT) as second:
            assert await retained(second) == {"k/4": b"old"}
            while second.inside.retained_unsaved:
                await second.saved()
        assert [row.topic for row in left.tables.load().retained] == ["k/4"]


@pytest.mark.parametrize("last", [b"in no log", b""])
async def test_what_is_in_no_log_holds_against_what_the_log_has_before_it(last: bytes, slow: None) -> None:
    async with Running(Disk()) as first:
        first.inside.keep("t/#")
        for number in range(9):  # far more than the tables take at a time
            await retain(first, f"t/{number}", b"kept")
        first.inside.keep_no_more("t/#")
        await retain(first, "t/8", last)
        assert first.inside.retained_at < (9,)
        expected = {f"t/{number}": b"kept" for number in range(8)} | ({"t/8": last} if last else {})
        left = first.disk.after_crash()
        async with Running(left) as second:
            assert await retained(second) == expected
            again = second.disk.after_crash()
            async with Running(again) as third:
                assert await retained(third) == expected
            second.inside.keep("t/#")
            await retain(second, "t/8", b"kept again")
            async with Running(second.disk.after_crash()) as fourth:
                assert await retained(fourth) == expected | {"t/8": b"kept again"}
                while fourth.inside.retained_unsaved:
                    await fourth.saved()
                await fourth.saved()
                assert {row.after for row in fourth.disk.tables.load().retained} == {0}


async def test_the_tables_are_as_far_as_the_log_when_nothing_is_retained() -> None:
    async with Running(Disk(), keep=KEPT) as first:
        client = await first.client("publisher", clean=True, expiry=0)
        for _ in range(20):
            await client.publish("k/1")
        await first.saved()
        assert first.inside.retained_at == (20,)


@pytest.mark.parametrize("seed", range(6))
async def test_acknowledged_messages_are_retained_whatever_becomes_of_the_broker(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(RetainedSaving, "rows_each", random.choice([1, 2, 2000]))
    disk = Disk(shards=random.choice([1, 3]))
    expected: dict[str, bytes] = {}
    for _ in range(4):
        async with Running(disk) as broker:
            assert await retained(broker) == expected
            publisher = await broker.client("publisher", clean=True, expiry=0)
            kept = False
            for step in range(random.randrange(25)):
                if random.random() < 0.15:
                    (broker.inside.keep_no_more if kept else broker.inside.keep)("t/#")
                    kept = not kept
                topic, payload = f"t/{random.randrange(6)}", random.choice([b"", b"%d" % step, b"%d longer" % step])
                await publish(publisher, topic, payload)
                expected[topic] = payload
                expected = {name: message for name, message in expected.items() if message}
                if random.random() < 0.2:
                    await broker.saved()
            if random.random() < 0.7:
                disk = broker.disk.after_crash()


async def publish(client: Client, topic: str, payload: bytes) -> None:
    client.send(Publish(topic, payload, 1, True, packet_id=1))
    await client.expect(Puback)
