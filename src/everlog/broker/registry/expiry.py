"""When the wills and the sessions of clients that are away are due."""

import heapq
from collections.abc import Iterator

from everlog.broker.registry.connect_terms import NEVER
from everlog.mqtt import Will


class Expiry:
    """Client ids with the time (wall clock, µs) at which something of theirs is due, soonest first."""

    def __init__(self) -> None:
        self._wills: list[tuple[int, str]] = []
        self._ends: list[tuple[int, str]] = []

    def schedule(self, client_id: str, away_us: int, expiry_s: int, will: Will | None) -> None:
        """Note that a client is away since then."""
        if will is not None:
            heapq.heappush(self._wills, (will_due_us(will, away_us, expiry_s), client_id))
        if expiry_s != NEVER:
            heapq.heappush(self._ends, (away_us + expiry_s * 1_000_000, client_id))

    def due_wills(self, now_us: int) -> Iterator[str]:
        """Yield the client ids whose wills may be due."""
        return _due(self._wills, now_us)

    def due_ends(self, now_us: int) -> Iterator[str]:
        """Yield the client ids whose sessions may be over."""
        return _due(self._ends, now_us)


def will_due_us(will: Will, away_us: int, expiry_s: int) -> int:
    """Return when a will is due: after its delay, at the latest when the session ends."""
    return away_us + min(will.properties.will_delay_interval or 0, expiry_s) * 1_000_000


def _due(heap: list[tuple[int, str]], now_us: int) -> Iterator[str]:
    while heap and heap[0][0] <= now_us:
        yield heapq.heappop(heap)[1]
