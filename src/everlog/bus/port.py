"""The port that every bus has: publish, subscribe, and an inbox that only its owner hears.

A bus moves bytes and promises nothing: what is published may get lost, and comes at most once. Whoever needs an answer
asks again. Subjects have levels separated by `/`; a pattern is a subject, or one whose last level is `#`, which stands
for one level or more.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from everlog.base import EverlogError, UsageError
from everlog.bus.delivery import Delivery

Handler: TypeAlias = Callable[[list[Delivery]], None]  # takes what arrived together, on the event loop's thread
Watcher: TypeAlias = Callable[[bool], None]  # told when the bus is lost, and when it is there again


class NotAllowed(EverlogError):
    """The bus's own rules refuse it."""


class Subscription(Protocol):
    """A subscription that is in force."""

    def cancel(self) -> None: ...


class Bus(Protocol):
    """One client's connection to a bus. `open` and `close` bracket its life; it connects again by itself."""

    @property
    def inbox(self) -> str: ...  # the prefix of all subjects that replies to this client have

    @property
    def max_payload(self) -> int: ...  # bytes of one message

    @property
    def is_open(self) -> bool: ...  # connected now

    @property
    def is_congested(self) -> bool: ...  # so much waits to leave that one should not publish more just now

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def publish(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> bool:
        """Send a message in this turn of the loop, together with others; return False if there is no connection."""
        ...

    def publish_all(self, messages: list[Delivery]) -> bool:
        """Send messages as `publish` does, all in one call; their payloads are not above `max_payload`."""
        ...

    async def subscribe(self, pattern: str, handler: Handler) -> Subscription:
        """Return once the subscription is in force; it comes back by itself with the connection."""
        ...

    async def drained(self) -> None:
        """Return when the bus is not congested, or not connected."""
        ...

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Have somebody told when the connection is lost, and when it and all subscriptions are back.

        Returns what ends that.
        """
        ...


def check_subject(subject: str) -> str:
    """Return a valid subject; raises UsageError if it is none."""
    if not subject or "" in subject.split("/") or any(mark in subject for mark in "+#\0"):
        raise UsageError(f"{subject!r} is not a subject", hint="levels between slashes, none empty, without + and #")
    return subject


def check_pattern(pattern: str) -> str:
    """Return a valid pattern; raises UsageError if it is none."""
    check_subject(pattern.removesuffix("/#"))
    return pattern
