"""A load of appends: many connections on one event loop, each with so many requests in flight."""

import asyncio
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from everlog.base import Unavailable
from everlog.bus import HELLO, Bus, Delivery, FrameKind, encode_frame, make_bus


class Requests:
    """How one of the contenders is asked to append."""

    def prepare(self) -> list[tuple[str, bytes]]:
        """Return what has to be asked once before; nothing unless something has to."""
        return []

    @abstractmethod
    def make(self, number: int, id: int) -> tuple[str, bytes]:
        """Return subject and payload of an append to a stream."""

    @abstractmethod
    def is_done(self, payload: bytes) -> bool:
        """Return whether an answer says that it is done."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked."""

    clients: int = 100
    streams: int = 1000
    in_flight: int = 1
    size: int = 200
    seconds: float = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    done: int
    refused: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        """Processor time an append, of all processes that serve it."""
        return 1e6 * self.cpu_s / max(1, self.done)

    @property
    def rate(self) -> float:
        """Appends a second."""
        return self.done / self.seconds


class _Client:
    """One connection; its requests go to its own streams in turn."""

    def __init__(self, bus: Bus, requests: Requests, streams: list[int], in_flight: int) -> None:
        self.bus = bus
        self.done = self.refused = 0
        self.times: list[float] = []
        self.is_sending = False
        self._requests = requests
        self._streams = streams
        self._in_flight = in_flight
        self._reply = f"{bus.inbox}/r"
        self._next = 0
        self._id = secrets.randbits(40) << 20
        self._sent: list[float] = []

    async def open(self) -> None:
        await self.bus.open()
        await self.bus.subscribe(f"{self.bus.inbox}/#", self._take)

    def start(self) -> None:
        self.is_sending = True
        for _ in range(self._in_flight):
            self._send()

    def _send(self) -> None:
        number = self._streams[self._next % len(self._streams)]
        self._next += 1
        self._id += 1
        subject, payload = self._requests.make(number, self._id)
        self._sent.append(time.perf_counter())
        self.bus.publish(subject, payload, self._reply)

    def _take(self, deliveries: list[Delivery]) -> None:
        now = time.perf_counter()
        for delivery in deliveries:
            if self._requests.is_done(delivery.payload):
                self.done += 1
            else:
                self.refused += 1
            if self._sent:
                self.times.append(now - self._sent.pop(0))
            if self.is_sending:
                self._send()


async def prepare(url: str, requests: Requests) -> None:
    """Ask what has to be asked once, one after the other, and wait until whoever answers is there."""
    bus = make_bus(url)
    await bus.open()
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    def take(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            answers.put_nowait(delivery.payload)

    await bus.subscribe(f"{bus.inbox}/#", take)
    first = requests.prepare() or [(HELLO, encode_frame(FrameKind.HELLO, 1))]
    for subject, payload in first:
        for attempt in range(100):
            bus.publish(subject, payload, f"{bus.inbox}/r")
            try:
                async with asyncio.timeout(2):
                    answer = await answers.get()
            except TimeoutError:
                if attempt == 29:
                    raise Unavailable(f"no answer to {subject}") from None
                continue
            if b'"error"' in answer:
                raise Unavailable(f"{subject}: {answer.decode(errors='replace')[:200]}")
            break
    await bus.close()


async def append(url: str, requests: Requests, load: Load, cpu_s: Callable[[], float]) -> Outcome:
    """Append for a while; `cpu_s` tells the processor time of those who serve it."""
    buses = [make_bus(url) for _ in range(load.clients)]
    share = [list(range(number, load.streams, load.clients)) for number in range(load.clients)]
    clients = [_Client(bus, requests, share[i] or [0], load.in_flight) for i, bus in enumerate(buses)]
    for client in clients:
        await client.open()
    worked_s, began = cpu_s(), time.perf_counter()
    for client in clients:
        client.start()
    await asyncio.sleep(load.seconds)
    ended, worked_s = time.perf_counter(), cpu_s() - worked_s
    times = sorted(one for client in clients for one in client.times)
    outcome = Outcome(
        sum(client.done for client in clients),
        sum(client.refused for client in clients),
        ended - began,
        _quantile(times, 0.5),
        _quantile(times, 0.99),
        worked_s,
    )
    for client in clients:
        client.is_sending = False
    for client in clients:
        await client.bus.close()
    return outcome


def _quantile(times: list[float], part: float) -> float:
    return 1000 * times[min(len(times) - 1, int(part * len(times)))] if times else 0.0
