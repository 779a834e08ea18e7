"""The clock by which things expire: what it believes, when it doubts, and what settles that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.broker import Belief, ExpiryClock

S = 1_000_000
START = 1_700_000_000 * S


class Clocks:
    """A wall clock and the time since boot, which the test moves."""

    def __init__(self, belief: Belief | None = None, wall_us: int = START) -> None:
        self.wall_us, self.boot_us = wall_us, 1000 * S
        self.clock = ExpiryClock(lambda: self.wall_us, lambda: self.boot_us, belief)

    def passes(self, seconds: float, wall_s: float | None = None) -> int:
        """Time passes, for the wall clock perhaps another; what is due then."""
        self.boot_us += int(seconds * S)
        self.wall_us += int((seconds if wall_s is None else wall_s) * S)
        return self.clock.due_us()


def test_things_are_due_by_the_wall_clock():
    clocks = Clocks()
    for seconds in (0, 0.001, 1, 59, 3600, 10**7):  # a machine may be suspended for months
        assert clocks.passes(seconds) == clocks.wall_us
        assert clocks.clock.is_believed


@pytest.mark.parametrize("jump_s", [61, 3600, 365 * 86_400, -61, -86_400])
def test_nothing_is_due_after_a_jump_until_the_clock_is_back(jump_s):
    clocks = Clocks()
    assert clocks.passes(1, 1 + jump_s) == 0
    assert not clocks.clock.is_believed
    assert abs(clocks.clock.apart_us - jump_s * S) < S
    assert clocks.clock.belief.was_ahead is (jump_s > 0)
    for seconds in (1, 60, 100_000):
        assert clocks.passes(seconds) == 0
    assert clocks.passes(1, 1 - jump_s) == clocks.wall_us
    assert clocks.clock.is_believed


def test_a_jump_is_seen_before_anything_is_due_by_it():
    clocks = Clocks()
    clocks.clock.look()
    clocks.wall_us += 86_400 * S
    assert clocks.clock.due_us() == 0  # though nobody has looked since


def test_somebody_settles_it():
    clocks = Clocks()
    clocks.passes(1, 86_400)
    clocks.clock.settle()
    assert clocks.passes(1) == clocks.wall_us
    assert clocks.passes(1, -86_400) == 0  # back is another jump now


def test_small_steps_are_followed():
    clocks = Clocks()
    for _ in range(100):
        clocks.clock.look()
        assert clocks.passes(1, 31) == clocks.wall_us
    for _ in range(100):
        clocks.clock.look()
        assert clocks.passes(1, -29) == clocks.wall_us


def test_a_doubt_outlives_the_process_and_a_jump_between_two_is_seen():
    clocks = Clocks()
    clocks.passes(1, 86_400)
    belief = clocks.clock.belief
    clock = ExpiryClock(lambda: clocks.wall_us, lambda: clocks.boot_us, belief)
    assert clock.due_us() == 0
    assert clock.belief == belief
    clock = ExpiryClock(lambda: clocks.wall_us, lambda: clocks.boot_us, Belief(belief.offset_us))
    assert clock.due_us() == 0
    clock = ExpiryClock(lambda: clocks.wall_us - 86_399 * S, lambda: clocks.boot_us, belief)
    assert clock.is_believed


def test_after_a_reboot_a_clock_that_was_ahead_is_doubted_until_it_shows_less():
    doubt = Belief(None, START, True)
    assert Clocks(doubt, START + 7 * 86_400 * S).clock.due_us() == 0
    assert Clocks(doubt, START - 30 * S).clock.due_us() == 0
    assert Clocks(doubt, START - 61 * S).clock.due_us() == START - 61 * S
    assert Clocks(Belief(), START + 7 * 86_400 * S).clock.is_believed  # it was off for a week


@given(st.lists(st.tuples(st.floats(0, 10_000), st.integers(-400, 400)), max_size=30))
def test_what_is_due_never_runs_ahead_of_the_time_that_passed_by_more_than_the_steps_allow(steps):
    """Whatever the wall clock does, it gains at most a minute by each look, and one more until the next."""
    clocks = Clocks()
    for looks, (seconds, step_s) in enumerate(steps, 1):
        due = clocks.passes(seconds, seconds + step_s)
        if due:
            assert due <= START + (clocks.boot_us - 1000 * S) + (looks + 1) * 60 * S + len(steps)
