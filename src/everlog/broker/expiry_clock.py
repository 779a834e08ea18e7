"""The time by which things expire: that of the wall clock, as long as the wall clock is believed.

A wall clock that parts from the clock of the time since boot by more than a minute has jumped. Which of the two times
is right nobody here can know, and what expires is gone for good. So nothing is due any more, until the wall clock is
back or somebody settles that it is right. Smaller steps are followed. Both clocks are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass

MOST_APART_US = 60_000_000
NEVER_DUE_US = 0  # the time while the wall clock is in doubt: nothing is due by then


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of the wall clock, and whether it shows that."""

    offset_us: int | None = None  # how far it is ahead of the time since boot; None for not known of this boot
    doubted_us: int = 0  # what it showed when it was first doubted; 0 while it is believed
    was_ahead: bool = False  # of what was expected, when it was first doubted


class ExpiryClock:
    """The wall clock, and whether it is believed; `belief` may be that of a process before this one."""

    def __init__(self, wall_us: Callable[[], int], boot_us: Callable[[], int], belief: Belief | None = None) -> None:
        self.belief = belief or Belief()
        self.now_us = wall_us
        self._boot_us = boot_us
        self._looked_us = -MOST_APART_US  # the wall clock at the last look, if it was believed
        self.look()

    @property
    def is_believed(self) -> bool:
        """Whether things expire."""
        return not self.belief.doubted_us

    @property
    def apart_us(self) -> int:
        """How far the wall clock is ahead of what it should show; 0 if that is not known."""
        offset_us = self.belief.offset_us
        return 0 if offset_us is None else self.now_us() - self._boot_us() - offset_us

    def due_us(self) -> int:
        """Return the time up to which things are due: now, or `NEVER_DUE_US` while that is in doubt."""
        now_us = self.now_us()
        if -MOST_APART_US < now_us - self._looked_us < MOST_APART_US:
            return now_us
        self.look()
        return now_us if self.is_believed else NEVER_DUE_US

    def look(self) -> None:
        """Compare the clocks; to be called every second or so."""
        wall_us, belief = self.now_us(), self.belief
        offset_us = wall_us - self._boot_us()
        if belief.offset_us is not None:
            is_right = abs(offset_us - belief.offset_us) <= MOST_APART_US
        else:  # the clock of a boot that is over was ahead: it is right when it shows less than it did then
            is_right = not belief.doubted_us or wall_us < belief.doubted_us - MOST_APART_US
        if is_right:
            self._believe(wall_us, offset_us)
        else:
            self._looked_us = -MOST_APART_US
            if self.is_believed:
                self.belief = Belief(belief.offset_us, wall_us, self.apart_us > 0)

    def settle(self) -> None:
        """Believe the wall clock as it is."""
        wall_us = self.now_us()
        self._believe(wall_us, wall_us - self._boot_us())

    def _believe(self, wall_us: int, offset_us: int) -> None:
        self.belief = Belief(offset_us)
        self._looked_us = wall_us
