"""Decides who is dead: a counter that stood still while this process looked all along.

Time is this process's own monotonic clock and nothing else: no clock is compared with another machine's. Time in which
it could not look does not count: when a read failed or was slow, or the process itself stood still, it begins anew.
"""

from collections.abc import Mapping

PATIENCE_S = 5.0
REFUSED_S = 1.0  # for a peer whose machine answers that nobody listens there any more
GAP_S = 2.0  # between two looks, and for each; more is a time in which the counters were not seen


class Suspicion:
    """The counters of others as they were seen, and since when they stand still."""

    def __init__(self, patience_s: float = PATIENCE_S, refused_s: float = REFUSED_S, gap_s: float = GAP_S) -> None:
        self._patience_s = patience_s
        self._refused_s = refused_s
        self._gap_s = gap_s
        self._since: dict[int, tuple[int, float]] = {}  # counter, and when it was first seen
        self._refused: dict[int, float] = {}
        self._asked_s = 0.0
        self._answered_s: float | None = None

    def observe(self, asked_s: float, answered_s: float, beats: Mapping[int, int]) -> None:
        """Take in counters that were asked for and came at these times."""
        looked = self._answered_s is not None and asked_s - self._answered_s <= self._gap_s
        if not looked or answered_s - asked_s > self._gap_s:
            self._since.clear()
            self._refused.clear()
        seen = self._since
        self._since = {
            incarnation: seen[incarnation]
            if incarnation in seen and seen[incarnation][0] == beat
            else (beat, answered_s)
            for incarnation, beat in beats.items()
        }
        self._refused = {number: since for number, since in self._refused.items() if number in beats}
        self._asked_s, self._answered_s = asked_s, answered_s

    def interrupt(self) -> None:
        """Begin anew: this process could not look, or not beat."""
        self._since.clear()
        self._refused.clear()
        self._answered_s = None

    def refuse(self, incarnation: int, now_s: float) -> None:
        """Note that the peer's machine refuses connections to it."""
        self._refused.setdefault(incarnation, now_s)

    def accept(self, incarnation: int) -> None:
        """Note that the peer may be reached, or that it is not known."""
        self._refused.pop(incarnation, None)

    def dead(self) -> dict[int, int]:
        """Return the incarnations that may be declared dead, with the counters that stood still."""
        return {
            incarnation: beat
            for incarnation, (beat, since) in self._since.items()
            if self._asked_s - since >= self._patience_s
            or (
                incarnation in self._refused
                and self._asked_s - max(since, self._refused[incarnation]) >= self._refused_s
            )
        }

    def standing(self, at_least_s: float) -> list[int]:
        """Return the incarnations whose counters have stood still for some time: those worth a connection."""
        return [number for number, (_, since) in self._since.items() if self._asked_s - since >= at_least_s]
