"""Sessions that are resumed while brokers crash between any two steps: nothing is lost, nothing of QoS 2 comes twice.

What is tried is in `resume_world`. The mutants at the end show that it finds what it is made for.
"""

from collections.abc import Callable
from contextlib import closing
from random import Random

import pytest
from msgspec.structs import replace
from tests.properties.resume_world import World

from everlog.broker.registry import marks
from everlog.broker.registry.write_behind import WriteBehind
from everlog.sessions import Cursor, Session, stored_session

KILL_AND_LOSE = (False, 0, 0)  # the threads have done nothing more, and the clients read nothing more
KILL_AND_KEEP = (True, 100, 100)  # everything that was asked for is done, and all that was sent is read
GOING = ("s_drop", "p_drop", "s_connect", "p_connect", "s_leave", "p_leave")  # a second connection takes over
FILTERS = (("t/#",), ("t/0", "t/1", "t/+/3", "t/+/r"))


def crash(world: World, flavour: int) -> None:
    """Crash in one of a few ways that differ in what is left."""
    if flavour == 0:
        world.kill(*KILL_AND_LOSE)
    elif flavour == 1:
        world.kill(*KILL_AND_KEEP)
    elif flavour == 2:
        world.kill(True, 1, 1)
    else:
        world.cut_power(0, 100)


def resume(seed: int, maximum: int, crashes: dict[int, int]) -> int:
    """Play the same resume each time, with crashes after so many steps: a subscriber is away, is back and answers.

    Return how many steps that took.
    """
    with closing(World(seed, maximum=maximum, retained=3)) as world:
        _resume(world, crashes)
        return world.steps


def _resume(world: World, crashes: dict[int, int]) -> None:
    while not world.subscriber.is_subscribed:
        world.round()
    world.subscriber.drop()
    for _ in range(5):
        world.publisher.publish()
    began, left = world.steps, dict(crashes)
    idle = 0
    while idle < 3:
        moved = False
        for name in world.order():
            if world.steps - began in left:
                crash(world, left.pop(world.steps - began))
            if name in world.enabled():
                world.step(name)
                moved = moved or name != "turn"
        idle = 0 if moved else idle + 1
        if idle:
            world.broker.pass_time(0.3)
    world.settle()


def walk(seed: int) -> None:
    """Let clients, disks and brokers do anything in any order, with a crash now and then."""
    random = Random(seed)
    publish_qos, qos = random.choice((2, 2, 1)), random.choice((2, 2, 1))
    retained = random.choice((0, 1, 7))
    maximum, shards = random.choice((1, 2, 3, 5, 20)), random.choice((1, 1, 2))
    room = random.choice((60, 300, 1 << 20))
    world = World(seed, publish_qos=publish_qos, qos=qos, maximum=maximum, shards=shards, retained=retained, room=room)
    with closing(world):
        _walk(world, random)


def _walk(world: World, random: Random) -> None:
    world.subscriber.filters = random.choice(FILTERS)
    world.subscriber.subscribes_again = random.random() < 0.5
    burst, eager = random.choice((1, 4, 10)), random.choice((1, 5, 20))
    for _ in range(random.choice((60, 150, 400))):
        chance = random.random()
        if chance < 0.03:
            world.crash_somehow()
        elif chance < 0.10 and world.subscriber.is_subscribed and len(world.publisher.under_way) < 2 * burst + 4:
            for _ in range(random.randint(1, burst)):
                world.step("publish")
        elif chance < 0.15:
            world.step(random.choice(("tick", "tick", "seal", "seal", *GOING)))
        else:
            name = random.choice(world.enabled())
            for _ in range(random.randint(1, eager) if name in ("s_receive", "s_answer", "p_receive") else 1):
                if name in world.enabled():
                    world.step(name)
    world.settle()


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [1, 3])
@pytest.mark.parametrize("flavour", range(4))
def test_a_crash_after_any_step_of_a_resume_loses_and_doubles_nothing(maximum: int, flavour: int) -> None:
    for step in range(resume(1, maximum, {})):
        resume(1, maximum, {step: flavour})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_two_crashes_after_any_steps_of_a_resume_lose_and_double_nothing(seed: int) -> None:
    random = Random(seed)
    steps = resume(seed, 2, {})
    for _ in range(60):
        at = random.sample(range(steps), 2)
        resume(seed, 2, {step: random.randrange(4) for step in at})


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_crashes_among_anything_else_lose_and_double_nothing(seed: int) -> None:
    for number in range(seed, seed + 20):
        walk(number)


# Mutants: each takes away one of the promises that this is about, and must be found


def _seen_before_stored(patch: pytest.MonkeyPatch) -> None:
    """A QoS 2 message is sent before its packet id is stored, in sessions that were read from the tables."""

    class NeverAhead(Session):
        ahead = property(lambda session: False, lambda session, ahead: None)

    patch.setattr(stored_session, "Session", NeverAhead)


def _nothing_waits(patch: pytest.MonkeyPatch) -> None:
    """No answer waits for the tables: a PUBREL is sent before the tables know of it."""
    patch.setattr(WriteBehind, "ticket", _ticket_of_now)


def _ticket_of_now(self: WriteBehind) -> int:
    self._urgent = True
    return self.saved


def _cursors(change: Callable[[Cursor], Cursor]) -> Callable[[pytest.MonkeyPatch], None]:
    true = marks.cursor_of

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(marks, "cursor_of", lambda *of: change(true(*of)))

    return mutate


MUTANTS = {
    "seen before stored": _seen_before_stored,
    "nothing waits": _nothing_waits,
    "nothing in flight is stored": _cursors(lambda cursor: replace(cursor, inflight=b"")),
    "no feed is stored": _cursors(lambda cursor: replace(cursor, feeds=b"")),
    "no received id is stored": _cursors(lambda cursor: replace(cursor, received=b"", unsure=b"")),
    "no packet id is uncertain": _cursors(lambda cursor: replace(cursor, unsure=b"")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        _walks(300)


def _walks(count: int) -> None:
    for seed in range(count):
        walk(seed)
