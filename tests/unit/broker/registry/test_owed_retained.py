"""Retained messages that a durable session is owed when its broker stops or crashes."""

import pytest
from tests.restarts import Client, Disk, Running

from everlog.base import RETAINED, Records, TopicTable, rebased
from everlog.broker.delivery import RetainedSaving
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel
from everlog.sessions import Changes

TOPICS = [f"r/{number}" for number in range(7)]


@pytest.fixture(autouse=True, params=["in no log", "kept"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have retained messages in the tables alone, or in the log, with the tables far behind."""
    if request.param == "kept":
        monkeypatch.setattr(Running, "keep", [("#", 0)])
        monkeypatch.setattr(RetainedSaving, "rows_each", 1)


async def retain(broker: Running, *topics: str, payload: bytes = b"old", qos: int = 1) -> None:
    """Retain a message in each topic."""
    client = await broker.client("publisher", clean=True, expiry=0)
    for topic in topics:
        client.send(Publish(topic, payload, qos, True, packet_id=1 if qos else 0))
        if qos == 1:
            await client.expect(Puback)
        elif qos == 2:
            await client.expect(Pubrec)
            client.send(Pubrel(1))
            await client.expect(Pubcomp)
    await client.nothing_more()
    await client.leave()


async def take(client: Client, count: int) -> list[Publish]:
    """Take so many messages and be done with each."""
    taken = []
    while len(taken) < count:
        packet = await client.receive()
        if isinstance(packet, Publish):
            taken.append(packet)
            if packet.qos:
                client.send((Pubrec if packet.qos == 2 else Puback)(packet.packet_id))
        else:
            assert isinstance(packet, Pubrel)
            client.send(Pubcomp(packet.packet_id))
    return taken


async def ended(broker: Running, how: str) -> Disk:
    """Return what is left of a broker that crashes or stops now."""
    if how == "crash":
        return broker.disk.after_crash()
    await broker.__aexit__(None, None, None)
    return broker.disk


def topics(messages: list[Publish]) -> list[str]:
    return [message.topic for message in messages]


@pytest.mark.parametrize("how", ["crash", "stop"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_not_sent_and_what_was_not_acknowledged_comes_after_a_restart(how: str, qos: int) -> None:
    async with Running(Disk()) as first:
        await retain(first, *TOPICS, qos=qos)
        client = await first.client("s", receive_maximum=2)
        await client.subscribe("r/#", qos=qos)
        before = await client.publishes(2)
        left = await ended(first, how)
        async with Running(left) as second:
            back = await second.client("s", receive_maximum=2)
            assert back.connack.session_present
            again = await back.publishes(2)
            assert [(one.topic, one.packet_id, one.dup) for one in again] == [
                (one.topic, one.packet_id, True) for one in before
            ]
            assert all(one.retain for one in again)
            for one in again:
                back.send((Pubrec if qos == 2 else Puback)(one.packet_id))
            rest = await take(back, 5)
            assert topics(again + rest) == TOPICS
            assert not any(one.dup for one in rest)
            assert all(one.retain for one in rest)


@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_all_of_it_comes_although_the_suback_was_all_that_came(how: str) -> None:
    async with Running(Disk()) as first:
        await retain(first, *TOPICS)
        client = await first.client("s")
        await client.subscribe("r/#")
        async with Running(await ended(first, how)) as second:
            back = await second.client("s")
            assert topics(await take(back, 7)) == TOPICS
            await back.nothing_more()


async def test_what_came_and_was_acknowledged_does_not_come_again() -> None:
    async with Running(Disk()) as first:
        await retain(first, *TOPICS, qos=2)
        client = await first.client("s", receive_maximum=2)
        await client.subscribe("r/#", qos=2)
        assert topics(await take(client, 2)) == TOPICS[:2]
        released = [await client.expect(Pubrel) for _ in range(2)]
        client.send(*(Pubcomp(one.packet_id) for one in released))
        assert topics(await client.publishes(2)) == TOPICS[2:4]
        async with Running(first.disk.after_crash()) as second:
            back = await second.client("s", receive_maximum=2)
            assert topics(await take(back, 5)) == TOPICS[2:]


async def test_a_message_that_was_replaced_comes_as_it_is_and_one_that_was_removed_does_not() -> None:
    async with Running(Disk()) as first:
        await retain(first, *TOPICS)
        client = await first.client("s", receive_maximum=4)
        await client.subscribe("r/#")
        await client.publishes(4)
        async with Running(first.disk.after_crash()) as second:
            await retain(second, "r/0", "r/5", payload=b"new", qos=1)
            await retain(second, "r/1", "r/6", payload=b"")
            await retain(second, "r/2", payload=b"lower", qos=0)
            await second.saved()
            async with Running(second.disk.after_crash()) as third:
                back = await third.client("s", receive_maximum=100)
                came = [(one.topic, one.payload, one.dup) for one in await take(back, 9) if one.retain]
                await back.nothing_more()
    assert came == [
        ("r/0", b"new", True),
        ("r/3", b"old", True),
        ("r/4", b"old", False),
        ("r/5", b"new", False),
    ]


async def test_messages_of_qos_0_end_with_the_broker() -> None:
    async with Running(Disk()) as first:
        await retain(first, "r/0", "r/2", qos=0)
        await retain(first, "r/1", "r/3", qos=1)
        client = await first.client("s", receive_maximum=1)
        await client.subscribe("r/#")
        before = await client.publishes(3)
        assert topics(before) == ["r/0", "r/2", "r/1"]
        async with Running(first.disk.after_crash()) as second:
            back = await second.client("s", receive_maximum=1)
            assert topics(await take(back, 2)) == ["r/1", "r/3"]
            await back.nothing_more()


async def test_a_subscription_that_was_given_up_is_owed_nothing() -> None:
    async with Running(Disk()) as first:
        await retain(first, *TOPICS)
        client = await first.client("s", receive_maximum=1)
        await client.subscribe("r/#")
        (one,) = await client.publishes(1)
        await client.unsubscribe("r/#")
        async with Running(first.disk.after_crash()) as second:
            back = await second.client("s", receive_maximum=1)
            assert topics(await take(back, 1)) == [one.topic]
            await back.nothing_more()


async def test_no_number_that_a_session_knows_is_given_to_another_topic() -> None:
    async with Running(Disk()) as first:
        await retain(first, "r/0", "r/1")
        client = await first.client("s", receive_maximum=1)
        await client.subscribe("r/#")
        await client.publishes(1)
        await retain(first, "r/0", "r/1", payload=b"")
        async with Running(first.disk.after_crash()) as second:
            await retain(second, "r/2", "r/3", payload=b"live")
            back = await second.client("s", receive_maximum=100)
            came = await take(back, 4)
            await back.nothing_more()
    assert [(one.topic, one.retain) for one in came if one.payload] == [("r/2", False), ("r/3", False)]


async def test_messages_that_an_earlier_version_has_stored_get_numbers() -> None:
    disk = Disk()
    async with Running(disk, keep=[]) as first:
        await retain(first, *TOPICS)
    plain = [
        row._replace(message=bytes(rebased(Records(row.message or b"", 0, TopicTable(0)), 0).to_bytes()))
        for row in disk.tables.load().retained
    ]
    disk.tables.apply(Changes(retained=tuple(plain)), durable=True)
    async with Running(disk, keep=[]):
        stored = [Records(row.message or b"", 0, TopicTable(0)).base_offset for row in disk.tables.load().retained]
        assert len(set(stored)) == len(TOPICS)
        assert all(number & RETAINED for number in stored)
    async with Running(disk, keep=[]) as third:
        client = await third.client("s")
        await client.subscribe("r/#")
        assert topics(await take(client, 7)) == TOPICS
