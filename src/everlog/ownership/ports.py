"""Ownership: who is a member, who owns what, and at which epoch.

A process that joins is an **incarnation**, a number that is never given again. A **thing** (a shard, or the role of the
coordinator) has an owner, or none, and an **epoch**, which grows with each new owner and never goes back, not even when
the thing is released. Safety needs no clock: whoever writes names its epoch, and the place that stores the write
refuses one that is lower than another it has seen. All that time decides is when somebody is given up for dead.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Struct

from everlog.base import Unavailable

NOBODY = 0  # incarnations count from 1
COORDINATOR = "coordinator"


class Overruled(Unavailable):
    """The incarnation is dead to all others, or lost what it acts for: it may not go on under this number or epoch."""


class Replaced(Overruled):
    """Another process joined under the name of this server: joining again would only replace that one."""


class Member(Struct, frozen=True):
    """A living incarnation."""

    incarnation: int
    name: str  # of the server: the same after a restart
    address: str  # where others reach it
    token: str  # by which the process knows its own row again when the answer to `join` was lost
    draining: bool = False  # gives away what it owns, and is given nothing
    about: str = ""  # what it tells the others beside, if they want to know anything


class Claim(Struct, frozen=True):
    """Who owns a thing (NOBODY if it was released), and the epoch of its last owner."""

    owner: int
    epoch: int


class Board(Struct, frozen=True):
    """All that is stored of ownership, as of one moment; an incarnation that is not a member is dead."""

    incarnations: int = 0  # the last number that was given
    members: dict[int, Member] = {}
    claims: dict[str, Claim] = {}
    placement: dict[str, str] = {}  # thing to the name of the server that should own it

    def owned_by(self, incarnation: int) -> dict[str, int]:
        """Return the things of an incarnation with their epochs."""
        return {thing: claim.epoch for thing, claim in self.claims.items() if claim.owner == incarnation}

    def owner_of(self, thing: str) -> Member | None:
        """Return the member that owns a thing, or None."""
        claim = self.claims.get(thing)
        return None if claim is None else self.members.get(claim.owner)


class Ownership(Protocol):
    """Where ownership is stored. Raises `Unavailable` if that can't be reached: the change may be made or not.

    Every change may be asked for again: what is so already is left as it is.
    """

    def join(self, name: str, address: str) -> int:
        """Return a new incarnation for a server; an earlier one of the same name is dead from now on."""

    def leave(self, incarnation: int) -> None:
        """End an incarnation that is done: it owns nothing any more."""

    def drain(self, incarnation: int) -> None:
        """Let all see that an incarnation gives away what it owns; raise `Overruled` if it is dead."""

    def beat(self, incarnation: int) -> None:
        """Raise an incarnation's counter, for others to see; raise `Overruled` if it is dead."""

    def beats(self) -> dict[int, int]:
        """Return the counters of the incarnations that lived at the last look, read from where they are stored."""

    def declare_dead(self, incarnation: int, beat: int) -> bool:
        """Overrule an incarnation, with all it owns, whose counter is still this one; return whether it is dead."""

    def claim(self, things: Collection[str], incarnation: int) -> dict[str, int]:
        """Return the epochs at which an incarnation owns things from now on, or did already, all in one change.

        What another living incarnation owns is left out. Raises `Overruled` if this one is dead.
        """

    def release(self, things: Collection[str], incarnation: int) -> None:
        """Give up those of the things that the incarnation owns; their epochs stay."""

    def place(self, placement: Mapping[str, str], epoch: int) -> None:
        """Store where things should be, as the coordinator of this epoch; raise `Overruled` if there is a later one."""

    def read(self) -> Board:
        """Return all that is stored. It may be a little old, and never goes back."""
