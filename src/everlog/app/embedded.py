"""Streams and key-value stores in this process, without any server: a data directory of one's own."""

import time
from contextlib import AsyncExitStack
from types import TracebackType

from everlog.bus import LocalBus, LocalHub
from everlog.client import Blocking, BlockingClient, Client, Level
from everlog.persist import LocalShards, PersistServer


class WallClock:
    """The machine's clock, believed as it is."""

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return time.time_ns() // 1000

    def due_us(self) -> int:
        """Return the time up to which things are due."""
        return time.time_ns() // 1000


class Embedded:
    """A directory to open: `async with` gives a `Client`, `with` one whose methods wait."""

    def __init__(self, directory: str, shards: int | None = None, level: Level = Level.FSYNC) -> None:
        self._directory = directory
        self._shards = shards
        self._level = level
        self._parts: AsyncExitStack | None = None
        self._blocking: BlockingClient | None = None

    async def __aenter__(self) -> Client:
        async with AsyncExitStack() as parts:
            shards = LocalShards(self._directory, WallClock(), self._shards)
            parts.callback(shards.close)
            hub = LocalHub()
            server = PersistServer(LocalBus(hub), shards, "embedded")
            await server.start()
            parts.push_async_callback(server.stop)
            for shard in range(shards.shards):
                await server.own(shard)
            client = await parts.enter_async_context(Client(LocalBus(hub), level=self._level))
            self._parts = parts.pop_all()
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.aclose()

    def __enter__(self) -> Blocking:
        self._blocking = BlockingClient(self)
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            blocking.__exit__(kind, error, trace)
