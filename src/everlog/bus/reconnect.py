"""What buses over a socket have in common: they connect to one of several addresses, and again when that is lost."""

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from random import random

from everlog.base import EverlogError, Unavailable, UsageError
from everlog.bus.port import Handler, NotAllowed, Watcher, check_pattern
from everlog.bus.routes import Routes, Subscribed, Unsubscriber

FIRST_S, LONGEST_S = 0.05, 2.0  # between two tries
OPEN_S = 10.0  # for a server to accept, or to confirm a subscription
CONGESTED_BYTES = 4 << 20  # of output that has not left
_log = logging.getLogger("everlog.bus")


def delays(chance: Callable[[], float] = random) -> Iterator[float]:
    """Yield how long to wait before each try: longer each time, and less by chance, so that not all come at once."""
    seconds = FIRST_S
    while True:
        yield seconds * (1 - chance() / 2)
        seconds = min(2 * seconds, LONGEST_S)


class ReconnectingBus(Unsubscriber):
    """A bus over one connection at a time. A subclass knows the protocol; all run on one event loop.

    `_turn` is the number of the address that is tried next, so that a lost server is not the first to be asked again.
    """

    def __init__(self, addresses: int) -> None:
        self.is_open = False
        self.is_congested = False
        self.routes = Routes()
        self._addresses = addresses
        self._turn = 0
        self._watchers: list[Watcher] = []
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._why: EverlogError | None = None

    # What a subclass does

    @abstractmethod
    async def _connect(self, address: int) -> None:
        """Connect to an address and shake hands; raises Unavailable or NotAllowed."""

    @abstractmethod
    async def _confirm(self, pattern: str) -> None:
        """Subscribe to a pattern; return when that is in force."""

    @abstractmethod
    def _withdraw(self, pattern: str) -> None:
        """Unsubscribe from a pattern, if there is a connection."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """End the connection, after what was published has left."""

    # What users call

    async def open(self) -> None:
        """Connect to the first address that answers; raises what the last one failed with if none does."""
        if self._keeper is not None:
            raise UsageError("the bus is open already")
        failed: EverlogError | None = None
        for _ in range(self._addresses):
            try:
                await self._try()
            except EverlogError as error:
                failed = error
            else:
                self._keeper = asyncio.get_running_loop().create_task(self._keep())
                return
        assert failed is not None
        raise failed

    async def close(self) -> None:
        """End the connection and all subscriptions."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        was_open, self.is_open = self.is_open, False
        self._free.set()
        if was_open:
            await self._disconnect()

    async def subscribe(self, pattern: str, handler: Handler) -> Subscribed:
        """Have a handler called with what matches; return when that is in force."""
        first = self.routes.add(check_pattern(pattern), handler)
        if first and self.is_open:
            try:
                await self._within(self._confirm(pattern))
            except Unavailable:
                if self._keeper is None:
                    raise  # otherwise the next connection subscribes to all
            except BaseException:
                self.routes.remove(pattern, handler)
                raise
        return Subscribed(self, pattern, handler)

    def unsubscribe(self, pattern: str, handler: Handler) -> None:
        """Take a handler off."""
        if self.routes.remove(pattern, handler) and self.is_open:
            self._withdraw(pattern)

    async def drained(self) -> None:
        """Return when the bus is not congested, or not connected."""
        await self._free.wait()

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Have somebody told when the connection is lost, and when it is back; returns what ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    # What the subclass calls

    def connection_is_lost(self, why: EverlogError) -> None:
        """Note that the connection has ended."""
        self._why = why
        self._set_congested(False)
        self._lost.set()

    def _set_congested(self, congested: bool) -> None:
        self.is_congested = congested
        if congested:
            self._free.clear()
        else:
            self._free.set()

    # Keeping the connection

    async def _try(self) -> None:
        address, self._turn = self._turn, (self._turn + 1) % self._addresses
        self._lost.clear()
        try:
            await self._within(self._connect(address))
            confirmed: set[str] = set()
            while missing := [pattern for pattern in self.routes if pattern not in confirmed]:
                for pattern in missing:  # others may be added meanwhile
                    await self._within(self._confirm(pattern))
                    confirmed.add(pattern)
        except BaseException:
            with contextlib.suppress(EverlogError):
                await self._disconnect()
            raise
        self.is_open = True

    async def _keep(self) -> None:
        """Connect again whenever the connection is lost."""
        while True:
            await self._lost.wait()
            self.is_open = False
            _log.warning("bus lost: %s", self._why)
            self._tell(False)
            for wait_s in delays():
                await asyncio.sleep(wait_s)
                try:
                    await self._try()
                    break
                except (Unavailable, NotAllowed) as error:
                    _log.info("bus not there: %s", error)
            _log.warning("bus is back")
            self._tell(True)

    def _tell(self, is_open: bool) -> None:
        for watcher in list(self._watchers):
            watcher(is_open)

    async def _within(self, step: Awaitable[None]) -> None:
        """Await a step of a connection that is being made; raises Unavailable if it takes too long."""
        try:
            async with asyncio.timeout(OPEN_S):
                await step
        except TimeoutError:
            raise Unavailable(f"the bus has not answered for {OPEN_S:g} s") from None
