"""When the wills and the sessions of clients that are away are due."""

import heapq
from collections.abc import Iterator

from everlog.broker.registry.connect_terms import NEVER
from everlog.mqtt import Will

_SLACK = 10_000  # entries of clients that are forgotten, beyond as many as there are others; then they are let go


class Expiry:
    """Client ids with the time (wall clock, µs) at which something of theirs is due, soonest first.

    What it says may be too early: a client that is back, or away anew, is to be looked at and scheduled again.
    """

    def __init__(self) -> None:
        self._wills = _Deadlines()
        self._ends = _Deadlines()

    def __len__(self) -> int:
        return len(self._wills) + len(self._ends)

    def schedule(self, client_id: str, away_us: int, expiry_s: int, will: Will | None) -> None:
        """Note that a client is away since then."""
        if will is not None:
            self._wills.add(client_id, will_due_us(will, away_us, expiry_s))
        if expiry_s != NEVER:
            self._ends.add(client_id, away_us + expiry_s * 1_000_000)

    def forget(self, client_id: str) -> None:
        """Note that a client's session is over."""
        self._wills.remove(client_id)
        self._ends.remove(client_id)

    def due_wills(self, now_us: int) -> Iterator[str]:
        """Yield the client ids whose wills may be due."""
        return self._wills.take(now_us)

    def due_ends(self, now_us: int) -> Iterator[str]:
        """Yield the client ids whose sessions may be over."""
        return self._ends.take(now_us)


class _Deadlines:
    """A heap with one entry that counts for each client id, at its time in `_at`, which is never later than it is due.

    So a client that comes and goes adds nothing: the entry that it has is looked at when its time has come.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, client_id: str, due_us: int) -> None:
        known_us = self._at.get(client_id)
        if known_us is None or due_us < known_us:
            self._at[client_id] = due_us
            heapq.heappush(self._heap, (due_us, client_id))
            self._let_go()

    def remove(self, client_id: str) -> None:
        if self._at.pop(client_id, None) is not None:
            self._let_go()

    def take(self, now_us: int) -> Iterator[str]:
        while self._heap and self._heap[0][0] <= now_us:
            at_us, client_id = heapq.heappop(self._heap)
            if self._at.get(client_id) == at_us:
                del self._at[client_id]
                yield client_id

    def _let_go(self) -> None:
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at_us, client_id) for client_id, at_us in self._at.items()]
            heapq.heapify(self._heap)


def will_due_us(will: Will, away_us: int, expiry_s: int) -> int:
    """Return when a will is due: after its delay, at the latest when the session ends."""
    return away_us + min(will.properties.will_delay_interval or 0, expiry_s) * 1_000_000
