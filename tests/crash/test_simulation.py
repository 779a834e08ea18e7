"""Thousands of short histories with crashes, and proof that they would notice a step that is missing or late."""

import pytest
from tests.crash.mutants import MUTANTS, failing
from tests.crash.simulation import Violation, simulate

from everlog import _kernels

CHUNK = 100
SEEDS = 2000 if _kernels.describe() == "compiled" else 1000
MUTANT_SEEDS = 1000  # most are caught within ten


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_was_committed_survives_every_history(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")


@pytest.mark.parametrize("first", range(0, SEEDS // 2, CHUNK))
def test_what_was_committed_survives_a_disk_that_fails_often(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed, mutate=failing(lambda world: None))
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")


@pytest.mark.parametrize("seed", [11, 12, 14, 16])
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    """Also where blocks of memory lie elsewhere."""
    one, *others = [simulate(seed) for _ in range(6)]
    for other in others:
        assert one.disk.files() == other.disk.files()
        assert one.reported == other.reported != {}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_step_that_is_missing_or_late_is_noticed(name: str) -> None:
    mutate, durability = MUTANTS[name]
    for seed in range(MUTANT_SEEDS):
        try:
            simulate(seed, durability, mutate=mutate)
        except Violation:
            return
    pytest.fail(f"{name}: {MUTANT_SEEDS} histories did not notice")
