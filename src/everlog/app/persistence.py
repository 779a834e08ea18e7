"""The persist server beside a broker: on a thread and event loop of its own, so that its disk delays no client.

It starts with the first message below its prefix; until then it costs nothing. To the broker it is a client, over a
pair of sockets.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from logging import ERROR, INFO

from everlog.app.persist_parts import bucket_of, shard_settings
from everlog.app.settings import Settings
from everlog.base import EverlogError
from everlog.broker import Broker, connect_inside, event
from everlog.bus import PREFIX, MqttBus
from everlog.persist import LocalShards, PersistServer
from everlog.streams import Clock

_AGAIN_S = 2.0  # after which a server that could not start is tried again
_log = logging.getLogger("everlog.persist")


class BesideBroker:
    """The persist server of a broker; `arm` and `stop` are called on the broker's thread."""

    def __init__(self, broker: Broker, settings: Settings, clock: Clock, new_loop: "LoopFactory") -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_stopped = False

    def arm(self) -> None:
        """Start when the first message for it comes."""
        self._loop = asyncio.get_running_loop()
        self._broker.connections.rules.call_once(f"{PREFIX}/".encode(), self._start)

    async def stop(self) -> None:
        """End in order: what is under way is committed and answered."""
        self._is_stopped = True
        if self._thread is None:
            return
        if self._own is not None and self._stopping is not None:
            self._own.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    def _start(self) -> None:
        if self._is_stopped:
            return
        self._thread = threading.Thread(target=self._run, name="everlog-persist", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._keep_serving())

    async def _keep_serving(self) -> None:
        """Serve until the end; what can't be done now is tried again."""
        self._own = asyncio.get_running_loop()
        self._stopping = stopping = asyncio.Event()
        if self._is_stopped:
            return
        while not stopping.is_set():
            try:
                await self._serve(stopping)
            except (EverlogError, OSError) as error:
                event(_log, "persist_failed", ERROR, reason=error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S):
                        await stopping.wait()

    async def _serve(self, stopping: asyncio.Event) -> None:
        shards = open_shards(self._settings, self._clock)
        try:
            server = PersistServer(MqttBus([], dialer=self._dial), shards, "everlog serve")
            await server.start()
            for shard in range(shards.shards):
                await server.own(shard)
            event(_log, "persist_started", INFO, shards=shards.shards)
            await stopping.wait()
            await server.stop()
        finally:
            shards.close()

    async def _dial(self, protocol: asyncio.Protocol) -> None:
        inside = asyncio.run_coroutine_threadsafe(connect_inside(self._broker.connections), self._loop)
        wire = await asyncio.wrap_future(inside)
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=wire)


LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


def open_shards(settings: Settings, clock: Clock) -> LocalShards:
    """Return the state shards of a broker's data directory."""
    persist = settings.persist
    directory = persist.data or os.path.join(settings.log.data, "persist")
    return LocalShards(directory, clock, persist.shards, shard_settings(settings), bucket_of(settings))
