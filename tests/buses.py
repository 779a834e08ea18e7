"""Every kind of bus for the tests, with what carries it, and a bus that loses some messages."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from everlog.broker import Broker
from everlog.bus import Bus, Delivery, Handler, LocalBus, LocalHub, Subscription, make_bus
from tests.brokers import serve_on
from tests.memory_log import MemoryLog
from tests.nats_servers import NatsServer

PATIENCE_S = 20.0


class Carrier(ABC):
    """What carries a kind of bus; `cut` and `restart` are what may happen to it."""

    url = ""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    def bus(self) -> Bus:
        """A new client, not open yet."""
        return make_bus(self.url)


class LocalCarrier(Carrier):
    """Nothing at all."""

    async def start(self) -> None:
        self._hub = LocalHub(max_payload=64 << 10)

    async def stop(self) -> None:
        pass

    def bus(self) -> Bus:
        return LocalBus(self._hub)


class NatsCarrier(Carrier):
    """A NATS server."""

    def __init__(self, directory: Path) -> None:
        self._server = NatsServer(directory, "max_payload: 65536")
        self.url = self._server.url

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)


class MqttCarrier(Carrier):
    """Our broker, on this event loop."""

    def __init__(self) -> None:
        self._port = 0
        self._broker: Broker
        self._server: asyncio.Server

    async def start(self) -> None:
        self._broker = Broker(MemoryLog())
        self._broker.start()
        if self._port:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._broker.connections.new, "127.0.0.1", self._port)
        else:
            self._server, self._port = await serve_on(self._broker)
        self.url = f"mqtt://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        self._server.close()
        await self._broker.stop()
        await self._server.wait_closed()


def carriers(directory: Path) -> dict[str, Callable[[], Carrier]]:
    """Every kind, by name."""
    return {"local": LocalCarrier, "nats": lambda: NatsCarrier(directory), "mqtt": MqttCarrier}


class LossyBus:
    """A bus that loses a part of what is published and of what arrives, by a seeded chance."""

    def __init__(self, bus: Bus, lost: float, seed: int) -> None:
        self._bus = bus
        self._lost = lost
        self._random = Random(seed)
        self.losses = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def _loses(self) -> bool:
        loses = self._random.random() < self._lost
        self.losses += loses
        return loses

    def publish(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> bool:
        """Send a message, or lose it."""
        return True if self._loses() else self._bus.publish(subject, payload, reply, correlation)

    async def subscribe(self, pattern: str, handler: Handler) -> Subscription:
        """Have a handler called with most of what arrives."""

        def some(deliveries: list[Delivery]) -> None:
            if left := [one for one in deliveries if not self._loses()]:
                handler(left)

        return await self._bus.subscribe(pattern, some)


class Heard:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.batches = 0
        self._news = asyncio.Event()

    def __call__(self, deliveries: list[Delivery]) -> None:
        self.deliveries += deliveries
        self.batches += 1
        self._news.set()

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.deliveries]

    async def until(self, count: int) -> list[Delivery]:
        """Wait for so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.deliveries) < count:
                self._news.clear()
                await self._news.wait()
        return self.deliveries
