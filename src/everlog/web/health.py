"""Whether the broker can take clients: checks that each say why not, or nothing."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from everlog.broker import Log

Check = Callable[[], str | None]


class Listeners(Protocol):
    """The part of `Listening` that is asked."""

    closed: bool

    def addresses(self) -> list[Any]: ...


def not_stopping(is_stopping: Callable[[], bool]) -> Check:
    """Not ready from the first signal on."""
    return lambda: "the broker is stopping" if is_stopping() else None


def is_listening(listening: Listeners) -> Check:
    """Not ready when no listener is open."""
    return lambda: "no listener is open" if listening.closed or not listening.addresses() else None


def log_is_writable(log: Log) -> Check:
    """Not ready when a shard has failed: it takes no more messages until the broker is started anew."""

    def check() -> str | None:
        for number, shard in enumerate(log.shards):
            if shard.failure is not None:
                return f"shard {number} can't be written: {shard.failure}"
        return None

    return check


def why_not_ready(checks: Iterable[Check]) -> list[str]:
    """Every reason."""
    return [reason for check in checks if (reason := check()) is not None]
