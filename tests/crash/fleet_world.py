"""A hundred brokers and a thousand shards by the ownership code as it is, in simulated time on one thread.

A broker ticks about once a simulated second, each tick at its own moment, and then claims and releases as
`BrokerKeeper` does: one release at a time, claims all at once. The database may be slow, away, or not reached by some;
an answer may be lost though the change was made. Checked at every step: a thing has one owner, its epochs only grow and
each is given to one incarnation, nobody is declared dead who beat within its patience.
"""

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from everlog.base import Unavailable
from everlog.ownership import (
    NOBODY,
    Board,
    Membership,
    MemoryOwnership,
    Overruled,
    Suspicion,
    things_to_claim,
    things_to_release,
)

T = TypeVar("T")
PATIENCE_S = 5.0
LOOK_S = 2.0  # slower answers do not count as a look


class Violation(AssertionError):
    """Something happened that must never."""


@dataclass
class Fleet:
    """The world: its time, its database and what was seen of both."""

    seed: int
    brokers: int
    shards: int
    patience_s: float = PATIENCE_S
    now_s: float = 1000.0
    turn_s: float = 1000.0  # when the turn began in which something is stored: turns are stored in this order
    slow_s: float = 0.0  # the most that a request takes
    is_down: bool = False
    deaths: int = 0
    moves: int = 0
    requests: int = 0
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)  # thing and epoch to the incarnation that got it
    beaten_s: dict[int, float] = field(default_factory=dict)  # when each incarnation beat last

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.store = MemoryOwnership()
        self.things = [f"messages-{number}" for number in range(self.shards)]
        self.fleet = [Broker(self, number) for number in range(self.brokers)]
        self._due = [(self.now_s + self.random.random(), number) for number in range(self.brokers)]
        heapq.heapify(self._due)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now_s + seconds
        while self._due[0][0] <= until:
            self.now_s, number = heapq.heappop(self._due)
            begun = self.turn_s = self.now_s
            self.fleet[number].turn()
            took = self.now_s - begun
            self.now_s = begun  # others' time does not stand still while one waits
            heapq.heappush(self._due, (begun + max(took, 0.9 + 0.2 * self.random.random()), number))
        self.now_s = until

    def request(self, broker: "Broker", act: Callable[[], T], *, changes: bool = True) -> T:
        """Ask the database, as a broker reaches it."""
        self.requests += 1
        if self.is_down or broker.is_cut:
            self.now_s += 1.0
            raise Unavailable("the database can't be reached")
        self.now_s += self.slow_s * self.random.random()
        found = act()
        if changes and self.random.random() < broker.loses:
            raise Unavailable("the answer was lost")
        return found

    def note_claims(self, epochs: Mapping[str, int], incarnation: int) -> None:
        """Check that no epoch was given to another."""
        for thing, epoch in epochs.items():
            owner = self.epochs.setdefault((thing, epoch), incarnation)
            if owner != incarnation:
                raise Violation(f"epoch {epoch} of {thing} was given to {owner} and {incarnation}")
            if (thing, epoch + 1) in self.epochs:
                raise Violation(f"{thing} was given at epoch {epoch} after {epoch + 1}")

    def note_death(self, incarnation: int) -> None:
        """Check that the dead did not beat just now."""
        silent = self.now_s - self.beaten_s.get(incarnation, 0.0)
        if silent < PATIENCE_S - 0.01:
            raise Violation(f"incarnation {incarnation} was declared dead {silent:.1f} s after its beat")
        self.deaths += 1

    @property
    def board(self) -> Board:
        """What is stored by now."""
        return self.store.read()

    def unowned(self) -> int:
        """How many shards no living broker owns."""
        board = self.board
        return sum(board.owner_of(thing) is None for thing in self.things)

    def loads(self) -> list[int]:
        """How many shards each living member owns."""
        board = self.board
        return sorted(sum(thing.startswith("messages") for thing in board.owned_by(number)) for number in board.members)

    def settle(self, seconds: float, members: int | None = None) -> float:
        """Let time pass until every shard has an owner and all is even, among so many; return how long it took."""
        begun = self.now_s
        while self.now_s < begun + seconds:
            self.run(1.0)
            loads = self.loads()
            if loads and not self.unowned() and loads[-1] - loads[0] <= 1 and len(loads) == (members or len(loads)):
                return self.now_s - begun
        raise Violation(f"{self.unowned()} shards have no owner {seconds} s later, and brokers have {self.loads()}")


