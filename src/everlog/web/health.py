"""Checks of whether the broker can serve clients: each returns why not, or None."""

from collections.abc import Callable, Iterable

from everlog.broker import NO_SPACE, Listening, Log
from everlog.store import FreeSpace

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
    """Return a check that fails while a shard can't be written: acks wait, or it takes no messages at all."""

    def check() -> str | None:
        for number, shard in enumerate(log.shards):
            problem = shard.failure or shard.trouble
            if problem is not None:
                return f"shard {number} can't be written: {problem}"
        return None

    return check


def disk_has_room(space: FreeSpace | None) -> Check:
    """Return a check that fails while the disk has so little space that no messages are kept."""

    def check() -> str | None:
        if space is None or not space.is_low:
            return None
        return f"the disk of {space.directory} has {space.free_bytes} bytes left: {NO_SPACE}"

    return check


def why_not_ready(checks: Iterable[Check]) -> list[str]:
    """Return the reasons of all checks that fail."""
    return [reason for check in checks if (reason := check()) is not None]
