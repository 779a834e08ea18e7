"""The retention loop on a broker with a real log: what goes, who is told, who loses next, what waits for a table."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.restarts import Client, Disk, Running, eventually

from everlog.app.retention_loop import WARN_EVERY_S, RetentionLoop, RetentionOptions
from everlog.base import StorageError
from everlog.broker import Event, ExpiryClock, GroupOptions
from everlog.commitlog import LogSettings
from everlog.mqtt import Puback, Publish, Pubrec
from everlog.sessions import Session, Subscribed, stored
from everlog.store import ColdStore, LakeRecord, LogStore, TopicClasses, write_lake_record

AGE_US = 3600 * 1_000_000


class Kept:
    """A broker on a store of small segments, its retention run by hand."""

    def __init__(self, running: Running, store: LogStore, options: RetentionOptions) -> None:
        self.running = running
        self.store = store
        self.now_s = 0.0
        self.data = Path(options.data)
        unread_loss, now_us = running.broker.reports.unread_loss, running.broker.now_us
        self.loop = RetentionLoop(store, unread_loss, options, now_us, clock=lambda: self.now_s)
        self.state = unread_loss.state

    async def publish(self, count: int, topics: int = 7) -> None:
        """Messages of 100 bytes over some topics, in order; a second goes by with each ten."""
        client = await self.running.client("publisher", clean=True, expiry=0)
        for number in range(count):
            await client.publish(f"t/{number % topics}", b"%100d" % number)
            if number % 10 == 0:
                self.running.disk.now_us += 1_000_000
        await client.leave()
        for log in self.store.shards:
            await eventually(lambda log=log: log.statistics().waiting_to_seal == 0)

    async def publish_both(self, count: int) -> None:
        """By turns to a short-lived topic and to one that is kept for ever."""
        client = await self.running.client("publisher", clean=True, expiry=0)
        for number in range(count):
            await client.publish("long" if number % 2 else "short", b"%100d" % number)
        await client.leave()
        await eventually(lambda: all(log.statistics().waiting_to_seal == 0 for log in self.store.shards))

    async def client(self, client_id: str) -> Client:
        """A durable client whose session outlives what is kept."""
        return await self.running.client(client_id, expiry=100 * AGE_US // 1_000_000)

    async def away(self, client_id: str, *filters: str) -> None:
        """One that subscribes and leaves."""
        client = await self.client(client_id)
        await client.subscribe(*filters)
        await self.leave(client, client_id)

    async def leave(self, client: Client, client_id: str) -> None:
        await client.leave()
        await eventually(lambda: client_id in self.running.inside.asleep)

    def starts(self) -> list[int]:
        return [log.start for log in self.store.shards]

    def table(self, *ends: int) -> None:
        """Say that a table has each shard up to there."""
        record = LakeRecord(table="lake", store=self.store.identity, ends=dict(enumerate(ends)))
        write_lake_record(str(self.data), record)


@asynccontextmanager
async def kept(
    data: Path,
    shards: int = 1,
    await_table: bool = False,
    cold: ColdStore | None = None,
    classes: tuple[tuple[str, int | None], ...] = (),
    ordered: bool = False,
    **limits: Any,
) -> AsyncIterator[Kept]:
    settings: dict[str, Any] = {"durability": "flush", "segment_bytes": 2000, "batch_bytes": 600, "tail_bytes": 0}
    store = LogStore.open(
        str(data), LogSettings(**settings, **limits), shards=shards, classes=TopicClasses(classes) if classes else None
    )
    disk = Disk()
    disk.log = store  # type: ignore[assignment]
    try:
        groups = GroupOptions(ordered=("g",) if ordered else ())
        async with Running(disk, cold=cold, groups=groups, publishers=False) as running:
            yield Kept(running, store, RetentionOptions(str(data), await_table, cold is not None))
    finally:
        store.close()


class Events:
    """The fields of every event of a name, in order."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self, name: str) -> list[dict[str, Any]]:
        found = [record.msg for record in self._caplog.records]
        return [one.fields for one in found if isinstance(one, Event) and one.name == name]


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Events:
    monkeypatch.setattr("everlog.broker.events._flood.admit", lambda name: 0)
    caplog.set_level(logging.INFO)
    return Events(caplog)


BySize: dict[str, Any] = {"retention_bytes": 4000}
ByAge: dict[str, Any] = {"retention_us": AGE_US}


