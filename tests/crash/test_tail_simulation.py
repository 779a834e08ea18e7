"""The commit target of an owned shard in a simulated database, and the mistakes that the simulation must find."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.crash.tail_world import Owner, SimulatedTail, TailWorld

from everlog.cluster.origins import Origins
from everlog.cluster.ports import Takeover
from everlog.cluster.rows import TailRow
from everlog.cluster.shard_target import ShardTarget

SEEDS, STEPS = 60, 40


def run_all(world: type[TailWorld]) -> None:
    """Some histories."""
    for seed in range(SEEDS):
        world(seed).run(STEPS)


def test_what_is_acknowledged_is_in_the_log_once() -> None:
    run_all(TailWorld)


@pytest.mark.soak
def test_many_histories() -> None:
    for seed in range(SEEDS, 800):
        TailWorld(seed, faults=(seed % 5) / 10).run(80)


class LookOnly(SimulatedTail):
    """Doubt is settled by a look (M1)."""

    def settle(self, table: int, rows: Sequence[TailRow]) -> None:
        if not self.is_there(table, rows):
            super().settle(table, rows)


class TargetThat(ShardTarget):
    """Has numbers of another kind."""

    numbers: type[Origins]

    def take_over(self) -> Takeover:
        found = super().take_over()
        self.origins = self.numbers(self._own, found.origins, found.closed, found.end)
        return found


class ForgetsAtSeal(Origins):
    """No row has the whole map, so what was sealed is forgotten (M5)."""

    def place(self, end: int, *, whole: bool) -> dict[int, int]:
        return super().place(end, whole=False)


class NumbersOfBatches(Origins):
    """A batch that is split is recorded with its first half (M5)."""

    def place(self, end: int, *, whole: bool) -> dict[int, int]:
        super().place(end, whole=whole)
        self._placed.update({origin: last for origin, last in self._appended.items() if origin < 1_000})
        return dict(self._placed)


class AcceptsGaps(Origins):
    """What comes behind a gap is taken (M5)."""

    def append(self, origin: int, first: int, count: int, append: Any) -> int:
        if first > self._appended.get(origin, 0) + 1:
            self._appended[origin] = first - 1
        return super().append(origin, first, count, append)


def broken(**changes: Any) -> type[TailWorld]:
    """A world whose owners make a mistake."""
    owner = type("Mistaken", (Owner,), changes)
    return type("BrokenWorld", (TailWorld,), {"owner_kind": owner})


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(broken(tail_kind=LookOnly), id="M1 look only"),
        *(
            pytest.param(broken(target_kind=type("Target", (TargetThat,), {"numbers": kind})), id=f"M5 {kind.__name__}")
            for kind in (ForgetsAtSeal, NumbersOfBatches, AcceptsGaps)
        ),
    ],
)
def test_the_mistake_is_found(world: type[TailWorld]) -> None:
    with pytest.raises(AssertionError):
        run_all(world)
