"""Durable shared groups across restarts and crashes, and what others see of them."""

import asyncio
from pathlib import Path

import pytest
from tests.memory_tables import MemoryTables
from tests.restarts import Client, Disk, Running, eventually

from everlog.base import Records, StorageError
from everlog.broker import GroupOptions, GroupState, Limits, Numbers
from everlog.broker.groups import durable_group, group_registry
from everlog.broker.reports.sys_topics import ROOT, SysInfo
from everlog.commitlog import LogSettings
from everlog.mqtt import Puback, Publish
from everlog.sessions import Changes, GroupRow, unpack_owed
from everlog.store import LogStore

FILTER = "$share/g/t/#"


async def published(running: Running, *numbers: int, topic: str = "t/a") -> None:
    publisher = await running.client("", clean=True, expiry=0)
    for number in numbers:
        await publisher.publish(topic, str(number).encode())
    await publisher.leave()


async def member(running: Running, name: str, *, subscribe: bool = False) -> Client:
    client = await running.client(name)
    if subscribe:
        await client.subscribe(FILTER)
    return client


def numbers(messages: list[Publish]) -> list[int]:
    return [int(one.payload) for one in messages]


def ack(client: Client, *messages: Publish) -> None:
    client.send(*(Puback(one.packet_id) for one in messages))


@pytest.mark.parametrize("shards", [1, 3])
def test_after_a_crash_what_was_not_acknowledged_comes_again_and_nothing_else(shards: int) -> None:
    async def run() -> None:
        disk = Disk(shards)
        async with Running(disk) as running:
            one, two = await member(running, "one", subscribe=True), await member(running, "two", subscribe=True)
            await published(running, *range(10))
            mine, theirs = await one.publishes(5), await two.publishes(5)
            ack(one, mine[1], mine[2])
            ack(two, *theirs)
            await one.nothing_more()
            await two.nothing_more()
            await running.saved()
            left = disk.after_crash()
        async with Running(left) as running:
            (state,) = running.inside.group_states()
            assert (state.members, state.subscribers, state.lag, state.owed) == (0, 2, 3, 3)
            assert running.inside.kept_filters() == [("t/#", 0)], "what comes before a member does is kept"
            await published(running, 10)
            two = await member(running, "two")
            found = await two.publishes(4)
            assert sorted(numbers(found)) == sorted([*numbers([mine[0], mine[3], mine[4]]), 10])
            ack(two, *found)
            await two.nothing_more()
            one = await member(running, "one")
            await one.nothing_more()
            assert running.inside.group_states()[0].lag == 0

    asyncio.run(run())


def test_after_a_crash_a_member_gets_its_own_with_dup_and_the_same_packet_ids() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, 0, 1)
            sent = await one.publishes(2)
            await running.saved()
            await published(running, 2)  # dealt, and nothing stored of that
            await one.publishes(1)
            left = disk.after_crash()
        async with Running(left) as running:
            one = await member(running, "one")
            again = await one.publishes(3)
            assert [(one.payload, one.dup) for one in again] == [(b"0", True), (b"1", True), (b"2", True)]
            assert [one.packet_id for one in again[:2]] == [one.packet_id for one in sent]
            await published(running, 3)
            (new,) = await one.publishes(1)
            assert not new.dup

    asyncio.run(run())


def test_a_clean_stop_leaves_no_doubt() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await one.leave()
            await published(running, 0, 1)
        async with Running(disk) as running:
            one = await member(running, "one")
            assert [(one.payload, one.dup) for one in await one.publishes(2)] == [(b"0", False), (b"1", False)]

    asyncio.run(run())


def test_a_group_of_clean_members_alone_does_not_outlive_the_broker() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            clean = await running.client("clean", clean=True, expiry=0)
            await clean.subscribe(FILTER)
            await one.unsubscribe(FILTER)
            await published(running, 0)
            await clean.publishes(1)
            await running.saved()
            left = disk.after_crash()
            assert len(list(left.tables.load().groups)) == 1
        async with Running(left) as running:
            assert running.inside.group_states() == []
            assert running.inside.kept_filters() == []
        assert list(left.tables.load().groups) == []

    asyncio.run(run())


def test_subscriptions_of_an_older_file_begin_a_group_where_the_log_ends() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await one.leave()
            await published(running, 0)
        MemoryTables.apply(disk.tables, Changes(ended_groups=(("g", "t/#"),)))
        async with Running(disk) as running:
            await published(running, 1)
            one = await member(running, "one")
            assert numbers(await one.publishes(1)) == [1]

    asyncio.run(run())


def test_a_log_that_lost_its_tail_gives_its_offsets_out_again_and_the_group_gets_them() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, 0, 1, 2)
            await one.publishes(3)
            await running.saved()
        shard = disk.log.shards[0]
        shard.batches = shard.batches[:1]
        shard.end = shard.committed = shard.batches[0].end_offset
        async with Running(disk) as running:
            await published(running, 10, 11)
            one = await member(running, "one")
            assert numbers(await one.publishes(3)) == [0, 10, 11]

    asyncio.run(run())


