"""Events for the operator: one log record for each, with a name and fields; `app` formats them.

Peers cause events, so the rate of warnings of one name is limited: those beyond it are counted, and the next one that
is written says how many were left out.
"""

import json
import logging
import re
import time
from collections.abc import Callable

from everlog.broker.token_bucket import TokenBucket

WARNINGS_PER_SECOND = 20  # of one name; more are counted and left out
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@%+#$\[\]-]+")


class Event:
    """A log message: text when it is written, and fields for formatters."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        parts = [self.name]
        parts += [f"{key}={_shown(value)}" for key, value in self.fields.items() if value is not None]
        return " ".join(parts)


class Flood:
    """The limit on warnings of one name; the clock is an argument."""

    def __init__(self, per_second: float = WARNINGS_PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}  # by event name; the code has a few
        self._left_out: dict[str, int] = {}

    def admit(self, name: str) -> int | None:
        """Return how many of this name were left out since the last one, or None if this one is left out too."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._per_second)
        if bucket.take(self._clock()):
            return self._left_out.pop(name, 0)
        self._left_out[name] = self._left_out.get(name, 0) + 1
        return None


_flood = Flood()


def event(logger: logging.Logger, name: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event if its level is enabled; a field that is None is left out."""
    if not logger.isEnabledFor(level):
        return
    if level >= logging.WARNING:
        left_out = _flood.admit(name)
        if left_out is None:
            return
        if left_out:
            fields["left_out"] = left_out
    logger.log(level, Event(name, fields))


def _shown(value: object) -> str:
    """Return the value on one line, quoted where it is not plain, so that no peer can forge lines of the log."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