class Reached:
    """The database, as one broker reaches it."""

    def __init__(self, fleet: Fleet, broker: "Broker") -> None:
        self._fleet, self._broker = fleet, broker

    def _ask(self, act: Callable[[], T], *, changes: bool = True) -> T:
        return self._fleet.request(self._broker, act, changes=changes)

    def join(self, name: str, address: str) -> int:
        return self._ask(lambda: self._fleet.store.join(name, address))

    def leave(self, incarnation: int) -> None:
        self._ask(lambda: self._fleet.store.leave(incarnation))

    def drain(self, incarnation: int) -> None:
        self._ask(lambda: self._fleet.store.drain(incarnation))

    def beat(self, incarnation: int) -> None:
        def act() -> None:
            self._fleet.store.beat(incarnation)
            self._fleet.beaten_s[incarnation] = self._fleet.turn_s

        self._ask(act)

    def beats(self) -> dict[int, int]:
        return self._ask(self._fleet.store.beats, changes=False)

    def declare_dead(self, incarnation: int, beat: int) -> bool:
        def act() -> bool:
            was = incarnation in self._fleet.board.members
            is_dead = self._fleet.store.declare_dead(incarnation, beat)
            if was and is_dead:
                self._fleet.note_death(incarnation)
            return is_dead

        return self._ask(act)

    def claim(self, things: Collection[str], incarnation: int) -> dict[str, int]:
        def act() -> dict[str, int]:
            epochs = self._fleet.store.claim(things, incarnation)
            self._fleet.note_claims(epochs, incarnation)
            return epochs

        return self._ask(act)

    def release(self, things: Collection[str], incarnation: int) -> None:
        self._fleet.moves += 1
        self._ask(lambda: self._fleet.store.release(things, incarnation))

    def place(self, placement: Mapping[str, str], epoch: int) -> None:
        self._ask(lambda: self._fleet.store.place(placement, epoch))

    def read(self) -> Board:
        return self._ask(self._fleet.store.read, changes=False)


class Broker:
    """One broker: it ticks, claims what is placed on it and free, and gives away what is placed elsewhere."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self.name = f"broker-{number:03d}"
        self.is_up = False
        self.is_cut = False  # does not reach the database
        self.loses = 0.0  # how often an answer is lost
        self._reached = Reached(fleet, self)
        self.membership: Membership | None = None

    def start(self) -> None:
        """Be there from the next turn on."""
        self.is_up, self.membership = True, None

    def kill(self) -> None:
        """Be gone, without a word."""
        self.is_up, self.membership = False, None

    def turn(self) -> None:
        """Do what is due."""
        if not self.is_up:
            return
        try:
            if self.membership is None:
                self._join()
            else:
                self._go_on(self.membership)
        except Overruled:
            self.membership = None
        except Unavailable:
            pass

    def _join(self) -> None:
        fleet = self._fleet
        made = Membership(
            self._reached, self.name, self.name, fleet.things, clock=lambda: fleet.now_s,
            suspicion=Suspicion(fleet.patience_s, gap_s=LOOK_S),
        )  # fmt: skip
        made.join()
        self.membership = made

    def _go_on(self, membership: Membership) -> None:
        board, me = membership.tick(), membership.incarnation
        if me not in board.members:
            raise Overruled("dead")
        elsewhere = things_to_release(board, me)
        if elsewhere:
            self._reached.release(elsewhere[:1], me)
        free = things_to_claim(board, me)
        if free:
            self._reached.claim(free, me)


def owners(fleet: Fleet) -> dict[str, int]:
    """Who owns each shard by what is stored."""
    return {thing: claim.owner for thing, claim in fleet.board.claims.items() if claim.owner != NOBODY}