def test_messages_that_the_log_has_no_more_are_counted_and_hold_up_nothing() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, 0, 1, 2, 3)
            ack(one, (await one.publishes(4))[3])
            await one.nothing_more()
            await one.drop()
            await eventually(lambda: not running.inside.connections)
            disk.log.shards[0].batches = disk.log.shards[0].batches[2:]
            one = await member(running, "one")
            found = await one.publishes(1)
            assert numbers(found) == [2]
            ack(one, *found)
            await one.nothing_more()
            (state,) = running.inside.group_states()
            assert (state.lag, running.inside.group_lost) == (0, 2)

    asyncio.run(run())


@pytest.mark.parametrize("gone", [0, 1])
def test_a_message_that_one_shard_has_no_more_is_not_taken_for_one_of_another(gone: int) -> None:
    async def run() -> None:
        disk = Disk(2)
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, 0, 1)
            await published(running, 2, 3, topic="t/bb")
            assert [shard.end for shard in disk.log.shards] == [2, 2]
            await one.publishes(4)
            await one.drop()
            await eventually(lambda: not running.inside.connections)
            disk.log.shards[gone].batches = []
            one = await member(running, "one")
            assert sorted(numbers(await one.publishes(2))) == ([0, 1] if gone == 0 else [2, 3])
            await one.nothing_more()
            assert running.inside.group_lost == 2

    asyncio.run(run())


@pytest.mark.parametrize("what", ["owed", "behind"])
def test_a_group_whose_messages_can_not_be_read_tries_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            if what == "behind":
                await one.drop()
                await eventually(lambda: "one" in running.inside.asleep)
            await published(running, 1, 2)
            if what == "owed":
                await one.publishes(2)
                await one.drop()
                await eventually(lambda: "one" in running.inside.asleep)
            with monkeypatch.context() as patch:
                patch.setattr(disk.log.shards[0], "read", failing)
                one = await member(running, "one")
                running.inside.sweep_groups()
                await one.nothing_more()
            running.inside.sweep_groups()
            assert numbers(await one.publishes(2)) == [1, 2]

    def failing(offset: int, max_bytes: int) -> list[Records]:
        raise StorageError("the disk does not answer")

    asyncio.run(run())


def test_a_group_begins_where_it_is_told_to() -> None:
    async def run() -> None:
        async with Running(Disk(), keep=[("#", 0)]) as running:
            await published(running, *range(6))
            one = await running.client("one")
            await one.subscribe("other")
            running.inside.begin_group(running.inside.sessions["one"], FILTER, since=(2,))
            await published(running, 6)
            assert numbers(await one.publishes(5)) == [2, 3, 4, 5, 6]

    asyncio.run(run())


def test_retention_is_told_what_each_group_still_needs() -> None:
    async def run() -> None:
        async with Running(Disk(2)) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, *range(4))
            sent = await one.publishes(4)
            ack(one, sent[0], sent[3])
            await one.nothing_more()
            await published(running, 4, topic="t/bb")
            last = await one.publishes(1)
            assert running.inside.group_positions() == {("g", "t/#"): (0, 1)}
            ack(one, sent[1], sent[2])
            await one.nothing_more()
            assert running.inside.group_positions() == {("g", "t/#"): (0, 4)}
            ack(one, *last)
            await one.nothing_more()
            assert running.inside.group_positions() == {("g", "t/#"): (1, 4)}

    asyncio.run(run())


def test_many_messages_go_through_a_small_group_from_the_log() -> None:
    async def run() -> None:
        options = GroupOptions(inflight_messages=7, member_messages=3)
        async with Running(Disk(3), groups=options) as running:
            away = await member(running, "away", subscribe=True)
            await away.leave()
            publisher = await running.client("", clean=True, expiry=0)
            for start in range(0, 300, 50):
                publisher.send(
                    *(
                        Publish(f"t/{'x' * (k % 5)}", str(k).encode(), qos=1, packet_id=k + 1)
                        for k in range(start, start + 50)
                    )
                )
                for _ in range(50):
                    await publisher.expect(Puback)
            crew = [await running.client(f"c{k}", clean=True, expiry=0) for k in range(4)]
            for one in crew:
                await one.subscribe(FILTER)
            got: list[int] = []

            async def work(client: Client) -> None:
                while True:
                    (message,) = await client.publishes(1)
                    got.append(int(message.payload))
                    ack(client, message)

            workers = [asyncio.create_task(work(one)) for one in crew]
            await eventually(lambda: len(got) >= 300 and not running.inside.group_states()[0].lag)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            assert sorted(got) == list(range(300))

    asyncio.run(run())


def test_a_row_is_gone_with_its_group() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            assert [(row.name, row.filter) for row in disk.tables.durable().load().groups] == [("g", "t/#")]
            await one.unsubscribe(FILTER)
            assert list(disk.tables.durable().load().groups) == []

    asyncio.run(run())


