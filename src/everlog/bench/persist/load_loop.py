"""The loop of a load: many connections on one thread and one epoll set."""

import select
import time
from array import array
from collections.abc import Callable, Sequence

from everlog.base import Unavailable
from everlog.bench.load.figures import Histogram
from everlog.bench.persist.bus_link import GONE, Budget, BusLink
from everlog.bench.persist.wires import Ready, Request, Wire

_TURN_S = 0.01  # the longest wait
_NAP_S = 100e-6  # after a round of many connections, so that the next finds more
_MANY = 10
_UNBOUNDED = 1 << 62
_IDS = 1 << 40  # apart, of two connections


class LoadLoop:
    """Connections to one bus, and what became of their requests. Use as a context: it closes them."""

    def __init__(self, url: str) -> None:
        self.wire = Wire(url)
        self.times = Histogram()
        self.budget = Budget()
        self.links: list[BusLink] = []
        self._numbers: dict[BusLink, int] = {}
        self._made: list[Ready] = []
        self._buffer = bytearray(1 << 20)
        self._epoll = select.epoll()
        self._by_fd: dict[int, BusLink] = {}

    def __enter__(self) -> "LoadLoop":
        return self

    def __exit__(self, *args: object) -> None:
        self._epoll.close()
        for one in self._made:
            one.socket.close()

    def connect(self, subjects: Sequence[str] = (), count_events: bool = False, out_bytes: int = 1 << 17) -> BusLink:
        """Return a new connection; `out_bytes` of requests are sent at once."""
        made = self.wire.connect(subjects)
        self._made.append(made)
        fd = made.socket.fileno()
        link = BusLink(fd, self.wire.is_mqtt, self._buffer, self.budget, self.times, count_events, out_bytes)
        self._numbers[link] = len(self.links)
        self.links.append(link)
        self._by_fd[fd] = link
        self._epoll.register(fd, select.EPOLLIN)
        return link

    def inbox(self, link: BusLink) -> str:
        """Return the prefix of subjects that a connection hears."""
        return self._made[self._numbers[link]].inbox

    def ask(self, link: BusLink, requests: Sequence[Request], mark: bytes, window: int) -> None:
        """Have a connection send requests in turn."""
        reply = f"{self.inbox(link)}/r"
        rendered = [self.wire.render(request, reply) for request in requests]
        holes = array("Q", [hole for _, *both in rendered for hole in both])
        link.ask([data for data, *_ in rendered], bytearray(holes), mark, window, _IDS * (1 + self._numbers[link]))

    def run(self, seconds: float, rate: float = 0.0, each_second: Callable[[], None] = lambda: None) -> float:
        """Send and count for so long, at most at a rate if one is given; return how long it took."""
        began = now = told = time.monotonic()
        sent = 0.0
        self.budget.left = 0 if rate else _UNBOUNDED
        self.push()
        while now - began < seconds:
            if rate:
                due = rate * (now - began)
                self.budget.left += int(due - sent)
                sent += int(due - sent)
                self.push()
            self.turn(0.001 if rate else _TURN_S)
            now = time.monotonic()
            if now - told >= 1.0:
                told += 1.0
                each_second()
        return now - began

    def until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Send and count until something is so; raises Unavailable after a time."""
        self.push()
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                raise Unavailable("a server under load does not answer")
            self.turn(_TURN_S)

    def turn(self, wait_s: float) -> None:
        """Serve the connections that have something to read."""
        ready = self._epoll.poll(wait_s)
        for fd, _ in ready:
            self._look(self._by_fd[fd].serve())
        if len(self.links) >= _MANY:
            time.sleep(_NAP_S)

    def push(self) -> None:
        """Send what connections may send."""
        for link in self.links:
            self._look(link.write())

    def _look(self, told: int) -> None:
        if told == GONE:
            raise Unavailable("a server under load closed a connection")

    @property
    def done(self) -> int:
        """How many requests were answered well."""
        return sum(link.done for link in self.links)

    @property
    def refused(self) -> int:
        """How many were answered otherwise."""
        return sum(link.refused for link in self.links)

    @property
    def received(self) -> int:
        """How many deliveries came."""
        return sum(link.received for link in self.links)