@pytest.mark.parametrize("limits", [BySize, ByAge], ids=["size", "age"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_an_away_session_loses_what_it_is_told_and_gets_the_rest(
    tmp_path: Path, shards: int, limits: dict[str, Any], events: Events
) -> None:
    async with kept(tmp_path / "data", shards, **limits) as world:
        await world.away("gone", "t/#")
        await world.publish(200)
        if limits is ByAge:
            world.running.disk.now_us += AGE_US - 10_000_000
        begins = world.running.broker.router.routed
        await world.loop.once()
        starts = world.starts()
        assert sum(starts) > 0
        told = events("retention_lost")
        assert {one["client"] for one in told} == {"gone"}
        assert [(one["shard"], one["from"], one["to"], one["count"]) for one in told] == [
            (shard, 0, start, start) for shard, start in enumerate(starts) if start
        ]
        assert (world.state.lost, world.state.losers) == (sum(starts), 1)
        await world.loop.once()
        assert len(events("retention_lost")) == len(told), "told once"
        back = await world.client("gone")
        found = await back.publishes(200 - sum(starts))
        assert len({one.payload for one in found}) == 200 - sum(starts)
        session = world.running.inside.sessions["gone"]
        assert session.counters.lost == world.running.inside.lost == sum(starts)
        asked = [(one["shard"], one["first"], one["stop"]) for one in events("lost")]
        assert sorted(asked) == [(shard, 0, start) for shard, start in enumerate(starts) if start]
        await back.nothing_more()
        assert sum(begins) == 200


async def test_who_has_read_everything_is_told_nothing(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        client = await world.client("here")
        await client.subscribe("t/#", qos=0)
        await world.publish(100)
        await client.publishes(100)
        await world.away("late", "t/#")
        await world.loop.once()
        assert world.starts()[0] > 0
        assert events("retention_lost") == []
        assert (world.state.lost, world.state.next_readers) == (0, 0)


async def test_what_was_sent_and_not_acknowledged_is_lost_to_a_client_that_left(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        client = await world.client("slow")
        await client.subscribe("t/#")
        await world.publish(100)
        messages = await client.publishes(100)
        await world.loop.once()
        first = world.starts()[0]
        assert first > 0
        assert events("retention_lost") == [], "it was sent all of it"
        client.send(*(Puback(one.packet_id) for k, one in enumerate(messages) if k not in (first + 1, first + 5)))
        await world.leave(client, "slow")
        await world.publish(100)
        await world.loop.once()
        stop = world.starts()[0]
        assert first + 5 < stop
        unread = max(0, stop - 100)
        (told,) = events("retention_lost")
        assert told == {"client": "slow", "shard": 0, "from": first + 1, "to": stop, "count": 2 + unread}


async def test_a_connected_reader_that_notices_at_once_is_told_as_much_as_it_missed(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        client = await world.running.client("slow", receive_maximum=5, expiry=1000)
        await client.subscribe("t/#")
        await world.publish(100)
        messages = await client.publishes(5)
        loop, remove, inside = asyncio.get_running_loop(), world.store.run_retention, world.running.inside

        async def read_on() -> None:
            client.send(*(Puback(one.packet_id) for one in messages))
            await eventually(lambda: inside.lost)

        def removed(*arguments: Any) -> None:
            remove(*arguments)
            asyncio.run_coroutine_threadsafe(read_on(), loop).result(20)

        monkeypatch.setattr(world.store, "run_retention", removed)
        await world.loop.once()
        (start,), (missed,) = world.starts(), events("lost")
        assert (missed["first"], missed["stop"]) == (5, start)
        told = {"client": "slow", "shard": 0, "from": 5, "to": start, "count": start - 5}
        assert (events("retention_lost"), world.state.lost) == ([told], start - 5)
        await world.loop.once()
        assert len(events("retention_lost")) == 1, "told once"


async def test_a_group_that_nobody_serves_is_told(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        await world.away("member", "$share/g/t/#")
        await world.publish(100)
        await world.loop.once()
        (start,) = world.starts()
        told = {"group": "$share/g/t/#", "shard": 0, "from": 0, "to": start, "count": start}
        assert events("retention_lost") == [told], "and the session, which has nothing of its own, is not"
        (one,) = world.state.next_named
        assert (one.name, one.is_group) == ("$share/g/t/#", True)


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_members_have_and_did_not_acknowledge_a_group_has_not_read(
    tmp_path: Path, ordered: bool, events: Events
) -> None:
    async with kept(tmp_path / "data", ordered=ordered, **BySize) as world:
        client = await world.client("member")
        await client.subscribe("$share/g/t/#")
        await world.publish(100)
        messages = await client.publishes(100)
        (plan,) = world.store.plan_retention(0)
        assert plan.start > 10
        late = messages[5]
        client.send(*(Puback(one.packet_id) for one in messages if one is not late))
        await client.nothing_more()
        await world.loop.once()
        assert world.starts() == [plan.start]
        told = {"group": "$share/g/t/#", "shard": 0, "from": 5, "to": plan.start, "count": 1}
        assert events("retention_lost") == [told], "nobody could give it to another member any more"
        await world.leave(client, "member")
        await (await world.client("member")).nothing_more()
        assert world.running.inside.group_lost == 1


async def test_a_member_who_has_what_goes_next_makes_its_group_one_of_those_who_lose(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", **ByAge) as world:
        client = await world.client("member")
        await client.subscribe("$share/g/t/#", qos=2)
        publisher = await world.running.client("publisher", clean=True, expiry=0)
        await publisher.publish("t/1", b"at QoS 1")
        await publisher.leave()
        (message,) = await client.publishes(1)
        await world.loop.once()
        (one,) = world.state.next_named
        assert (one.name, one.unread, one.begins) == ("$share/g/t/#", 1, "0:0")
        client.send(Puback(message.packet_id))
        await client.nothing_more()
        world.now_s += 60
        await world.loop.once()
        assert world.state.next_named == ()


async def test_a_qos_2_message_that_a_member_has_goes_to_nobody_else_so_its_group_does_not_lose_it(
    tmp_path: Path, events: Events
) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        client = await world.client("member")
        await client.subscribe("$share/g/t/#", qos=2)
        publisher = await world.running.client("publisher", clean=True, expiry=0)
        for number in range(60):
            publisher.send(Publish("t/1", b"%100d" % number, qos=2, packet_id=number + 1))
            await publisher.expect(Pubrec)
        await client.publishes(60)
        await world.loop.once()
        assert world.starts()[0] > 0
        assert events("retention_lost") == []


async def test_a_subscription_that_began_later_loses_nothing_from_before(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        client = await world.client("two")
        await client.subscribe("other")
        await world.leave(client, "two")
        await world.away("keeper", "t/#")
        await world.publish(100)
        client = await world.client("two")
        await client.unsubscribe("other")
        await world.leave(client, "two")
        await world.loop.once()
        assert {one["client"] for one in events("retention_lost")} == {"keeper"}


@pytest.mark.parametrize("shards", [1, 4])
async def test_who_would_lose_next_is_named_with_those_who_lose_most_first(tmp_path: Path, shards: int) -> None:
    async with kept(tmp_path / "data", shards, **ByAge) as world:
        await world.away("early", "t/#")
        await world.publish(3)
        await world.away("later", "t/#")
        await world.publish(60)
        await world.away("last", "t/#")
        await world.loop.once()
        assert sum(world.starts()) == 0
        plans = world.store.plan_retention(world.running.broker.now_us())
        unread = sum(plan.next_to - plan.start for plan in plans)
        first, second = world.state.next_named
        assert (first.name, first.unread, second.name) == ("early", unread, "later")
        assert 0 < second.unread < unread
        assert world.state.next_readers == 2
        assert json.loads(world.state.next_text())[0]["client"] == "early"
        assert world.state.next_us == min(plan.next_us for plan in plans if plan.next_us is not None)
        assert 0 < world.state.next_us - world.running.broker.now_us() < AGE_US


async def test_only_ten_are_named_and_all_are_counted(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", **ByAge) as world:
        await world.away("one", "t/#")
        await world.publish(40)

        def put() -> None:
            filters = {"t/#": Subscribed("t/#", 1)}
            for number in range(600):  # more than are looked at in one turn of the loop
                session = Session(f"s{number}", expiry_s=60, subscriptions=filters, lag={0: 3 + number % 2})
                world.running.inside.add_asleep(stored(session, [40]))

        put()
        await world.loop.once()
        assert world.state.next_readers == 601
        assert len(world.state.next_named) == 10
        assert world.state.next_named[0].name == "one"
        assert {one.begins for one in world.state.next_named} == {"0:0", "0:3"}


async def test_all_sessions_are_looked_at_again_only_after_a_rest(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", **ByAge) as world:
        ticks = iter(range(1_000_000))
        world.loop._clock = lambda: world.now_s + 0.001 * next(ticks)  # looking takes time
        await world.loop.once()
        await world.away("one", "t/#")
        await world.publish(40)
        await world.loop.once()
        assert world.state.next_readers == 0, "the first look still stands"
        world.now_s += 60
        await world.loop.once()
        assert world.state.next_readers == 1


@pytest.mark.parametrize("limits", [BySize, ByAge], ids=["size", "age"])
async def test_what_no_table_has_stays_and_the_operator_hears_of_it(
    tmp_path: Path, limits: dict[str, Any], events: Events
) -> None:
    async with kept(tmp_path / "data", await_table=True, **limits) as world:
        await world.away("gone", "t/#")
        await world.publish(100)
        world.running.disk.now_us += 2 * AGE_US
        await world.loop.once()
        assert world.starts() == [0]
        assert world.state.held_bytes > 0
        (held,) = events("retention_held")
        assert (held["shard"], held["bytes"]) == (0, world.state.held_bytes)
        await world.loop.once()
        assert len(events("retention_held")) == 1
        world.now_s += WARN_EVERY_S
        await world.loop.once()
        assert len(events("retention_held")) == 2
        edge = world.store.shards[0].segments()[2].base_offset
        world.table(edge + 1)
        await world.loop.once()
        assert world.starts() == [edge], "a segment that the table has in part stays"
        assert [one["count"] for one in events("retention_lost")] == [edge]
        world.table(100)
        await world.loop.once()
        assert world.starts()[0] > edge
        assert world.state.held_bytes == 0


async def test_the_table_of_another_store_lets_nothing_go(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", await_table=True, **BySize) as world:
        await world.away("gone", "t/#")
        await world.publish(100)
        write_lake_record(str(world.data), LakeRecord(table="lake", store="another", ends={0: 100}))
        await world.loop.once()
        assert world.starts() == [0]
        (world.data / "lake.json").write_text("{")
        await world.loop.once()
        assert world.starts() == [0]
        assert events("table_unknown")


async def test_a_session_loses_nothing_that_it_can_read_from_the_table(tmp_path: Path, events: Events) -> None:
    class Table:
        """Has whatever it is asked for; nobody asks."""

        def close(self) -> None: ...

    async with kept(tmp_path / "data", cold=Table(), **BySize) as world:  # type: ignore[arg-type]
        await world.away("gone", "t/#")
        await world.away("member", "$share/g/t/#")
        await world.publish(100)
        (plan,) = world.store.plan_retention(0)
        world.table(plan.start - 3)
        await world.loop.once()
        assert world.starts() == [plan.start]
        told = {next(iter(one.values())): (one["from"], one["count"]) for one in events("retention_lost")}
        assert told == {"gone": (plan.start - 3, 3), "$share/g/t/#": (0, plan.start)}, "a group reads the log alone"


async def test_the_loop_goes_on_after_a_failure(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        failing: Callable[[Any], Any] = world.store.plan_retention
        calls = []

        def plan(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 1:
                raise StorageError("the disk is gone")
            return failing(*arguments)

        world.store.plan_retention = plan  # type: ignore[method-assign]
        task = asyncio.create_task(world.loop.run(0.001))
        await eventually(lambda: len(calls) > 2)
        task.cancel()
        assert [str(one["reason"]) for one in events("retention_failed")] == ["the disk is gone"]


SHORT = (("short", AGE_US),)


def is_short(message: Publish) -> bool:
    return message.topic == "short"


async def test_short_lived_topics_go_out_of_segments_that_others_keep(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path / "data", classes=SHORT) as world:
        await world.away("gone", "long", "short")
        await world.publish_both(100)
        await world.loop.once()
        assert world.state.thinned == 0
        world.running.disk.now_us += 2 * AGE_US
        await world.loop.once()
        thinned = events("retention_thinned")
        assert thinned
        assert world.state.thinned == sum(one["count"] for one in thinned) > 20
        assert world.state.thinned_bytes == sum(one["before"] - one["after"] for one in thinned) > 2_000
        assert world.starts() == [0]
        end = thinned[-1]["to"]
        back = await world.client("gone")
        found = await back.publishes(100 - world.state.thinned)
        assert sum(not is_short(one) for one in found) == 50
        assert [int(one.payload) for one in found] == [n for n in range(100) if n % 2 or n >= end]
        await back.nothing_more()


async def test_what_was_under_way_and_is_emptied_is_not_sent_again(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", classes=SHORT) as world:
        client = await world.client("slow")
        await client.subscribe("long", "short")
        await world.publish_both(60)
        first = await client.publishes(60)
        await world.leave(client, "slow")
        world.running.disk.now_us += 2 * AGE_US
        await world.loop.once()
        left = 60 - world.state.thinned
        assert left < 60
        back = await world.client("slow")
        again = await back.publishes(left)
        assert all(one.dup for one in again)
        assert [one.payload for one in again if not is_short(one)] == [
            one.payload for one in first if not is_short(one)
        ]
        await back.nothing_more()
        session = world.running.inside.sessions["slow"]
        assert session.inflight == left


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_a_group_owes_and_is_emptied_is_dropped(tmp_path: Path, ordered: bool) -> None:
    async with kept(tmp_path / "data", classes=SHORT, ordered=ordered) as world:
        client = await world.client("member")
        await client.subscribe("$share/g/long", "$share/g/short")
        await world.publish_both(60)
        await client.publishes(60)
        await world.leave(client, "member")
        world.running.disk.now_us += 2 * AGE_US
        await world.loop.once()
        left = 60 - world.state.thinned
        assert left < 60
        back = await world.client("member")
        again = await back.publishes(left)
        assert sum(not is_short(one) for one in again) == 30
        await back.nothing_more()
        assert world.running.inside.group_lost == world.state.thinned


async def test_short_lived_topics_wait_for_the_table_too(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", await_table=True, classes=SHORT) as world:
        await world.away("gone", "long", "short")
        await world.publish_both(60)
        world.running.disk.now_us += 2 * AGE_US
        await world.loop.once()
        assert world.state.thinned == 0
        world.table(60)
        await world.loop.once()
        assert world.state.thinned > 0


async def test_nothing_goes_by_age_while_the_clock_is_in_doubt(tmp_path: Path, events: Events) -> None:
    classes = (("long", None), ("short", AGE_US))
    async with kept(tmp_path / "data", classes=classes, retention_us=AGE_US) as world:
        clock = ExpiryClock(lambda: world.running.disk.now_us, lambda: 0)
        loop = RetentionLoop(
            world.store, world.running.broker.reports.unread_loss, RetentionOptions(str(world.data)), clock.due_us
        )
        await world.away("sleeper", "t/#", "long", "short")
        await world.publish(200)
        await world.publish_both(200)
        world.running.disk.now_us += 1000 * AGE_US
        await loop.once()
        assert world.starts() == [0]
        assert events("retention_thinned") == []
        clock.settle()
        await loop.once()
        assert world.starts() > [0]
        assert events("retention_thinned")


async def test_what_is_too_much_goes_while_the_clock_is_in_doubt(tmp_path: Path) -> None:
    async with kept(tmp_path / "data", **BySize) as world:
        await world.away("sleeper", "t/#")
        await world.publish(200)
        unread_loss = world.running.broker.reports.unread_loss
        await RetentionLoop(world.store, unread_loss, RetentionOptions(str(world.data)), lambda: 0).once()
        assert world.starts() > [0]


async def test_retained_messages_stay_in_the_log_until_the_session_tables_have_them(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.broker.registry.write_behind._STOP_S", 0.05)
    async with kept(tmp_path / "data", **BySize) as world:
        broker, tables = world.running.broker, world.running.disk.tables
        assert broker.write_behind is not None
        options, loss = RetentionOptions(str(world.data)), broker.reports.unread_loss
        loop = RetentionLoop(world.store, loss, options, lambda: 0, retained_at=broker.write_behind.retained_at)
        await world.away("sleeper", "t/#")
        await loop.once()
        tables.failing = True
        client = await world.running.client("retainer", clean=True, expiry=0)
        await client.publish("t/0", b"retained", retain=True)
        await world.publish(200)
        await loop.once()
        assert world.starts() == [0]
        assert events("retention_held")[0]["reason"] == "retained messages are not stored yet"
        tables.failing = False
        await eventually(lambda: world.running.inside.retained_at == (201,))
        await loop.once()
        assert world.starts() > [0]
        left = tables.durable()
        assert [row.topic for row in left.load().retained] == ["t/0"]
        assert left.load().retained_at >= tuple(world.starts())
