"""Sequence numbers that were skipped and may still come: the slow path of checking order, so plain Python."""

from bisect import bisect_right


class Gaps:
    """Ranges of missing numbers of one stream, in order and apart; each arrival adds at most one range."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def skip(self, start: int, stop: int) -> None:
        """Note that numbers `start` to `stop` were passed over; they are above all that were skipped before."""
        self._starts.append(start)
        self._stops.append(stop)

    def fill(self, number: int) -> bool:
        """Note that a number has come after all; return False if it was not missing and so is a duplicate."""
        place = bisect_right(self._starts, number) - 1
        if place < 0 or number >= self._stops[place]:
            return False
        start, stop = self._starts[place], self._stops[place]
        parts = [part for part in ((start, number), (number + 1, stop)) if part[0] < part[1]]
        self._starts[place : place + 1] = [part[0] for part in parts]
        self._stops[place : place + 1] = [part[1] for part in parts]
        return True

    def __len__(self) -> int:
        return sum(self._stops) - sum(self._starts)