def test_a_batch_that_could_not_be_written_is_written_later() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await running.saved()
            disk.tables.failing = True
            await published(running, 0)
            await one.publishes(1)
            before = running.inside.write_failures
            await eventually(lambda: running.inside.write_failures > before + 1)  # one of them had all of it
            disk.tables.failing = False
            await running.saved()
            (row,) = disk.tables.durable().load().groups
            assert isinstance(row, GroupRow)
            assert [position for position, _ in unpack_owed(row.owed)] == [0]

    asyncio.run(run())


def test_what_the_broker_says_of_a_group_is_taken_back_when_it_is_gone() -> None:
    info = SysInfo()
    states = (GroupState("g", "a", True, lag=5, inflight=2, members=1), GroupState("g", "b", True, lag=7, members=2))
    said = info.changes(Numbers(largest_groups=states))
    assert [said[f"{ROOT}groups/g/{name}"] for name in ("lag", "inflight", "members")] == ["12", "2", "3"]
    assert info.changes(Numbers(largest_groups=states)) == {}
    gone = info.changes(Numbers(uptime_s=1))
    assert [gone[f"{ROOT}groups/g/{name}"] for name in ("lag", "inflight", "members")] == ["", "", ""]
    assert f"{ROOT}groups/g/lag" not in info.changes(Numbers(uptime_s=2))


def test_a_group_stays_where_it_is_when_its_only_connected_member_unsubscribes() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await one.leave()
            two = await member(running, "two", subscribe=True)
            await running.saved()
            await two.unsubscribe(FILTER)
            await published(running, 0)
            await running.saved()
            left = disk.after_crash()
        async with Running(left) as running:
            one = await member(running, "one")
            assert numbers(await one.publishes(1)) == [0]

    asyncio.run(run())


def test_what_is_committed_and_not_routed_yet_is_not_dealt_twice() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk, groups=GroupOptions(member_messages=1)) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, 0, 1)
            first = await one.publishes(1)
            shard = disk.log.shards[0]
            shard.manual = True
            publisher = await running.client("", clean=True, expiry=0)
            publisher.send(Publish("t/a", b"2", qos=1, packet_id=1))
            await eventually(lambda: shard.end == 3)
            shard.commit_now()  # and the broker has not heard of it
            ack(one, *first)
            ack(one, *await one.publishes(1))
            await one.nothing_more()
            disk.log.commit_now()
            await publisher.expect(Puback)
            last = await one.publishes(1)
            assert numbers(last) == [2]
            ack(one, *last)
            await one.nothing_more()

    asyncio.run(run())


def test_a_qos_2_message_never_goes_to_two_members_whenever_the_broker_crashes() -> None:
    async def run() -> None:
        disk = Disk()
        async with Running(disk) as running:
            one = await member(running, "one", subscribe=True)
            await one.leave()
            clean = await running.client("clean", clean=True, expiry=0)
            await clean.subscribe(FILTER, qos=2)
            publisher = await running.client("", clean=True, expiry=0)
            publisher.send(Publish("t/a", b"0", qos=2, packet_id=1))
            (message,) = await clean.publishes(1)
            assert message.qos == 2
            left = disk.after_crash()
        async with Running(left) as running:
            one = await member(running, "one")
            await one.nothing_more()

    asyncio.run(run())


def test_a_long_backlog_is_dealt_a_bit_in_each_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_group, "_TURN_BYTES", 1000)
    monkeypatch.setattr(durable_group, "_PULL_RECORDS", 10)

    async def run() -> None:
        disk = Disk()
        disk.log = LogStore.open(tmp_path, LogSettings(durability="flush"), shards=1)  # type: ignore[assignment]
        async with Running(disk) as running:
            running.inside.stop_sweeping()  # it would deal the rest, later
            one = await member(running, "one", subscribe=True)
            await one.leave()
            await published(running, *range(200))
            clean = await running.client("clean", clean=True, expiry=0)
            await clean.subscribe(FILTER, qos=0)
            assert numbers(await clean.publishes(200)) == list(range(200))
            await clean.nothing_more()
        disk.log.close()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_groups_that_take_too_much_deal_a_few_at_a_time_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_registry, "_FEW", 4)

    async def run() -> None:
        async with Running(Disk(), limits=Limits(groups_bytes=6000)) as running:
            one = await member(running, "one", subscribe=True)
            await published(running, *range(20))
            first = await one.publishes(20)
            ack(one, *first[:10])
            await one.nothing_more()
            running.inside.sweep_groups()
            await published(running, *range(20, 40))
            await one.nothing_more()  # 10 are under way, and together that is too much
            ack(one, *first[10:])
            found: list[int] = []
            while len(found) < 20:
                some = await one.publishes(4)
                await one.nothing_more()
                found += numbers(some)
                ack(one, *some)
            assert found == list(range(20, 40))
            running.inside.sweep_groups()
            await published(running, *range(40, 60))
            assert numbers(await one.publishes(20)) == list(range(40, 60))

    asyncio.run(run())
