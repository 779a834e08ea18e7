from everlog.ownership import Suspicion


def looked(suspicion: Suspicion, beats: dict[int, list[int]], step_s: float = 1.0, begin_s: float = 100.0) -> None:
    """Look once a step at counters that change as the lists say."""
    for turn in range(len(next(iter(beats.values())))):
        now = begin_s + turn * step_s
        suspicion.observe(now, now, {incarnation: counts[turn] for incarnation, counts in beats.items()})


def test_a_counter_that_stood_still_for_five_seconds_is_dead() -> None:
    suspicion = Suspicion()
    looked(suspicion, {1: [7, 7, 7, 7, 7], 2: [1, 2, 3, 4, 5]})
    assert suspicion.dead() == {}
    suspicion.observe(105, 105, {1: 7, 2: 6})
    assert suspicion.dead() == {1: 7}


def test_any_other_counter_is_a_sign_of_life() -> None:
    suspicion = Suspicion()
    looked(suspicion, {1: [7, 7, 7, 7, 6, 6, 6]})
    assert suspicion.dead() == {}


def test_time_in_which_it_could_not_look_does_not_count() -> None:
    for interrupt in (True, False):
        suspicion = Suspicion()
        looked(suspicion, {1: [7, 7, 7, 7]})
        if interrupt:
            suspicion.interrupt()
            suspicion.observe(104, 104, {1: 7})
            assert suspicion.standing(1) == []
        looked(suspicion, {1: [7, 7, 7, 7, 7]}, begin_s=106.5)
        assert suspicion.dead() == {}
        suspicion.observe(111.5, 111.5, {1: 7})
        assert suspicion.dead() == {1: 7}


def test_a_slow_answer_counts_from_when_it_came_and_to_when_the_last_was_asked_for() -> None:
    suspicion = Suspicion()
    for asked in (100.0, 101.6, 103.2, 104.8):
        suspicion.observe(asked, asked + 1.5, {1: 7})
    assert suspicion.dead() == {}  # 104.8 - 101.5
    suspicion.observe(106.4, 108, {1: 7})
    assert suspicion.dead() == {}
    suspicion.observe(108.1, 110.2, {1: 7})  # slower than a look may be
    assert suspicion.standing(0.1) == []


def test_a_refused_connection_makes_it_sooner() -> None:
    suspicion = Suspicion()
    looked(suspicion, {1: [7, 7], 2: [7, 7], 3: [7, 7]})
    suspicion.refuse(1, 101)
    suspicion.refuse(2, 101)
    suspicion.refuse(3, 101)
    suspicion.accept(2)
    suspicion.observe(102, 102, {1: 7, 2: 7, 3: 8})
    assert suspicion.dead() == {1: 7}
    suspicion.observe(102.5, 102.5, {2: 7, 3: 8})
    assert suspicion.dead() == {}
