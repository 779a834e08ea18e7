"""Sessions and retained messages across clean stops and crashes, and what answers wait for."""

import asyncio
import time
from typing import Any

import pytest
from tests.memory_log import MemoryLog
from tests.restarts import Disk, Running, eventually

from everlog.mqtt import (
    Connack,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from everlog.sessions import Changes, Refused, unpack_inflight


def payloads(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


async def publish(running: Running, *numbers: int, topic: str = "a") -> None:
    """One after the other, each acknowledged."""
    client = await running.client("publisher", clean=True, expiry=0)
    for number in numbers:
        await client.publish(topic, b"%d" % number)
    await client.leave()


async def away(running: Running, client_id: str) -> None:
    await eventually(lambda: client_id in running.inside.asleep)


@pytest.fixture(params=["stop", "crash"])
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ended(running: Running, how: str) -> Disk:
    """What the next broker finds."""
    if how == "crash":
        return running.disk.after_crash()
    await running.__aexit__(None, None, None)
    return running.disk


async def test_a_session_is_there_after_a_restart(end: str) -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        assert not client.connack.session_present
        await client.subscribe("a")
        left = await ended(first, end)
        async with Running(left) as second:
            client = await second.client("c")
            assert client.connack.session_present
            await publish(second, 1)
            assert payloads(await client.publishes(1)) == [b"1"]


async def test_messages_while_away_arrive_after_a_restart(end: str) -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        await client.leave()
        await away(first, "c")
        await publish(first, 1, 2, 3)
        left = await ended(first, end)
        async with Running(left) as second:
            await publish(second, 4)
            client = await second.client("c")
            assert payloads(await client.publishes(4)) == [b"1", b"2", b"3", b"4"]
            await client.nothing_more()


async def test_what_is_published_before_the_session_is_back_is_kept_for_it() -> None:
    disk = Disk()
    async with Running(disk) as first:
        client = await first.client("c")
        await client.subscribe("kept/#")
    async with Running(disk) as second:
        await publish(second, 1, topic="kept/x")
        await publish(second, 2, topic="other")
        assert disk.log.shards[0].committed == 1


async def test_unacknowledged_messages_come_again_with_dup_and_their_ids(end: str) -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        await publish(first, 1, 2, 3, 4)
        sent = await client.publishes(4)
        client.send(Puback(sent[1].packet_id))
        await client.nothing_more()
        await first.saved()
        left = await ended(first, end)
        async with Running(left) as second:
            await publish(second, 5)
            client = await second.client("c")
            again = await client.publishes(4)
            assert payloads(again) == [b"1", b"3", b"4", b"5"]
            assert [message.dup for message in again] == [True, True, True, False]
            assert [one.packet_id for one in again[:3]] == [sent[0].packet_id, sent[2].packet_id, sent[3].packet_id]
            assert again[3].packet_id not in {one.packet_id for one in again[:3]}


async def test_a_crash_that_loses_the_last_positions_repeats_with_dup_and_loses_nothing() -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        await publish(first, 1, 2)
        for message in await client.publishes(2):
            client.send(Puback(message.packet_id))
        await client.nothing_more()
        async with Running(first.disk.after_crash()) as second:  # the acks are not saved yet
            await publish(second, 3)
            client = await second.client("c")
            again = await client.publishes(3)
            assert payloads(again) == [b"1", b"2", b"3"]
            assert [message.dup for message in again] == [True, True, False]


async def test_a_live_session_that_nothing_happens_to_moves_on_with_the_broker() -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a", qos=0)
        await publish(first, *range(50))
        await client.publishes(50)
        await first.saved()
        async with Running(first.disk.after_crash()) as second:
            client = await second.client("c")
            await client.nothing_more()


async def test_two_crashes_in_a_row_lose_nothing() -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        async with Running(first.disk.after_crash()) as second:
            await publish(second, 1)
            await second.saved()
            async with Running(second.disk.after_crash()) as third:
                client = await third.client("c")
                assert payloads(await client.publishes(1)) == [b"1"]


async def test_a_subscription_given_up_stays_so(end: str) -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a", "b")
        client.send(Unsubscribe(2, ("a",)))
        await client.expect(Unsuback)
        left = await ended(first, end)
        async with Running(left) as second:
            client = await second.client("c")
            await publish(second, 1, topic="a")
            await publish(second, 2, topic="b")
            assert payloads(await client.publishes(1)) == [b"2"]
            assert second.inside.kept_filters() == [("b", 0)]


async def test_subscription_options_survive() -> None:
    disk = Disk()
    async with Running(disk) as first:
        client = await first.client("c")
        client.send(
            Subscribe(1, (Subscription("a", 1, retain_as_published=True),), Properties(subscription_identifiers=(9,)))
        )
        await client.expect(Suback)
    async with Running(disk) as second:
        client = await second.client("c")
        publisher = await second.client("p", expiry=0)
        await publisher.publish("a", retain=True)
        (message,) = await client.publishes(1)
        assert message.retain
        assert message.properties.subscription_identifiers == (9,)


async def test_a_clean_start_forgets_the_session_for_good(end: str) -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        await client.leave()
        await (await first.client("c", clean=True, expiry=0)).leave()
        left = await ended(first, end)
        async with Running(left) as second:
            assert not (await second.client("c")).connack.session_present
            assert second.inside.kept_filters() == []


async def test_expiry_of_zero_at_disconnect_ends_the_session(end: str) -> None:
    from everlog.mqtt import Disconnect

    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a")
        client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        await client.gone()
        await eventually(lambda: not first.inside.sessions)
        assert first.inside.kept_filters() == []
        await first.saved()
        left = await ended(first, end)
        async with Running(left) as second:
            assert second.inside.session_count == 0


async def test_a_session_expires_while_the_broker_is_down() -> None:
    disk = Disk()
    async with Running(disk) as first:
        for client_id, expiry in (("short", 10), ("long", 100)):
            client = await first.client(client_id, expiry=expiry)
            await client.subscribe(client_id)
            await client.leave()
        await away(first, "short")
    disk.now_us += 50_000_000
    async with Running(disk) as second:
        assert list(second.inside.asleep) == ["long"]
        assert second.inside.kept_filters() == [("long", 0)]
        second.advance(49)
        assert second.inside.session_count == 1
        second.advance(2)
        assert second.inside.session_count == 0
        assert second.inside.kept_filters() == []
    assert list(disk.tables.load().sessions) == []


async def test_time_connected_does_not_count_towards_expiry() -> None:
    async with Running(Disk()) as running:
        client = await running.client("c", expiry=10)
        await client.leave()
        await away(running, "c")
        running.advance(9)
        client = await running.client("c", expiry=10)
        assert client.connack.session_present
        running.advance(9)
        await client.leave()
        await away(running, "c")
        running.advance(9)
        assert running.inside.session_count == 1
        running.advance(2)
        assert running.inside.session_count == 0


async def test_who_was_connected_at_a_crash_expires_from_the_last_known_time() -> None:
    async with Running(Disk()) as first:
        client = await first.client("c", expiry=10)
        await client.subscribe("a")
        left = first.disk.after_crash()
        left.now_us += 9_000_000
        async with Running(left) as second:
            assert second.inside.session_count == 1
        left.now_us += 2_000_000
        async with Running(left) as third:
            assert third.inside.session_count == 0


WILL = Will("a", b"will", 1, properties=Properties(will_delay_interval=30))


async def test_a_delayed_will_is_sent_after_a_restart() -> None:
    disk = Disk()
    async with Running(disk) as first:
        await (await first.client("watcher")).subscribe("a")
        client = await first.client("c", will=WILL)
        await client.drop()
        await away(first, "c")
    disk.now_us += 10_000_000
    async with Running(disk) as second:
        watcher = await second.client("watcher")
        await watcher.nothing_more()
        second.advance(21)
        assert payloads(await watcher.publishes(1)) == [b"will"]
        second.advance(1000)
        await watcher.nothing_more()


async def test_a_will_that_became_due_while_the_broker_was_down_is_sent_at_start() -> None:
    async with Running(Disk()) as first:
        await (await first.client("watcher")).subscribe("a")
        await first.client("c", will=WILL)
        left = first.disk.after_crash()
        left.now_us += 100_000_000
        async with Running(left) as second:
            watcher = await second.client("watcher")
            assert payloads(await watcher.publishes(1)) == [b"will"]
        async with Running(left) as third:
            watcher = await third.client("watcher")
            assert [message.dup for message in await watcher.publishes(1)] == [True]  # not acknowledged, not anew
            await watcher.nothing_more()


async def test_no_will_for_a_client_that_is_back_in_time() -> None:
    disk = Disk()
    async with Running(disk) as first:
        watcher = await first.client("watcher")
        await watcher.subscribe("a")
        await (await first.client("c", will=WILL)).drop()
        await away(first, "c")
        await first.client("c")
        first.advance(100)
        await watcher.nothing_more()


async def test_retained_messages_survive(end: str) -> None:
    async with Running(Disk()) as first:
        publisher = await first.client("p", expiry=0)
        await publisher.publish("a", b"old", retain=True)
        await publisher.publish("a", b"new", retain=True, properties=Properties(content_type="t"))
        await publisher.publish("b", b"gone", retain=True)
        await publisher.publish("b", b"", retain=True)
        left = await ended(first, end)
        async with Running(left) as second:
            client = await second.client("c", expiry=0)
            await client.subscribe("#")
            (message,) = await client.publishes(1)
            assert (message.topic, message.payload, message.retain) == ("a", b"new", True)
            assert message.properties.content_type == "t"
            await client.nothing_more()


async def test_qos_2_in_is_taken_once_across_a_crash() -> None:
    async with Running(Disk()) as first:
        await (await first.client("s")).subscribe("a", qos=2)
        client = await first.client("c")
        message = Publish("a", b"once", qos=2, packet_id=7)
        client.send(message)
        await client.expect(Pubrec)
        async with Running(first.disk.after_crash()) as second:
            client = await second.client("c")
            client.send(Publish("a", b"once", qos=2, packet_id=7, dup=True))
            await client.expect(Pubrec)
            client.send(Pubrel(7))
            assert (await client.expect(Pubcomp)).reason is Reason.SUCCESS
            assert second.disk.log.shards[0].committed == 1
            async with Running(second.disk.after_crash()) as third:
                client = await third.client("c")
                client.send(Publish("a", b"another", qos=2, packet_id=7))
                await client.expect(Pubrec)
                assert third.disk.log.shards[0].committed == 2


async def test_a_dup_whose_first_copy_was_lost_is_kept() -> None:
    async with Running(Disk()) as first:
        await (await first.client("s")).subscribe("a", qos=2)
        client = await first.client("c")
        first.disk.log.shards[0].manual = True
        client.send(Publish("a", b"lost", qos=2, packet_id=7))
        await eventually(lambda: first.disk.log.shards[0].end == 1)
        await first.saved()  # the id is stored, its message never reaches the log
        async with Running(first.disk.after_crash()) as second:
            client = await second.client("c")
            client.send(Publish("a", b"lost", qos=2, packet_id=7, dup=True))
            await client.expect(Pubrec)
            assert second.disk.log.shards[0].committed == 1
        first.disk.log.commit_now()


async def test_an_id_is_stored_before_its_message_is_committed() -> None:
    async with Running(Disk()) as running:
        await (await running.client("s")).subscribe("a", qos=2)
        client = await running.client("c")
        running.disk.tables.failing = True
        client.send(Publish("a", b"once", qos=2, packet_id=7))
        await eventually(lambda: running.inside.write_failures)
        assert running.disk.log.shards[0].committed == 0
        running.disk.tables.failing = False
        await client.expect(Pubrec)
        assert running.disk.log.shards[0].committed == 1


async def test_a_stop_too_stores_an_id_before_its_message_is_committed() -> None:
    async with Running(Disk()) as running:
        await (await running.client("s")).subscribe("a", qos=2)
        client = await running.client("c")
        disk = running.disk
        disk.tables.failing = True
        client.send(Publish("a", b"once", qos=2, packet_id=7))
        await eventually(lambda: running.inside.write_failures)
        stopping = asyncio.create_task(running.__aexit__(None, None, None))
        for _ in range(20):
            await asyncio.sleep(0)
        killed = disk.after_crash()
        disk.tables.failing = False
        await stopping
        for left in (killed, disk):
            async with Running(left) as again:
                client = await again.client("c")
                client.send(Publish("a", b"once", qos=2, packet_id=7, dup=True))
                await client.expect(Pubrec)
                assert left.log.shards[0].committed == 1


async def test_a_stop_takes_in_nothing_more_of_clients_that_go_on_sending() -> None:
    async with Running(Disk()) as running:
        await (await running.client("s")).subscribe("a")
        client = await running.client("c")
        running.disk.log.shards[0].manual = True
        client.send(Publish("a", b"before", qos=1, packet_id=1))
        await eventually(lambda: running.disk.log.shards[0].end == 1)
        stopping = asyncio.create_task(running.__aexit__(None, None, None))
        await eventually(lambda: running.inside.closing)
        client.send(Publish("a", b"after", qos=1, packet_id=2))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert running.disk.log.shards[0].end == 1
        running.disk.log.commit_now()
        assert (await client.expect(Puback)).packet_id == 1
        await client.expect(Disconnect)
        await stopping


async def test_ids_of_several_shards_count_each_by_its_own_log() -> None:
    async with Running(Disk(4)) as first:
        await (await first.client("s")).subscribe("#", "+/+", "a", "bb", "ccc", qos=2)
        client = await first.client("c")
        first.disk.log.shards[3].manual = True
        topics = ("a", "bb", "ccc", "a")
        client.send(*(Publish(topic, b"%d" % k, qos=2, packet_id=k) for k, topic in enumerate(topics, 1)))
        await eventually(lambda: [shard.committed for shard in first.disk.log.shards] == [0, 2, 1, 0])
        async with Running(first.disk.after_crash()) as second:
            client = await second.client("c")
            client.send(*(Publish(topic, b"%d" % k, qos=2, packet_id=k, dup=True) for k, topic in enumerate(topics, 1)))
            for _ in topics:
                await client.expect(Pubrec)
            assert [shard.committed for shard in second.disk.log.shards] == [0, 2, 1, 1]
        first.disk.log.commit_now()


async def test_qos_2_out_keeps_its_id_and_its_state_across_crashes() -> None:
    async with Running(Disk()) as first:
        client = await first.client("c")
        await client.subscribe("a", qos=2)
        publisher = await first.client("p", expiry=0)
        for number in (1, 2):
            publisher.send(Publish("a", b"%d" % number, qos=2, packet_id=number))
            await publisher.expect(Pubrec)
        sent = await client.publishes(2)
        async with Running(first.disk.after_crash()) as second:  # at the moment at which the client has the message
            client = await second.client("c")
            again = await client.publishes(2)
            assert [(one.packet_id, one.payload, one.dup) for one in again] == [
                (one.packet_id, one.payload, True) for one in sent
            ]
            client.send(Pubrec(sent[0].packet_id))
            await client.expect(Pubrel)
            async with Running(second.disk.after_crash()) as third:
                client = await third.client("c")
                assert (await client.expect(Pubrel)).packet_id == sent[0].packet_id
                assert payloads(await client.publishes(1)) == [b"2"]
                client.send(Pubcomp(sent[0].packet_id))
                await client.nothing_more()


@pytest.mark.parametrize("what", ["new", "back", "clean", "will", "own will", "subscribe", "unsubscribe", "retain"])
async def test_an_answer_waits_for_the_tables(what: str) -> None:
    async with Running(Disk()) as running:
        client = await running.client("c")
        await client.subscribe("a")
        other = await running.client("other", expiry=0)
        tables = running.disk.tables
        tables.failing = True
        expected: type[Any]
        if what == "new":
            client = await running.client("new", answer=False)
            expected = Connack
        elif what == "back":  # the tables are to know that it is not away any more
            client = await running.client("c", answer=False)
            expected = Connack
        elif what == "clean":  # and that what it had is gone
            client = await running.client("c", clean=True, expiry=0, answer=False)
            expected = Connack
        elif what == "will":
            client = await running.client("new", expiry=0, will=Will("w", b"gone"), answer=False)
            expected = Connack
        elif what == "own will":
            client = await running.client("new", will=Will("w", b"gone"), answer=False)
            expected = Connack
        elif what == "subscribe":
            client.send(Subscribe(2, (Subscription("b"),)))
            expected = Suback
        elif what == "unsubscribe":
            client.send(Unsubscribe(2, ("a",)))
            expected = Unsuback
        else:
            client.send(Publish("r", b"x", qos=1, retain=True, packet_id=9), Publish("s", b"x", qos=1, packet_id=10))
            expected = Puback
        answer = asyncio.ensure_future(client.expect(expected))
        await eventually(lambda: running.inside.write_failures)
        await other.nothing_more()  # others do not wait
        assert not answer.done()
        tables.failing = False
        found = await answer
        if what == "retain":
            assert (found.packet_id, (await client.expect(Puback)).packet_id) == (9, 10)


async def test_an_end_that_is_written_and_not_synced_is_waited_for() -> None:
    async with Running(Disk()) as running:
        client, behind = await running.client("c"), running.broker.write_behind
        assert behind is not None
        await client.subscribe("a")
        client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        await eventually(lambda: "c" not in running.inside.sessions)
        number = behind.next_batch()
        await eventually(lambda: behind.next_batch() > number)  # it is written, in a batch that nobody waits for
        assert behind.saved < number
        assert not behind.is_sure("c")
        assert behind.is_sure("other")
        running.disk.tables.failing = True
        client = await running.client("c", answer=False)
        answer = asyncio.ensure_future(client.expect(Connack))
        await eventually(lambda: running.inside.write_failures)
        assert not answer.done()
        running.disk.tables.failing = False
        assert not (await answer).session_present
        await client.subscribe("a")
        assert behind.is_sure("c")


async def test_a_will_leaves_the_tables_after_its_message_is_in_the_log() -> None:
    disk = Disk()
    disk.log = MemoryLog(manual=True)
    async with Running(disk, keep=[("#", 0)]) as running:
        client = await running.client("c", clean=True, expiry=0, will=Will("w", b"gone"))
        await client.drop()
        await eventually(lambda: disk.log.shards[0].end == 1)
        await running.saved()
        assert [row.client_id for row in disk.tables.load().wills] == ["c"]
        async with Running(disk.after_crash(), keep=[("#", 0)]) as second:
            assert second.disk.log.shards[0].end == 1, "it is sent again"
        disk.log.commit_now()
        await eventually(lambda: not list(disk.tables.load().wills))
        assert not list(disk.after_crash().tables.load().wills)


async def test_a_client_that_is_back_has_no_old_will() -> None:
    disk = Disk()
    disk.log = MemoryLog(manual=True)
    async with Running(disk, keep=[("#", 0)]) as running:
        client = await running.client("c", clean=True, expiry=0, will=Will("w", b"gone"))
        await client.drop()
        await eventually(lambda: disk.log.shards[0].end == 1)
        await running.client("c", clean=True, expiry=0)
        assert not list(disk.after_crash().tables.load().wills), "what it publishes now would come before it"
        disk.log.commit_now()


async def test_a_clean_session_waits_for_nothing_and_is_not_stored() -> None:
    async with Running(Disk()) as running:
        running.disk.tables.failing = True
        client = await running.client("c", clean=True, expiry=0)
        await client.subscribe("a")
        await client.leave()
        running.disk.tables.failing = False
        await running.saved()
        assert list(running.disk.tables.load().sessions) == []


async def test_changes_of_one_session_are_written_together() -> None:
    async with Running(Disk()) as running:
        client = await running.client("c")
        await client.subscribe("a")
        running.disk.tables.applied.clear()
        await publish(running, *range(20))
        for message in await client.publishes(20):
            client.send(Puback(message.packet_id))
        await client.nothing_more()
        await running.saved()
        cursors = [one for changes, _ in running.disk.tables.applied for one in changes.cursors]
        assert 1 <= len(cursors) < 20


async def test_a_session_that_is_away_and_saved_is_asleep_and_wakes() -> None:
    async with Running(Disk()) as running:
        client = await running.client("c")
        await client.subscribe("a")
        await client.leave()
        await away(running, "c")
        assert running.inside.sessions == {}
        await publish(running, 1)
        client = await running.client("c")
        assert client.connack.session_present
        assert payloads(await client.publishes(1)) == [b"1"]
        assert running.inside.asleep == {}


async def test_what_fails_to_be_written_is_tried_again() -> None:
    disk = Disk()
    async with Running(disk) as running:
        client = await running.client("c")
        await client.subscribe("a")
        disk.tables.failing = True
        await client.leave()
        await eventually(lambda: running.inside.write_failures)
        disk.tables.failing = False
        await running.saved()
        (stored,) = disk.tables.load().sessions
        assert stored.row.away_us == disk.now_us


async def test_the_id_of_a_qos_2_message_that_nobody_keeps_survives_a_crash() -> None:
    async with Running(Disk()) as first:
        publisher = await first.client("p")
        publisher.send(Publish("a", b"once", qos=2, packet_id=7))
        await publisher.expect(Pubrec)
        left = first.disk.after_crash()
        async with Running(left) as second:
            subscriber = await second.client("s", expiry=0)
            await subscriber.subscribe("a")
            back = await second.client("p")
            assert back.connack.session_present
            back.send(Publish("a", b"once", qos=2, packet_id=7, dup=True))
            assert (await back.expect(Pubrec)).packet_id == 7
            back.send(Pubrel(7))
            assert (await back.expect(Pubcomp)).reason is Reason.SUCCESS
            await subscriber.nothing_more()


@pytest.mark.parametrize("in_step", [False, True])
async def test_a_small_window_waits_for_the_tables_once_where_they_are_slow(in_step: bool) -> None:
    """Three messages at a time need one batch: their PUBRELs wait for it, and it has the ids of the next three."""
    async with Running(Disk(), keep=[("#", 0)]) as running:
        tables = running.disk.tables
        apply, count = tables.apply, 120

        def slowly(changes: Changes, durable: bool = False) -> Refused:
            time.sleep(0.01 if durable else 0)
            return apply(changes, durable)

        client = await running.client("c", receive_maximum=3)
        await client.subscribe("a", qos=2)
        publisher = await running.client("p", clean=True, expiry=0)
        for number in range(count):
            publisher.send(Publish("a", b"%d" % number, qos=2, packet_id=number + 1))
            await publisher.expect(Pubrec)
        tables.apply = slowly  # type: ignore[method-assign]
        tables.applied.clear()
        got: list[bytes] = []
        under_way = done = 0
        answers: list[Pubrec | Pubcomp] = []
        while done < count:
            packet = await client.receive()
            if isinstance(packet, Publish):
                assert not packet.dup
                got.append(packet.payload)
                under_way += 1
                assert under_way <= 3, "more than the Receive Maximum"
                answers.append(Pubrec(packet.packet_id))
            else:
                answers.append(Pubcomp(packet.packet_id))
                done += 1
                under_way -= 1
            if not in_step or len(answers) == 3:  # or each answer in a packet of its own, as most clients send them
                for answer in answers:
                    client.send(answer)
                    await asyncio.sleep(0)
                answers.clear()
        assert got == [b"%d" % number for number in range(count)]
        assert len(tables.applied) <= count // 2, "one for three messages, and some when they fall apart; it was two"


async def test_a_message_made_ahead_of_its_turn_waits_for_its_stored_id() -> None:
    """A PUBREC that refuses makes room without a PUBREL, so nothing has waited for the tables since then."""
    async with Running(Disk(), keep=[("#", 0)]) as running:
        client = await running.client("c", receive_maximum=1)
        await client.subscribe("a", qos=2)
        publisher = await running.client("p", clean=True, expiry=0)
        for number in range(4):
            publisher.send(Publish("a", b"%d" % number, qos=2, packet_id=number + 1))
            await publisher.expect(Pubrec)
        first = await client.expect(Publish)
        client.send(Pubrec(first.packet_id))
        client.send(Pubcomp((await client.expect(Pubrel)).packet_id))
        await client.expect(Publish)  # with the id of the next, which is given now
        tables = running.disk.tables
        apply, stored = tables.apply, set[int]()

        def slowly(changes: Changes, durable: bool = False) -> Refused:
            time.sleep(0.1)
            refused = apply(changes, durable)
            if durable:
                stored.update(one for _, cursor in changes.cursors for one, _, _ in unpack_inflight(cursor.inflight))
            return refused

        tables.apply = slowly  # type: ignore[method-assign]
        client.send(Pubrec(2, Reason.UNSPECIFIED_ERROR))
        third = await client.expect(Publish)
        assert (third.payload, third.packet_id) == (b"2", 3)
        client.send(Pubrec(3, Reason.UNSPECIFIED_ERROR))
        fourth = await client.expect(Publish)
        assert (fourth.payload, fourth.packet_id) == (b"3", 4)
        assert 4 in stored


async def test_what_was_made_ahead_of_its_turn_is_sent_on_the_next_connection() -> None:
    async with Running(Disk(), keep=[("#", 0)]) as running:
        client = await running.client("c", receive_maximum=2)
        await client.subscribe("a", qos=2)
        publisher = await running.client("p", clean=True, expiry=0)
        for number in range(7):
            publisher.send(Publish("a", b"%d" % number, qos=2, packet_id=number + 1))
            await publisher.expect(Pubrec)
        assert payloads([await client.expect(Publish), await client.expect(Publish)]) == [b"0", b"1"]
        client.send(Pubrec(1))
        await client.expect(Pubrel)
        await client.drop()
        back = await running.client("c", receive_maximum=2)
        assert (await back.expect(Pubrel)).packet_id == 1
        got = [await back.expect(Publish)]
        await back.nothing_more()
        back.send(Pubcomp(1))
        while got[-1].payload != b"6":
            got.append(await back.expect(Publish))
            back.send(Pubrec(got[-2].packet_id))
            back.send(Pubcomp((await back.expect(Pubrel)).packet_id))
        assert payloads(got) == [b"1", b"2", b"3", b"4", b"5", b"6"]
