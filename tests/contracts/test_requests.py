"""Requests, series of replies and feeds between a client and a server, over every bus, whatever gets lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.buses import PATIENCE_S, Carrier, LossyBus, carriers
from tests.memory_shard import MemoryShards
from tests.nats_servers import PROGRAM

from everlog.bus import Bus, FrameKind, encode_frame
from everlog.client import CaughtUp, Client, NotFound, Stream, TimedOut, Watch
from everlog.persist import PersistServer
from everlog.streams import FeedReset, MessageSet

Wrap = Callable[[Bus], Bus]


@pytest_asyncio.fixture(params=["local", "nats", "mqtt"])
async def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Carrier]:
    if request.param == "nats" and PROGRAM is None:
        pytest.skip("needs nats-server: run tools/install-servers")
    found = carriers(tmp_path)[request.param]()
    await found.start()
    yield found
    await found.stop()


over_sockets = pytest.mark.parametrize("carrier", ["nats", "mqtt"], indirect=True)


@asynccontextmanager
async def serving(carrier: Carrier, shards: MemoryShards, wrap: Wrap = lambda bus: bus) -> AsyncIterator[PersistServer]:
    server = PersistServer(wrap(carrier.bus()), shards, "one")
    await server.start()
    for shard in range(shards.shards):
        await server.own(shard)
    try:
        yield server
    finally:
        await server.stop()


def lossy(seed: int, lost: float = 0.01) -> Wrap:
    return lambda bus: LossyBus(bus, lost, seed)  # type: ignore[return-value]


def small(size: int) -> Wrap:
    """A bus whose messages are small, so that frames travel in parts."""

    class Small(LossyBus):
        max_payload = size

    return lambda bus: Small(bus, 0, 0)  # type: ignore[return-value]


class Followed:
    """What a watch yields, taken by a task."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.values: list[bytes | None] = []
        self.caught_up = 0
        self.resets = 0
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async for item in self.watch:
            if isinstance(item, MessageSet):
                self.values.append(item.message.value)
            elif isinstance(item, CaughtUp):
                self.caught_up += 1
            elif isinstance(item, FeedReset):
                self.resets += 1
                self.values.clear()
            self._news.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not done():
                assert not self._task.done(), self._task.exception()
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def come_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody could set an event
            await asyncio.sleep(0.01)


async def all_values(stream: Stream, **options: int) -> list[bytes | None]:
    return [one.value async for one in stream.get_all(**options)]


async def test_a_write_is_answered_and_read_back(carrier: Carrier) -> None:
    shards = MemoryShards(4)
    async with serving(carrier, shards), Client(carrier.bus()) as client:
        stream = client.stream("team/to-do list")
        assert (await stream.append(b"milk", headers={"a": "b"})).seq == 1
        assert (await stream.append("bread")).seq == 2
        found = await stream.get(2)
        assert (found.value, found.seq) == (b"bread", 2)
        with pytest.raises(NotFound):
            await stream.get(3)
    (shard,) = shards.opened.values()
    told = dict.fromkeys(call.seen_position for call in shard.handled)  # a request may come twice when answers are slow
    assert list(told)[:2] == [-1, 0]


async def test_what_is_asked_together_is_committed_together(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards), Client(carrier.bus()) as client:
        await client.stream("s").append(b"first")
        before = shards.opened[0].turns
        await asyncio.gather(*(client.stream(f"s/{i}").append(b"x") for i in range(200)))
        assert shards.opened[0].turns - before < 50


async def test_a_series_comes_whole_and_in_order_and_waits_for_credit(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards) as server, Client(carrier.bus()) as client:
        stream = client.stream("s")
        values = [b"%d" % i for i in range(500)]
        await asyncio.gather(*(stream.append(value) for value in values))
        assert sorted(await all_values(stream), key=lambda one: int(one or 0)) == values
        assert len(await all_values(stream, start_seq=11, limit=7)) == 7
        taken = 0
        async with aclosing(stream.get_all()) as messages:  # type: ignore[type-var]
            async for _ in messages:
                taken += 1
                if taken == 30:
                    break
        await come_true(lambda: shards.opened[0].series_closed == 3)  # the one that was left early is let go of too
        await come_true(lambda: not server.welcome().under_way)


async def test_frames_larger_than_a_message_travel_in_parts(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards, small(6000)), Client(carrier.bus()) as client:
        stream = client.stream("s")
        value = bytes(range(256)) * 200  # larger than a message of the server's bus, not of the client's
        await stream.append(value)
        assert (await stream.get(1)).value == value
        assert await all_values(stream) == [value]


async def test_a_follower_gets_the_state_then_every_change_once(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards), Client(carrier.bus()) as client, Client(carrier.bus()) as other:
        stream = client.stream("s")
        for i in range(25):
            await stream.append(b"%d" % i)
        writing = [asyncio.ensure_future(stream.append(b"%d" % i)) for i in range(25, 75)]
        followed = Followed(other.stream("s").watch())
        await asyncio.gather(*writing)
        await followed.until(lambda: len(followed.values) >= 75 and followed.caught_up > 0)
        assert sorted(followed.values, key=lambda one: int(one or 0)) == [b"%d" % i for i in range(75)]
        assert (followed.caught_up, followed.resets) == (1, 0)
        at = followed.watch.position
        await followed.stop()
        await stream.append(b"while away")
        followed = Followed(other.stream("s").watch(after=at))
        await followed.until(lambda: followed.caught_up == 1)
        assert followed.values == [b"while away"]
        await followed.stop()


