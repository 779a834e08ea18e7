"""Streams through faults of real processes, on a bus that also loses a message in a hundred.

Writers, a follower and clients that compete for a key go on while servers are killed and buses restarted. In the end no
acknowledged write is missing, none is there twice, the follower has seen each once, and every revision had one winner.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.buses import LossyBus
from tests.nats_servers import NatsServer, needs_nats
from tests.persist_process import PersistProcess
from tests.stream_history import History, Write

from everlog.base import Unavailable
from everlog.bus import make_bus
from everlog.client import CaughtUp, Client, Level, NotServed, TimedOut, WrongRevision
from everlog.streams import FeedReset, MessageSet

PATIENCE_S = 60.0
WRITERS = 4
FAULTS = 2


class World:
    """Clients that work until they are told to stop, and what they were told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.history = History()
        self.acked = 0
        self.seen: list[int] = []  # seqs, by the follower
        self.resets = 0
        self._stopping = False
        self._news = asyncio.Event()

    async def client(self, parts: AsyncExitStack, seed: int) -> Client:
        client = Client(LossyBus(make_bus(self.url), 0.01, seed), timeout_s=PATIENCE_S)  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await client.open()
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        parts.push_async_callback(client.close)
        return client

    def stop(self) -> None:
        self._stopping = True

    async def until_acked(self, more: int) -> None:
        goal = self.acked + more
        async with asyncio.timeout(PATIENCE_S):
            while self.acked < goal:
                self._news.clear()
                await self._news.wait()

    async def write(self, client: Client, writer: int) -> None:
        stream, number = client.stream("s"), 0
        while not self._stopping:
            value = b"%d of %d" % (number, writer)
            number += 1
            try:
                done = await stream.append(value)
            except (TimedOut, NotServed):
                continue  # written or not
            self.history.wrote("s", Write(0, done.position, done.seq, value, Level.FSYNC))
            self.acked += 1
            self._news.set()

    async def compete(self, client: Client) -> None:
        store = client.kv("k")
        while not self._stopping:
            try:
                entry = await store.get("x")
                revision = entry.revision if entry is not None else 0
                done = await store.update("x", b"mine", revision)
                self.history.won("k", "x", revision, done.seq)
            except (WrongRevision, TimedOut, NotServed):
                continue

    async def follow(self, client: Client) -> None:
        async for item in client.stream("s").watch(heartbeat_s=0.5):
            if isinstance(item, MessageSet):
                self.seen.append(item.message.seq)
            elif isinstance(item, FeedReset):
                self.resets += 1
                self.seen.clear()
            elif isinstance(item, CaughtUp):
                pass
            self._news.set()

    async def until_seen(self, last: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.seen or self.seen[-1] < last:
                self._news.clear()
                await self._news.wait()


async def live_through(url: str, fault: Callable[[], Awaitable[None]]) -> None:
    """Let clients work through faults, and check what they were told."""
    world = World(url)
    async with AsyncExitStack() as parts:
        clients = [await world.client(parts, seed) for seed in range(WRITERS + 3)]
        works = [asyncio.ensure_future(world.write(client, i)) for i, client in enumerate(clients[:WRITERS])]
        works += [asyncio.ensure_future(world.compete(client)) for client in clients[WRITERS : WRITERS + 2]]
        following = asyncio.ensure_future(world.follow(clients[-1]))
        await world.until_acked(40)
        for _ in range(FAULTS):
            await fault()
            await world.until_acked(40)
        world.stop()
        await asyncio.gather(*works)
        found = [message async for message in clients[0].stream("s").get_all()]
        assert world.history.check("s", found) == []
        assert world.history.check("k", ()) == []
        values = [message.value for message in found]
        assert len(values) == len(set(values)), "a write was done twice"
        await world.until_seen(found[-1].seq)
        assert world.seen == [message.seq for message in found]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@needs_nats
@pytest.mark.slow
async def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url) as server:

        async def fault() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        await live_through(nats.url, fault)


@needs_nats
@pytest.mark.slow
async def test_a_restarted_bus_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url):

        async def fault() -> None:
            nats.stop()
            await asyncio.to_thread(nats.start)

        await live_through(nats.url, fault)


@pytest.mark.soak
async def test_a_killed_broker_with_its_streams_loses_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level", "error", sync_ms=10) as broker:

        async def fault() -> None:
            broker.kill()
            broker.start()

        await live_through(f"mqtt://127.0.0.1:{broker.port}", fault)
