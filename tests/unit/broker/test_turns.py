"""Work in turns: what a turn has time for is done at once, the rest in turns to come, everybody a slice."""

import pytest

from everlog.broker.turns import SLICE_S, TURN_S, Turns


class Loop:
    """A loop whose turns the test takes, and a clock that only work moves."""

    def __init__(self):
        self.now = 100.0
        self.calls = []
        self.done = []
        self.failed = []
        self.turns = Turns(self.calls.append, lambda: self.now)

    def work(self, name, steps, step_s):
        for step in range(steps):
            self.now += step_s
            self.done.append((name, step))
            yield
        return name

    def run(self, name, steps, step_s=SLICE_S, begin=None):
        return (begin or self.turns.run)(self.work(name, steps, step_s), self.done.append, self.failed.append)

    def turn(self):
        """One turn of the loop; how long it took."""
        began, calls = self.now, self.calls[:]
        self.calls.clear()
        for call in calls:
            call()
        return self.now - began

    def rest(self):
        """All turns to come; how long the longest took."""
        longest = 0.0
        while self.calls:
            longest = max(longest, self.turn())
        return longest


@pytest.fixture
def loop():
    return Loop()


def test_small_work_is_done_at_once(loop):
    assert loop.run("a", 2).is_over
    assert loop.done == [("a", 0), ("a", 1), "a"]
    loop.rest()
    assert loop.done == [("a", 0), ("a", 1), "a"]


def test_large_work_holds_no_turn_longer_than_it_may(loop):
    began = loop.now
    assert not loop.run("a", 1000, TURN_S / 7).is_over
    assert loop.now - began <= TURN_S * 8 / 7
    assert loop.rest() <= TURN_S * 8 / 7
    assert loop.done[-1] == "a"


def test_a_thousand_at_once_hold_no_turn_longer_than_one_may(loop):
    began = loop.now
    for name in range(1000):
        loop.run(name, 1, TURN_S / 7)
    assert loop.now - began <= TURN_S * 8 / 7
    assert loop.rest() <= TURN_S * 8 / 7
    assert [one for one in loop.done if isinstance(one, int)] == list(range(1000))


def test_those_in_line_take_turns(loop):
    loop.run("long", 1000)
    loop.run("short", 3)
    loop.turn()
    loop.turn()
    assert "short" in loop.done
    assert "long" not in loop.done


def test_work_for_later_does_nothing_now(loop):
    loop.run("a", 1, begin=loop.turns.later)
    assert loop.done == []
    loop.turn()
    assert loop.done == [("a", 0), "a"]


def test_a_step_that_takes_too_long_does_not_stop_the_others(loop):
    for name in "ab":
        loop.run(name, 3, 10 * TURN_S)
    loop.rest()
    assert {"a", "b"} <= set(loop.done)


def test_work_that_is_dropped_ends_and_nobody_is_told(loop):
    ended = []

    def steps():
        try:
            while True:
                loop.now += SLICE_S
                yield
        finally:
            ended.append(True)

    work = loop.turns.run(steps(), loop.done.append, loop.failed.append)
    work.drop()
    loop.rest()
    assert (ended, loop.done, loop.failed) == ([True], [], [])


def test_work_that_drops_itself_ends(loop):
    works = []

    def steps():
        yield
        works[0].drop()
        yield
        loop.done.append("too late")

    works.append(loop.turns.later(steps(), loop.done.append, loop.failed.append))
    loop.rest()
    assert loop.done == []


def test_who_asked_is_told_of_a_failure_and_the_others_go_on(loop):
    def steps():
        yield
        raise ValueError("no")

    loop.turns.later(steps(), loop.done.append, loop.failed.append)
    loop.run("b", 2, begin=loop.turns.later)
    loop.rest()
    assert [str(error) for error in loop.failed] == ["no"]
    assert loop.done[-1] == "b"
