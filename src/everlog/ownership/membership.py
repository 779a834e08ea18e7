"""One process's part in ownership: it beats, watches the others, declares the dead, and coordinates if nobody does.

`tick` does all of it once and is to be called about once a second, from a thread that may wait for the storage. Who
decides what to open and close reads `board` and asks `things_to_claim` and `things_to_release`.
"""

import time
from collections.abc import Callable, Iterable

from everlog.base import EverlogError
from everlog.ownership.placement import plan_placement, servers_of
from everlog.ownership.ports import COORDINATOR, NOBODY, Board, Claim, Overruled, Ownership, Replaced
from everlog.ownership.rules import living
from everlog.ownership.suspicion import REFUSED_S, Suspicion

SUSPECT_S = 3.0  # for which a member whose connection was lost is looked at again and again
WATCH_S = 1.5  # a counter that stands still for longer than between two beats


def always() -> bool:
    """Return True: for a process that is well as long as it beats."""
    return True


def unknown(address: str) -> bool:
    """Return False: nothing is known of whether that machine refuses connections."""
    return False


class Membership:
    """A server among others. `things` are all the things that the coordinator places."""

    def __init__(
        self,
        ownership: Ownership,
        name: str,
        address: str,
        things: Iterable[str] = (),
        *,
        is_well: Callable[[], bool] = always,
        refuses: Callable[[str], bool] = unknown,
        clock: Callable[[], float] = time.monotonic,
        suspicion: Suspicion | None = None,
    ) -> None:
        self._ownership = ownership
        self._name = name
        self._address = address
        self._things = sorted(things)
        self._is_well = is_well  # the loop turns and commits go through
        self._refuses = refuses
        self._clock = clock
        self._suspicion = suspicion or Suspicion()
        self._suspects: dict[int, float] = {}  # whose connection was lost: until when they are worth a look each time
        self._is_joining = False  # a join that failed may be stored: who has this name by now may be this process
        self.incarnation = NOBODY
        self.board = Board()

    def join(self) -> int:
        """Become a member and return the incarnation."""
        self._suspicion.interrupt()
        self._is_joining = True
        self.incarnation = self._ownership.join(self._name, self._address)
        self._is_joining = False
        self.board = self._ownership.read()
        return self.incarnation

    def tick(self) -> Board:
        """Beat, look at the others and return the board; raise `Overruled` if this process is dead to the others.

        It may join again then, unless it is `Replaced`. Raises `Unavailable` if the storage can't be reached: then
        nothing may be acknowledged that needs it, and nobody is declared dead for what was not seen meanwhile.
        """
        try:
            return self._tick()
        except Overruled:
            self._suspicion.interrupt()
            if self._is_joining:
                raise
            if any(member.name == self._name for member in self._ownership.read().members.values()):
                raise Replaced(
                    f"another process joined as {self._name!r}", hint="give each server a name of its own"
                ) from None
            raise

    def _tick(self) -> Board:
        asked = self._clock()
        if not self._is_well():
            self._suspicion.interrupt()
            self.board = self._ownership.read()
            living(self.board, self.incarnation)
            return self.board
        try:
            self._ownership.beat(self.incarnation)
            beats = self._ownership.beats()
            beats.pop(self.incarnation, None)
            self._suspicion.observe(asked, self._clock(), beats)
            self._bury()
            self.board = self._ownership.read()
            living(self.board, self.incarnation)
            self._coordinate()
        except EverlogError:
            self._suspicion.interrupt()
            raise
        return self.board

    def suspect(self, incarnation: int) -> None:
        """Look at once whether a member's machine refuses connections, not only when its counter stands still."""
        self._suspects[incarnation] = self._clock() + SUSPECT_S

    @property
    def is_watching(self) -> bool:
        """Whether somebody may be dead, and looking more often would find out sooner."""
        return bool(self._suspects) or bool(self._suspicion.standing(WATCH_S))

    def leave(self) -> None:
        """Stop being a member; what is owned is free for others at once."""
        self._ownership.leave(self.incarnation)

    def _bury(self) -> None:
        """Declare those dead whose counters stood still."""
        members = self.board.members
        standing = self._suspicion.standing(REFUSED_S)
        for incarnation, until in list(self._suspects.items()):
            if incarnation not in members or until < self._clock():
                self._suspects.pop(incarnation, None)
        for incarnation in {*standing, *list(self._suspects)}:
            if incarnation in members and self._refuses(members[incarnation].address):
                self._suspicion.refuse(incarnation, self._clock())
            else:
                self._suspicion.accept(incarnation)
        for incarnation, beat in self._suspicion.dead().items():
            self._ownership.declare_dead(incarnation, beat)

    def _coordinate(self) -> None:
        """Be the coordinator if nobody is, and store a new placement when that is due."""
        held = self.board.claims.get(COORDINATOR, Claim(NOBODY, 0))
        if held.owner not in (NOBODY, self.incarnation):
            return
        if not self._things or self.board.members[self.incarnation].draining:
            if held.owner == self.incarnation:
                self._ownership.release([COORDINATOR], self.incarnation)
            return
        placement = plan_placement(self._things, servers_of(self.board), self.board.placement)
        if held.owner == self.incarnation and placement == self.board.placement:
            return
        epochs = self._ownership.claim([COORDINATOR], self.incarnation)
        if COORDINATOR not in epochs:
            return
        self._ownership.place(placement, epochs[COORDINATOR])
        self.board = self._ownership.read()
        living(self.board, self.incarnation)
