"""How fast a replay goes: at once, or in step with the times at which messages were published."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from everlog.base import UsageError

LONGEST_NAP_S = 0.5  # between looks at the clock


@dataclass(slots=True)
class Pace:
    """When each message is due: `speed` times as fast as they were published, or at once (None)."""

    speed: float | None
    clock: Callable[[], float] = time.monotonic
    nap: Callable[[float], Awaitable[None]] = asyncio.sleep
    _first_us: int | None = None
    _began: float = 0.0

    async def wait_for(self, time_us: int, before: Callable[[], None] | None = None) -> None:
        """Wait until a message of this time is due; `before` is called whenever that takes a while."""
        while (wait := self.wait_s(time_us, self.clock())) > 0:
            if before is not None:
                before()
            await self.nap(min(wait, LONGEST_NAP_S))

    def wait_s(self, time_us: int, now: float) -> float:
        """Return how long it is until a message of this time is due."""
        if self.speed is None:
            return 0.0
        if self._first_us is None:
            self._first_us, self._began = time_us, now
        return max(0.0, self._began + (time_us - self._first_us) / 1e6 / self.speed - now)


def parse_speed(text: str) -> float | None:
    """Parse `max`, `original`, or a factor such as `10x`."""
    if text == "max":
        return None
    if text == "original":
        return 1.0
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise UsageError(f"--speed {text!r} is not a speed", hint="use max, original, or a factor like 10x")
    return speed
