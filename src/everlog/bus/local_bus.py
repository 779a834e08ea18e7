"""The bus within one process: what is published in one turn of the loop arrives in the next, together."""

import asyncio
import secrets
from collections.abc import Callable

from everlog.base import UsageError
from everlog.bus.delivery import Delivery
from everlog.bus.port import Handler, Watcher, check_pattern, check_subject
from everlog.bus.routes import Routes, Subscribed, Unsubscriber

_INBOXES = "inbox/"


class LocalHub:
    """What local buses have in common: who publishes to it reaches all that subscribed; one event loop's."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.routes = Routes()
        self._waiting: list[Delivery] = []

    def publish(self, delivery: Delivery) -> None:
        """Have a message delivered in the loop's next turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._waiting.append(delivery)

    def _deliver(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.routes.dispatch(waiting)


class LocalBus(Unsubscriber):
    """A client of a hub; see `Bus`."""

    def __init__(self, hub: LocalHub) -> None:
        self._hub = hub
        self.inbox = f"{_INBOXES}{secrets.token_hex(8)}"
        self.is_open = False
        self.is_congested = False  # nothing waits longer than a turn
        self._subscribed: list[tuple[str, Handler]] = []

    @property
    def max_payload(self) -> int:
        """How many bytes a message may have."""
        return self._hub.max_payload

    async def open(self) -> None:
        """Begin."""
        self.is_open = True

    async def close(self) -> None:
        """End, with all subscriptions."""
        self.is_open = False
        for pattern, handler in self._subscribed:
            self._hub.routes.remove(pattern, handler)
        self._subscribed.clear()

    def publish(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> bool:
        """Send a message; return False if the bus is closed."""
        if len(payload) > self.max_payload:
            raise UsageError(f"{len(payload)} bytes are too large for a message", hint=f"at most {self.max_payload}")
        if self.is_open:
            safe = reply if reply.startswith(_INBOXES) else ""
            self._hub.publish(Delivery(check_subject(subject), payload, safe, correlation))
        return self.is_open

    def publish_all(self, messages: list[Delivery]) -> bool:
        """Send messages; return False if the bus is closed."""
        for one in messages:
            self.publish(one.subject, one.payload, one.reply, one.correlation)
        return self.is_open

    async def subscribe(self, pattern: str, handler: Handler) -> Subscribed:
        """Have a handler called with what is published from now on."""
        self._hub.routes.add(check_pattern(pattern), handler)
        self._subscribed.append((pattern, handler))
        return Subscribed(self, pattern, handler)

    def unsubscribe(self, pattern: str, handler: Handler) -> None:
        """Take a handler off."""
        if (pattern, handler) in self._subscribed:
            self._subscribed.remove((pattern, handler))
            self._hub.routes.remove(pattern, handler)

    async def drained(self) -> None:
        """Return at once."""

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Have somebody told of losses, of which there are none."""
        return lambda: None
