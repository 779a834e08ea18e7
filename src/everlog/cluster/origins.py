"""Who sent what: messages of each origin are numbered from 1 in each shard, so what is sent again is appended once.

An origin is an incarnation of a broker, or a producer of its own. The broker that owns the shard is one too: whatever
was appended without a number is its own. Numbers count messages, so batches may be split anywhere.
"""

import threading
from collections import deque
from collections.abc import Callable

from everlog.base import Unavailable

OUTBOX_ORIGIN = 0  # which no incarnation has: wills, numbered by the outbox of their shard


class Gap(Unavailable):
    """Messages before these have not arrived: they must be sent first."""

    def __init__(self, origin: int, first: int, last: int) -> None:
        super().__init__(f"message {first} of origin {origin} follows {last}", hint=f"send from {last + 1} on")
        self.last = last


class Closed(Unavailable):
    """Nothing more is taken from this origin."""


class Origins:
    """The numbers of one shard while one owner has it; any thread may call."""

    def __init__(self, own: int, numbers: dict[int, int], closed: dict[int, int], end: int) -> None:
        self._own = own
        self._appended = dict(numbers)  # the last number of each origin that was appended
        self._placed = dict(numbers)  # that is in a row
        self._closed = dict(closed)
        self._at = end  # where the rows so far end
        self._runs: deque[tuple[int, int, int, int]] = deque()  # from offset, to offset, origin, number of the last
        self._lock = threading.Lock()

    def append(self, origin: int, first: int, count: int, append: Callable[[int], int]) -> int:
        """Append messages of an origin that are numbered from `first` on; return the last number it has sent so far.

        `append(skipped)` appends all but the first, which were appended before, and returns where the log ends then.
        """
        with self._lock:
            if origin in self._closed:
                raise Closed(f"origin {origin} is closed", hint="join again and send as another one")
            last = self._appended.get(origin, 0)
            if first > last + 1:
                if origin != OUTBOX_ORIGIN:
                    raise Gap(origin, first, last)
                last = first - 1  # of what was taken out of the outbox before it was appended
            new = first + count - 1 - last
            if new <= 0:
                return last
            end = append(count - new)
            self._runs.append((end - new, end, origin, last + new))
            self._appended[origin] = last + new
            return last + new

    def place(self, end: int, *, whole: bool) -> dict[int, int]:
        """Return the last number of each origin in the row that ends at an offset, or of all that there are."""
        with self._lock:
            found: dict[int, int] = {}
            own = end - self._at
            while self._runs and self._runs[0][0] < end:
                start, stop, origin, last = self._runs[0]
                own -= min(stop, end) - max(start, self._at)
                found[origin] = last - max(0, stop - end)
                if stop > end:
                    break
                self._runs.popleft()
            if own:
                found[self._own] = self._placed.get(self._own, 0) + own
                self._appended[self._own] = found[self._own]
            self._placed.update(found)
            self._at = end
            return dict(self._placed) if whole else found

    def close(self, origin: int) -> int:
        """Take nothing more from an origin; return its final number, of which not all may be committed yet."""
        with self._lock:
            return self._closed.setdefault(origin, self._appended.get(origin, 0))

    def forget(self, origin: int) -> None:
        """Leave out a closed origin whose final number is stored."""
        with self._lock:
            self._appended.pop(origin, None)
            self._placed.pop(origin, None)

    def last(self, origin: int) -> int:
        """Return the last number of an origin that was appended, or its final one."""
        with self._lock:
            return self._closed.get(origin, self._appended.get(origin, 0))
