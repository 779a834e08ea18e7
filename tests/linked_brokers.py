"""Brokers of one cluster in this process: each with a thread, an event loop, links and a copy of the log of its own.

Which shards a broker owns is what the test says; there is no membership.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from everlog.broker import Broker
from everlog.cluster import ClusterDatabase, ClusterForwarder, ClusterLog, ClusterSettings, Links, make_message_tables
from everlog.ownership import Member
from everlog.tiering import MemoryBucket
from tests.brokers import serve_on
from tests.postgres_server import new_schema, shared_server

CLUSTER = 5
WAIT_S = 60.0


class BrokerCluster:
    """A database, a bucket and the brokers that share them; `with` ends all of them."""

    def __init__(self, folder: Path, brokers: int, shards: int = 1) -> None:
        self.database = ClusterDatabase(shared_server().url, new_schema())
        make_message_tables(self.database.url, shards, self.database.schema)
        self.bucket = MemoryBucket()
        self.shards = shards
        self.folder = folder
        self.ways: dict[int, dict[int, str]] = {}  # who dials whom at another address
        self.brokers = [ClusterBroker(self, number + 1) for number in range(brokers)]
        self._epoch = 0

    def __enter__(self) -> "BrokerCluster":
        for one in self.brokers:
            one.start()
        if not self.ways:
            self.meet()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.brokers:
            one.stop()

    def meet(self) -> None:
        """Have all that live know each other."""
        living = {one.incarnation: one for one in self.brokers if one.lives}
        addresses = {number: one.links.address for number, one in living.items()}
        for one in living.values():
            there = addresses | self.ways.get(one.incarnation, {})
            board = {number: Member(number, f"b{number}", there[number], "") for number in living}
            one.call(lambda one=one, board=board: one.links.update(board))
        for one in living.values():
            one.until(lambda one=one: len(one.links.living) == len(living) - 1)

    def own(self, broker: "ClusterBroker", *shards: int) -> None:
        """Make a broker the owner of shards, all by default, at an epoch above all before."""
        self._epoch += 1
        broker.own(shards or tuple(range(self.shards)), self._epoch)


class ClusterBroker:
    """One of them; the test's thread calls."""

    def __init__(self, cluster: BrokerCluster, incarnation: int) -> None:
        self.incarnation = incarnation
        self.lives = False
        self.port = 0
        self.errors: list[Exception] = []  # why this incarnation is over
        self._cluster = cluster
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        assert self._ready.wait(WAIT_S)

    def stop(self) -> None:
        """End in good order."""
        if self.lives:
            self.lives = False
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()

    def kill(self) -> None:
        """Lose what is not committed, and all connections; the links first, so that nothing is confirmed any more."""

        async def act() -> None:
            await self.links.close()
            await asyncio.to_thread(self.log.release, list(range(self._cluster.shards)))

        self.run(act())
        self.stop()

    def own(self, shards: tuple[int, ...], epoch: int) -> None:
        """Take shards over."""

        async def act() -> None:
            await asyncio.to_thread(self.log.own, dict.fromkeys(shards, epoch), self.incarnation)
            for shard in shards:
                self.forwarder.owned(shard)

        self.run(act())

    def let_go(self, shard: int) -> None:
        """Let go of a shard politely."""

        async def act() -> None:
            await self.forwarder.let_go(shard)
            await asyncio.to_thread(self.log.release, [shard])

        self.run(act())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the broker's thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call something on the broker's thread."""

        async def act() -> Any:
            return function()

        return self.run(act())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, which is looked at on the broker's thread."""

        async def act() -> None:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        self.run(act())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        cluster = self._cluster
        place = str(cluster.folder / f"broker-{self.incarnation}")
        self.log = ClusterLog.join(place, cluster.database, cluster.bucket, ClusterSettings())
        self.links = Links(CLUSTER, self.incarnation, f"b{self.incarnation}")
        self.forwarder = ClusterForwarder(self.log, self.links, self.incarnation)
        self.forwarder.on_lost = self.errors.append
        self.broker = Broker(self.log, keep=[("#", 0)], never=["free/#"], forwarder=self.forwarder)
        self.forwarder.use(self.broker.router)
        await self.links.start()
        self.broker.start()
        server, self.port = await serve_on(self.broker)
        self.lives = True
        self._ready.set()
        await self._stop.wait()
        server.close()
        await self.links.close()
        await self.broker.stop()
        await server.wait_closed()
        await asyncio.to_thread(self.log.close)