async def test_below_the_horizon_a_follower_is_told_and_gets_the_state(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards), Client(carrier.bus()) as client:
        stream = client.stream("s")
        for i in range(3):
            await stream.append(b"%d" % i)
        shards.opened[0].horizon = 2
        followed = Followed(stream.watch(after=(1, 0)))
        await followed.until(lambda: followed.caught_up == 1)
        assert (followed.resets, followed.values) == (1, [b"0", b"1", b"2"])
        await followed.stop()


@pytest.mark.parametrize("seed", range(2))
async def test_on_a_bus_that_loses_messages_everything_is_done_once(carrier: Carrier, seed: int) -> None:
    shards = MemoryShards()
    async with (
        serving(carrier, shards, lossy(seed, 0.03)),
        Client(lossy(seed + 100, 0.03)(carrier.bus()), timeout_s=30) as client,
        Client(lossy(seed + 200, 0.03)(carrier.bus()), timeout_s=30) as other,
    ):
        stream = client.stream("s")
        followed = Followed(other.stream("s").watch(heartbeat_s=0.3))
        wanted = [b"%d" % i for i in range(100)]
        await asyncio.gather(*(stream.append(value) for value in wanted))
        found = await all_values(stream)
        assert sorted(found, key=lambda one: int(one or 0)) == wanted
        await followed.until(lambda: len(followed.values) >= 100)
        assert followed.values == found  # without gap or repeat, in order
        await followed.stop()


async def test_nobody_who_answers_ends_in_an_error(carrier: Carrier) -> None:
    with pytest.raises(TimedOut, match="persist status"):
        await Client(carrier.bus(), timeout_s=0.4).open()
    shards = MemoryShards()
    async with serving(carrier, shards) as server, Client(carrier.bus(), timeout_s=0.4) as client:
        await server.disown(0)
        with pytest.raises(TimedOut):
            await client.stream("s").append(b"x")
        with pytest.raises(TimedOut):
            await all_values(client.stream("s"))


@over_sockets
async def test_a_restarted_bus_loses_nothing_that_was_asked_for(carrier: Carrier) -> None:
    shards = MemoryShards()
    async with serving(carrier, shards), Client(carrier.bus(), timeout_s=PATIENCE_S) as client:
        stream = client.stream("s")
        await stream.append(b"0")
        followed = Followed(stream.watch())
        await followed.until(lambda: followed.caught_up == 1)
        await carrier.stop()
        writing = [asyncio.ensure_future(stream.append(b"%d" % i)) for i in range(1, 20)]
        await asyncio.sleep(0)
        await carrier.start()
        await asyncio.gather(*writing)
        await followed.until(lambda: len(followed.values) == 20)
        assert sorted(followed.values, key=lambda one: int(one or 0)) == [b"%d" % i for i in range(20)]
        await followed.stop()


async def test_a_server_that_is_replaced_is_followed_on_at_once(carrier: Carrier) -> None:
    shards = MemoryShards()
    client = Client(carrier.bus(), timeout_s=PATIENCE_S)
    async with serving(carrier, shards):
        await client.open()
        stream = client.stream("s")
        await stream.append(b"0")
        followed = Followed(stream.watch())
        await followed.until(lambda: followed.caught_up == 1)
    async with serving(carrier, shards):
        await stream.append(b"1")
        await followed.until(lambda: followed.values == [b"0", b"1"])
        await followed.stop()
        await client.close()


async def test_what_is_no_frame_or_no_request_is_answered_or_dropped(carrier: Carrier) -> None:
    shards = MemoryShards()
    bus = carrier.bus()
    async with serving(carrier, shards), Client(bus) as client:
        reply = f"{bus.inbox}/r"
        for payload in (b"", b"x", b"\x02" * 40, encode_frame(FrameKind.REQUEST, 1, 1, 0, b"\xc1")):
            bus.publish("everlog/p/0/w/s", payload, reply)
            bus.publish("everlog/p/0/w/s", payload)
        bus.publish("everlog/p/0/w/s", encode_frame(FrameKind.CREDIT, 9, 1, 1), reply)
        bus.publish("everlog/p/0/w/s", encode_frame(FrameKind.PART, 9, 1, 1), reply)
        assert (await client.stream("s").append(b"still served")).seq == 1


async def test_servers_say_who_they_are(carrier: Carrier) -> None:
    shards = MemoryShards(2)
    async with serving(carrier, shards), Client(carrier.bus()) as client:
        await client.stream("s").append(b"x")
        (found,) = await client.servers(0.2)
        assert (found.server, found.shards, found.owned, len(found.opened)) == ("one", 2, [0, 1], 1)
