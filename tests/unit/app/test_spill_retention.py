"""What no setting keeps, for spills or durable sessions: held for who still reads it, given back when nobody does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.restarts import Client, Disk, Running, eventually

from everlog.app.retention_loop import RetentionLoop, RetentionOptions
from everlog.broker import Limits
from everlog.commitlog import LogSettings
from everlog.mqtt import Puback, Publish
from everlog.store import LogStore

WINDOW = 4
LIMITS = Limits(queue_bytes=4000, inflight_messages=WINDOW)
SETTINGS: dict[str, Any] = {"durability": "flush", "segment_bytes": 4000, "batch_bytes": 600, "tail_bytes": 0}


class Spilling:
    """A broker that keeps nothing by its settings, on a store of small segments; retention is run by hand."""

    def __init__(self, running: Running, store: LogStore, data: Path) -> None:
        self.running = running
        self.store = store
        broker = running.broker
        self.spills = broker.router.spills
        options = RetentionOptions(str(data))
        self.loop = RetentionLoop(store, broker.reports.unread_loss, options, broker.now_us, spills=self.spills)

    async def publish(self, first: int, count: int, *topics: str) -> None:
        """Numbers to some topics by turns."""
        client = await self.running.client("publisher", clean=True, expiry=0)
        for number in range(first, first + count):
            await client.publish(topics[number % len(topics)], b"%0200d" % number)
        await client.leave()
        for log in self.store.shards:
            await eventually(lambda log=log: log.statistics().waiting_to_seal == 0)

    async def slow(self, *filters: str, name: str = "slow") -> Client:
        """A clean client that acknowledges nothing by itself."""
        client = await self.running.client(name, clean=True, expiry=0)
        await client.subscribe(*filters)
        return client

    async def is_live(self) -> None:
        """Until nobody is spilled and nothing is kept for that."""
        self.spills.sweep()
        await eventually(lambda: self.spills.sweep() or not self.running.inside.spilled_filters())
        assert len(self.spills) == 0

    def bytes(self) -> int:
        return sum(log.statistics().segment_bytes for log in self.store.shards)

    def numbers(self) -> list[int]:
        """All that is in the log."""
        reader, at, found = self.store.reader(None), (0,) * len(self.store.shards), []
        while True:
            result = reader.read(at, 10_000, 1 << 24)
            for batch in result.batches:
                rows = [batch.records.row(row) for row in batch.row_numbers()]
                found += [int(bytes(row[-1])) for row in rows if len(row[-1])]
            at = result.positions
            if result.caught_up:
                return found


async def take(client: Client, count: int) -> list[int]:
    """Take so many messages, one by one."""
    found = []
    for _ in range(count):
        packet = await client.expect(Publish)
        client.send(Puback(packet.packet_id))
        found.append(int(packet.payload))
    return found


@asynccontextmanager
async def spilling(
    data: Path,
    disk: Disk | None = None,
    keep: tuple[tuple[str, int], ...] = (),
    aged: tuple[str, ...] = (),
    **limits: Any,
) -> AsyncIterator[Spilling]:
    store = LogStore.open(str(data), LogSettings(**SETTINGS, **limits), shards=1)
    disk = disk or Disk()
    disk.log = store  # type: ignore[assignment]
    try:
        async with Running(disk, limits=LIMITS, keep=list(keep), aged=aged) as running:
            yield Spilling(running, store, data)
    finally:
        store.close()


async def test_what_nobody_needs_any_more_is_given_back(tmp_path):
    async with spilling(tmp_path) as world:
        slow = await world.slow("t")
        await world.publish(0, 300, "t")
        assert len(world.spills) == 1
        full = world.bytes()
        assert full > 50_000
        await world.loop.once()
        assert world.bytes() == full, "somebody reads it"
        assert await take(slow, 300) == list(range(300))
        await world.is_live()
        await world.loop.once()
        assert world.bytes() <= SETTINGS["segment_bytes"] + 1000, "all but the segment that is written to"
        assert world.store.shards[0].start > 200
        await world.publish(300, 5, "t")
        assert await take(slow, 5) == list(range(300, 305))


async def test_a_reader_that_is_in_the_middle_keeps_the_rest(tmp_path):
    async with spilling(tmp_path) as world:
        slow = await world.slow("t")
        await world.publish(0, 300, "t")
        found = await take(slow, 150)
        await eventually(lambda: world.running.inside.sessions["slow"].lag[0] > 50)
        full = world.bytes()
        await world.loop.once()
        assert world.bytes() < 0.8 * full
        assert found + await take(slow, 150) == list(range(300))


async def test_what_durable_sessions_have_subscribed_to_stays(tmp_path):
    async with spilling(tmp_path) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("kept")
        await durable.leave()
        slow = await world.slow("t")
        await world.publish(0, 400, "t", "kept")
        full = world.bytes()
        assert await take(slow, 200) == list(range(0, 400, 2))
        await world.is_live()
        await world.loop.once()
        assert world.bytes() < 0.75 * full
        assert world.store.shards[0].start == 0, "nobody is told of a loss"
        assert [number for number in world.numbers() if number % 2] == list(range(1, 400, 2))
        again = await world.running.client("durable")
        assert await take(again, 200) == list(range(1, 400, 2))
        assert world.running.inside.lost == 0


async def test_what_both_want_is_no_spill(tmp_path):
    async with spilling(tmp_path) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("t")
        await durable.leave()
        slow = await world.slow("t")
        await world.publish(0, 300, "t")
        assert await take(slow, 300) == list(range(300))
        await world.loop.once()
        assert world.numbers() == list(range(300))


async def test_after_a_restart_it_is_garbage(tmp_path):
    disk = Disk()
    async with spilling(tmp_path, disk) as world:
        await world.slow("t")
        await world.publish(0, 300, "t")
        full = world.bytes()
    async with spilling(tmp_path, disk) as world:
        assert not world.running.inside.kept_filters()
        await world.loop.once()
        assert world.bytes() < full / 4


async def test_a_limit_of_size_waits_for_who_is_spilled(tmp_path):
    async with spilling(tmp_path, retention_bytes=10_000) as world:
        slow = await world.slow("t")
        await world.publish(0, 300, "t")
        await world.loop.once()
        assert world.store.shards[0].start == 0
        assert await take(slow, 300) == list(range(300))
        await world.is_live()
        await world.loop.once()
        assert world.bytes() <= 15_000


@pytest.mark.parametrize("killed", [False, True])
async def test_a_client_that_leaves_needs_nothing(tmp_path, killed):
    async with spilling(tmp_path) as world:
        slow = await world.slow("t")
        await world.publish(0, 300, "t")
        await (slow.drop() if killed else slow.leave())
        await eventually(lambda: "slow" not in world.running.inside.connected_ids)
        await world.is_live()
        await world.loop.once()
        assert world.bytes() <= SETTINGS["segment_bytes"] + 1000


async def collected(world: Spilling) -> None:
    """Run retention until the tables surely have what sessions had read when it began."""
    await world.loop.once()
    await world.running.saved()
    await world.loop.once()


@pytest.mark.parametrize("filters", ["t", "$share/g/t"])
async def test_what_durable_sessions_have_read_is_given_back(tmp_path, filters):
    async with spilling(tmp_path) as world:
        first, second = await world.running.client("first"), await world.running.client("second")
        await first.subscribe(filters)
        await second.subscribe("t")
        await second.leave()
        await world.publish(0, 300, "t")
        full = world.bytes()
        assert await take(first, 300) == list(range(300))
        await collected(world)
        assert (world.bytes(), world.numbers()) == (full, list(range(300))), "a session is away"
        second = await world.running.client("second")
        assert await take(second, 300) == list(range(300))
        await eventually(lambda: not world.running.inside.sessions["second"].pending())
        await collected(world)
        assert world.bytes() <= SETTINGS["segment_bytes"] + 1000, "all but the segment that is written to"
        assert world.store.shards[0].start > 200
        await world.publish(300, 5, "t")
        assert await take(first, 5) == await take(second, 5) == list(range(300, 305))
        assert world.running.inside.lost == 0


async def test_what_was_sent_and_not_acknowledged_stays(tmp_path):
    async with spilling(tmp_path) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("t")
        await world.publish(0, 300, "t")
        assert await take(durable, 100) == list(range(100))
        unacked = [await durable.expect(Publish) for _ in range(WINDOW)]
        await eventually(lambda: len(world.running.inside.sessions["durable"].pending()) == WINDOW)
        await collected(world)
        left = world.numbers()
        assert 0 < left[0] <= 100
        assert left[-1] == 299
        for packet in unacked[1:]:  # the first is sent again on the next connection
            durable.send(Puback(packet.packet_id))
        assert await take(durable, 196) == list(range(104, 300))
        await eventually(lambda: len(world.running.inside.sessions["durable"].pending()) == 1)
        await collected(world)
        assert world.numbers()[0] == left[0]
        await durable.drop()
        again = await world.running.client("durable")
        assert await take(again, 1) == [100]


async def test_a_session_that_ends_lets_go_of_what_it_had_not_read(tmp_path):
    async with spilling(tmp_path) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("t")
        await durable.leave()
        await world.publish(0, 300, "t")
        await collected(world)
        assert world.numbers() == list(range(300))
        await (await world.running.client("durable", clean=True, expiry=0)).leave()
        await eventually(lambda: "durable" not in world.running.inside.connected_ids)
        await collected(world)
        assert world.bytes() <= SETTINGS["segment_bytes"] + 1000


async def test_what_the_settings_keep_stays_whoever_has_read_it(tmp_path):
    async with spilling(tmp_path, keep=(("kept", 0),), aged=("aged",)) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("kept", "aged", "t")
        await world.publish(0, 300, "kept", "aged", "t")
        assert await take(durable, 300) == list(range(300))
        await eventually(lambda: not world.running.inside.sessions["durable"].pending())
        await collected(world)
        sealed = world.store.shards[0].end - 20
        assert [one for one in world.numbers() if one < sealed] == [one for one in range(sealed) if one % 3 < 2]
        assert world.store.shards[0].start == 0


async def test_a_replay_under_way_holds_what_it_has_not_read(tmp_path):
    async with spilling(tmp_path) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("t")
        await world.publish(0, 300, "t")
        assert await take(durable, 300) == list(range(300))
        await eventually(lambda: not world.running.inside.sessions["durable"].pending())
        reader = await world.slow("$replay/earliest/t", name="reader")
        assert await take(reader, 10) == list(range(10))
        await collected(world)
        assert await take(reader, 290) == list(range(10, 300))


async def test_after_a_restart_what_was_read_before_is_given_back(tmp_path):
    disk = Disk()
    async with spilling(tmp_path, disk) as world:
        durable = await world.running.client("durable")
        await durable.subscribe("t")
        await world.publish(0, 300, "t")
        assert await take(durable, 150) == list(range(150))
        await durable.leave()
        full = world.bytes()
    async with spilling(tmp_path, disk) as world:
        await collected(world)
        assert world.bytes() < 0.7 * full
        again = await world.running.client("durable")
        assert await take(again, 150) == list(range(150, 300))
        assert world.running.inside.lost == 0
