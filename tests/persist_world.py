"""Clients of streams that work while servers, buses and storage fail, and the check of what they were told.

Writers append to streams of all shards, at `fsync` and some at `memory`; others compete for a key by compare-and-set;
followers keep a model of a stream by its feed. The bus of each loses a message in a hundred.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from everlog.base import Unavailable
from everlog.bus import Welcome, make_bus, shard_of_name
from everlog.client import CaughtUp, Client, Level, NotServed, TimedOut, WrongRevision
from everlog.streams import EpochBegan, FeedReset, MessageSet, Reply
from tests.buses import LossyBus
from tests.stream_history import History, Write

PATIENCE_S = 60.0
WRITERS = 4
LOST = 0.01


class Follower:
    """A model of a stream, kept by its feed; whoever crosses an epoch must be told."""

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.values: dict[int, bytes | None] = {}
        self.resets = 0
        self._history = history
        self._epoch: int | None = None
        self._is_told = False
        self._is_partial = True  # what comes is a snapshot

    def take(self, item: object, position: tuple[int, int] | None) -> None:
        """Take in what the feed tells."""
        if isinstance(item, FeedReset):
            self.resets += 1
            self.values.clear()
            self._epoch, self._is_partial = None, True
        elif isinstance(item, CaughtUp):
            self._is_partial = False
        elif isinstance(item, EpochBegan):
            self._is_told = True
            for seq in [seq for seq in self.values if seq > item.last_seq]:
                del self.values[seq]
        elif isinstance(item, MessageSet) and position is not None and not self._is_partial:
            if self._epoch is not None and position[0] != self._epoch and not self._is_told:
                self._history.faults.append(f"a follower of {self.name} crossed into epoch {position[0]} unawares")
            self._epoch, self._is_told = position[0], False
        if isinstance(item, MessageSet):
            self.values[item.message.seq] = item.message.value


class World:
    """Clients that work until they are told to stop, and what they were told."""

    def __init__(self, url: str, streams: Iterable[str] = ("s",), shards: int = 1, memory: float = 0.0) -> None:
        self.url = url
        self.streams = list(streams)
        self.shards = shards
        self.history = History()
        self.acked: Counter[int] = Counter()  # by shard
        self.failed = 0  # requests that no retry could save
        self.followers = [Follower(name, self.history) for name in self.streams[:2]]
        self._memory = memory
        self._stopping = False
        self._news = asyncio.Event()
        self._clients: list[Client] = []
        self._works: list[asyncio.Future[None]] = []
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> "World":
        for seed in range(WRITERS + 4):
            self._clients.append(await self.client(seed))
        writers, others = self._clients[:WRITERS], self._clients[WRITERS:]
        self._works = [asyncio.ensure_future(self._write(client, i)) for i, client in enumerate(writers)]
        self._works += [asyncio.ensure_future(self._compete(client)) for client in others[:2]]
        self._following = [
            asyncio.ensure_future(self._follow(client, one))
            for client, one in zip(others[2:], self.followers, strict=False)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._works, *self._following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.aclose()

    async def client(self, seed: int, timeout_s: float = PATIENCE_S) -> Client:
        """Return a client whose bus loses messages."""
        client = Client(LossyBus(make_bus(self.url), LOST, seed), timeout_s=timeout_s)  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await client.open()
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        self._parts.push_async_callback(client.close)
        return client

    @property
    def reader(self) -> Client:
        """A client to look at what is there."""
        return self._clients[0]

    # ---- what clients do ----

    async def _write(self, client: Client, writer: int) -> None:
        chance, number = Random(writer), 0
        replies = _replies_of(client)
        while not self._stopping:
            name = chance.choice(self.streams)
            level = Level.MEMORY if chance.random() < self._memory else Level.FSYNC
            value = b"%d of %d" % (number, writer)
            number += 1
            try:
                done = await client.stream(name).append(value, level=level)
            except (TimedOut, NotServed):
                self.failed += 1  # written or not
                continue
            epoch = 0 if done.is_duplicate else replies[-1].epoch
            self.history.wrote(name, Write(epoch, done.position, done.seq, value, level))
            self.acked[shard_of_name(name, self.shards)] += 1
            self._news.set()

    async def _compete(self, client: Client) -> None:
        store = client.kv("k")
        while not self._stopping:
            try:
                entry = await store.get("x")
                revision = entry.revision if entry is not None else 0
                done = await store.update("x", b"mine", revision)
                self.history.won("k", "x", revision, done.seq)
            except WrongRevision:
                continue
            except (TimedOut, NotServed):
                self.failed += 1

    async def _follow(self, client: Client, follower: Follower) -> None:
        watch = client.stream(follower.name).watch(heartbeat_s=0.5)
        async for item in watch:
            follower.take(item, watch.position)
            self._news.set()

    # ---- what tests wait for ----

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true that changes with acknowledged writes and feeds."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def until_acked(self, more: int, shards: Iterable[int] | None = None) -> None:
        """Wait until so many more writes were acknowledged in each of the shards, all if none are named."""
        wanted = {shard_of_name(name, self.shards) for name in self.streams} if shards is None else set(shards)
        wanted &= {shard_of_name(name, self.shards) for name in self.streams}
        goal = {shard: self.acked[shard] + more for shard in wanted}
        await self.until(lambda: all(self.acked[shard] >= count for shard, count in goal.items()))

    async def servers(self, true: Callable[[list[Welcome]], bool]) -> list[Welcome]:
        """Ask who serves what until that is as wanted, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = {one.server: one for one in await self._clients[-1].servers(0.2)}
                if true(list(found.values())):
                    return sorted(found.values(), key=lambda one: one.server)

    async def check(self) -> None:
        """Stop all work, and hold what was told against what is there."""
        self._stopping = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._works)
        for name in self.streams:
            found = [message async for message in self._clients[0].stream(name).get_all()]
            faults = self.history.check(name, found)
            assert not faults, faults
            values = [message.value for message in found]
            assert len(values) == len(set(values)), "a write was done twice"
            for follower in self.followers:
                if follower.name == name:
                    expected = {message.seq: message.value for message in found}
                    await self.until_equal(follower, expected)
        faults = self.history.check("k", ())
        assert not faults, faults

    async def until_equal(self, follower: Follower, expected: dict[int, bytes | None]) -> None:
        """Wait until a follower has the state that there is."""
        try:
            await self.until(lambda: follower.values == expected)
        except TimeoutError:
            assert follower.values == expected


def _replies_of(client: Client) -> list[Reply]:
    """Return where the last reply to a request of a client is from now on."""
    replies: list[Reply] = []
    requester: Any = client._requester
    really = requester.call

    async def call(*arguments: Any, **options: Any) -> Reply:
        reply: Reply = await really(*arguments, **options)
        replies[:] = [reply]
        return reply

    requester.call = call
    return replies
