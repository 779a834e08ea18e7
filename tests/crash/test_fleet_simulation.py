"""A hundred brokers and a thousand shards: joins, deaths, cuts, a slow database; nobody alive is overruled."""

import pytest
from tests.crash.fleet_world import Fleet, Violation, owners

BROKERS, SHARDS = 100, 1000


def started(seed: int, brokers: int = BROKERS, shards: int = SHARDS, **options: float) -> Fleet:
    """A fleet that all have joined, and that is even."""
    fleet = Fleet(seed, brokers, shards, **options)
    for one in fleet.fleet:
        one.start()
    fleet.settle(60)
    return fleet


def live_through(fleet: Fleet, rounds: int) -> None:
    """Have faults of all kinds at once, again and again, then quiet."""
    random = fleet.random
    for _ in range(rounds):
        for one in random.sample(fleet.fleet, len(fleet.fleet) // 10):
            random.choice([one.kill, one.start])()
        for one in random.sample(fleet.fleet, len(fleet.fleet) // 20):
            one.is_cut = not one.is_cut
        for one in random.sample(fleet.fleet, len(fleet.fleet) // 10):
            one.loses = random.choice([0.0, 0.3])
        fleet.slow_s = random.choice([0.0, 0.05, 0.5, 3.0])
        fleet.is_down = random.random() < 0.15
        fleet.run(random.uniform(2, 12))
    fleet.slow_s, fleet.is_down = 0.0, False
    for one in fleet.fleet:
        one.is_cut, one.loses = False, 0.0
        if not one.is_up:
            one.start()
    fleet.settle(120, fleet.brokers)
    assert fleet.loads() == [fleet.shards // fleet.brokers] * fleet.brokers


def test_a_hundred_brokers_share_a_thousand_shards_and_a_tenth_of_them_dies() -> None:
    fleet = started(1)
    assert fleet.loads() == [10] * BROKERS
    before = owners(fleet)
    alive = set(fleet.board.members)
    for one in fleet.fleet[:10]:
        one.kill()
    killed_s = fleet.now_s
    while len(fleet.board.members) > BROKERS - 10:
        fleet.run(0.5)
        assert fleet.now_s < killed_s + 10
    fleet.settle(5)
    assert fleet.deaths == 10
    after = owners(fleet)
    left = alive & set(fleet.board.members)
    moved = [thing for thing in before if before[thing] in left and after[thing] != before[thing]]
    assert moved == []  # only what the dead had moves


def test_a_database_that_is_away_makes_nobody_dead() -> None:
    fleet = started(2)
    before = owners(fleet)
    fleet.is_down = True
    fleet.run(60)
    fleet.is_down = False
    fleet.run(20)
    assert fleet.deaths == 0
    assert owners(fleet) == before


def test_a_database_that_is_slow_makes_nobody_dead() -> None:
    fleet = started(3)
    before = owners(fleet)
    fleet.slow_s = 1.5  # a beat and two looks take less than the patience of the others
    fleet.run(60)
    assert fleet.deaths == 0
    assert owners(fleet) == before


def test_those_who_do_not_reach_the_database_lose_their_shards_and_come_back() -> None:
    fleet = started(4)
    for one in fleet.fleet[:20]:
        one.is_cut = True
    fleet.run(30)
    assert fleet.deaths == 20
    assert fleet.unowned() == 0
    for one in fleet.fleet[:20]:
        one.is_cut = False
    fleet.settle(60)
    assert fleet.loads() == [10] * BROKERS


def test_faults_of_all_kinds_at_once() -> None:
    fleet = started(5, 40, 400)
    live_through(fleet, 6)
    assert fleet.deaths


def test_less_patience_than_promised_is_noticed() -> None:
    fleet = started(6, 20, 100, patience_s=2.0)
    fleet.fleet[3].is_cut = True
    with pytest.raises(Violation, match="declared dead"):
        fleet.run(20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 16))
def test_faults_of_all_kinds_for_long(seed: int) -> None:
    fleet = started(seed)
    live_through(fleet, 40)
    assert fleet.deaths
