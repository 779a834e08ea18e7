"""How many kept messages wait for a session or group: counted exactly while that is quick, else an upper bound."""

from collections.abc import Sequence
from dataclasses import dataclass

from everlog.store import LogStore, Positions
from everlog.topics import parse_filter

_STEP_RECORDS, _STEP_BYTES = 100_000, 16 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A number of messages; unless it is `exact` there may be fewer."""

    messages: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.messages:,}" if self.exact else f"≤ {self.messages:,}"


def count_matching(store: LogStore, filters: Sequence[str], positions: Positions) -> int:
    """Return how many kept messages match one of the filters from these positions on."""
    reader, count = store.reader([parse_filter(text) for text in filters]), 0
    while True:
        result = reader.read(positions, _STEP_RECORDS, _STEP_BYTES)
        count += result.count
        positions = result.positions
        if result.caught_up:
            return count


class WaitingCounter:
    """Counts for one session after the other, as long as there are not more than so many offsets to look at in all."""

    def __init__(self, store: LogStore, most_offsets: int = 5_000_000) -> None:
        self._store = store
        self._left = most_offsets

    def count(self, filters: Sequence[str], positions: Positions, lag: int, since: Sequence[Positions] = ()) -> Waiting:
        """Return what waits at these positions, of `lag` messages of all topics.

        Filters that begin later than the positions (`since`) are counted from the positions on, so that is a bound.
        """
        if not filters or not lag:
            return Waiting(0)
        if lag > self._left:
            return Waiting(lag, exact=False)
        self._left -= lag
        begins_later = any(begin > at for one in since for begin, at in zip(one, positions, strict=False))
        return Waiting(count_matching(self._store, filters, positions), exact=not begins_later)
