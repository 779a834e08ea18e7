"""Checks of whether the broker can serve clients: each returns why not, or None."""

from collections.abc import Callable, Iterable

from everlog.broker import Listening, Log

Check = Callable[[], str | None]


def not_stopping(is_stopping: Callable[[], bool]) -> Check:
    """Return a check that fails once the broker is stopping."""
    return lambda: "the broker is stopping" if is_stopping() else None


def is_listening(listening: Listening) -> Check:
    """Return a check that fails while no listener is open."""
    return lambda: "no listener is open" if listening.closed or not listening.addresses() else None


def clock_is_believed(is_believed: Callable[[], bool]) -> Check:
    """Return a check that fails while the wall clock is in doubt, so that nothing expires."""
    return lambda: None if is_believed() else "the wall clock has jumped and nothing expires: everlog clock DATA_DIR"


def log_is_writable(log: Log) -> Check:
    """Return a check that fails if a shard has failed: it takes no messages until the broker is restarted."""

    def check() -> str | None:
        for number, shard in enumerate(log.shards):
            if shard.failure is not None:
                return f"shard {number} can't be written: {shard.failure}"
        return None

    return check


def why_not_ready(checks: Iterable[Check]) -> list[str]:
    """Return the reasons of all checks that fail."""
    return [reason for check in checks if (reason := check()) is not None]
