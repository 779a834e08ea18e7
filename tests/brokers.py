"""Brokers for tests: one in this process, on its own thread and event loop, on a free port."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from everlog.broker import Broker, Listener, Listening, listen
from tests.inside import Inside
from tests.memory_log import MemoryLog


async def serve_on(broker: Broker) -> tuple[Listening, int]:
    """Listen for plain TCP on a free port of the running event loop; what listens, and its port."""
    listening = await listen(broker.connections, [Listener("127.0.0.1", 0)])
    return listening, listening.addresses()[0].port


class RunningBroker:
    """`with RunningBroker() as broker:` listens on `broker.port`; `call` runs a function on its thread."""

    def __init__(self, log: MemoryLog | None = None, **settings: Any) -> None:
        self.log = log or MemoryLog()
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.broker: Broker
        self.inside: Inside
        self.port = 0

    def __enter__(self) -> "RunningBroker":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the broker's thread and wait for what it returns."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = Broker(self.log, **self._settings)
        self.inside = Inside(self.broker)
        self.broker.start()
        server, self.port = await serve_on(self.broker)
        self._ready.set()
        await self._stop.wait()
        server.close()
        await self.broker.stop()
        await server.wait_closed()


class ServedBroker(RunningBroker):
    """A broker on the event loop that `everlog serve` uses."""

    def _run(self) -> None:
        import uvloop

        uvloop.run(self._serve())
