"""Work that would hold up the event loop is done a little in each of its turns.

Work is a generator: each step takes well below a millisecond. It begins at once; what this turn of the loop has no time
for stands in line, and in each turn those in line get a slice one after the other until the turn's time is over. So a
small packet is answered at once, a large one takes longer for who sent it, and nobody else waits for more than a turn.
Time is the loop's own CPU time, so that a busy machine changes nothing. Owned by the event loop's thread.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

TURN_S = 0.002  # for all work together, in one turn of the event loop
SLICE_S = 0.0005  # for one, before the next in line

Steps: TypeAlias = Generator[None, None, Any]


class Work:
    """Work that is not done yet; whoever is no longer interested ends it with `drop`."""

    __slots__ = ("_failed", "_steps", "_then")

    def __init__(self, steps: Steps, then: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        self._steps: Steps | None = steps
        self._then = then
        self._failed = failed

    @property
    def is_over(self) -> bool:
        """Whether it is done, has failed or was dropped."""
        return self._steps is None

    def drop(self) -> None:
        """Do no more of it; nobody is told."""
        steps, self._steps = self._steps, None
        if steps is not None:
            with contextlib.suppress(ValueError):  # it is in a step that ends in this: the step was its last
                steps.close()

    def go_on(self, until: float, clock: Callable[[], float]) -> None:
        """Do some of it; when it is done, or fails, whoever asked for it is told."""
        while self._steps is not None:
            try:
                next(self._steps)
            except StopIteration as done:
                self._steps = None
                self._then(done.value)
            except Exception as error:  # noqa: BLE001 - whoever asked for the work decides
                self._steps = None
                self._failed(error)
            if clock() >= until:
                return


class Turns:
    """The line of those whose work goes on in turns to come."""

    def __init__(
        self, soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._soon = soon
        self._clock = clock
        self._line: deque[Work] = deque()
        self._until = 0.0  # when this turn's time is over; 0 while nothing was done in it
        self._asked = False

    def run(self, steps: Steps, then: Callable[[Any], None], failed: Callable[[Exception], None]) -> Work:
        """Do work, as far as this turn has time for it, and the rest later; `then` is told the result, `failed` why."""
        work = Work(steps, then, failed)
        if not self._line:
            now = self._clock()
            if self._until == 0.0:
                self._until = now + TURN_S
                self._ask()
            if now < self._until:
                work.go_on(self._until, self._clock)
        if not work.is_over:
            self._line.append(work)
            self._ask()
        return work

    def later(self, steps: Steps, then: Callable[[Any], None], failed: Callable[[Exception], None]) -> Work:
        """Do work in turns to come."""
        work = Work(steps, then, failed)
        self._line.append(work)
        self._ask()
        return work

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._soon(self._turn)

    def _turn(self) -> None:
        """Go on with those in line, a slice each, while there is time."""
        self._asked = False
        self._until = 0.0
        if not self._line:
            return
        now = self._clock()
        self._until = now + TURN_S
        self._ask()
        while self._line:
            work = self._line.popleft()
            work.go_on(now + SLICE_S, self._clock)
            if not work.is_over:
                self._line.append(work)
            now = self._clock()
            if now >= self._until:
                break
