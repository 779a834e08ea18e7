"""Histories of servers that own shards, with pauses, kills, lost replies and clocks that jump; and proof that a step
that is left out would be noticed.
"""

import pytest
from tests.crash.cluster_mutants import MUTANTS
from tests.crash.cluster_world import simulate
from tests.simulated_world import Violation

from everlog.base import StorageError

CHUNK = 10
SEEDS = 40
MUTANT_SEEDS = 40
FIRST_SEED = {"fences are trimmed": 10, "the lease is looked at": 10, "blind time counts": 8}  # others: within ten


@pytest.mark.parametrize(
    "first",
    [0, CHUNK, *(pytest.param(first, marks=pytest.mark.soak) for first in range(2 * CHUNK, SEEDS, CHUNK))],
)
def test_what_was_acknowledged_stays_and_the_living_are_left_alone(first: int) -> None:
    deaths = fenced = 0
    for seed in range(first, first + CHUNK):
        try:
            seen = simulate(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        deaths += seen.deaths
        fenced += seen.fenced
    assert deaths
    assert fenced


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = simulate(7), simulate(7)
    assert one.acked == other.acked
    assert one.beats == other.beats != {}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_thought_is_noticed(name: str) -> None:
    first = FIRST_SEED.get(name, 0)
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            simulate(seed, MUTANTS[name])
        except (Violation, StorageError):
            return
    pytest.fail(f"{name}: {MUTANT_SEEDS} histories did not notice")
