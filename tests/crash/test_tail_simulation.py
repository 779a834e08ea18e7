"""The commit target of an owned shard in a simulated database, and the mistakes that the simulation must find."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.crash.tail_world import Broker, ManyShards, Owner, SimulatedTail, TailWorld

from everlog.cluster.origins import Origins
from everlog.cluster.ports import Outcome, ShardRows, Takeover
from everlog.cluster.shard_target import ShardTarget

SEEDS, STEPS = 60, 40


def run_all(world: type[TailWorld | ManyShards]) -> None:
    """Some histories."""
    for seed in range(SEEDS):
        world(seed).run(STEPS)


def test_what_is_acknowledged_is_in_the_log_once() -> None:
    run_all(TailWorld)


def test_shards_that_commit_together_keep_what_is_acknowledged_each() -> None:
    run_all(ManyShards)


@pytest.mark.soak
def test_many_histories() -> None:
    for seed in range(SEEDS, 800):
        TailWorld(seed, faults=(seed % 5) / 10).run(80)
        ManyShards(seed, faults=(seed % 5) / 10).run(80)


class LookOnly(SimulatedTail):
    """Doubt is settled by a look (M1)."""

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        left = [part for part in parts if not self.is_there(part)]
        found = dict(zip([part.shard for part in left], super().settle(left) if left else [], strict=True))
        return [found.get(part.shard, Outcome.COMMITTED) for part in parts]


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


class NoFence(SimulatedTail):
    """A shard that is another's goes with the others of its transaction."""

    def _write(self, part: ShardRows) -> Outcome:
        state = self._database.primary[part.shard]
        state.rows[part.table].update({row.base: row for row in part.rows})
        return Outcome.COMMITTED


class Forgets(SimulatedTail):
    """Says of a shard that is being taken over that it was committed."""

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        return [Outcome.COMMITTED if one is Outcome.BUSY else one for one in super().insert(parts)]


@pytest.mark.parametrize("tail", [LookOnly, NoFence, Forgets])
def test_a_mistake_in_common_transactions_is_found(tail: type[SimulatedTail]) -> None:
    broker = type("Mistaken", (Broker,), {"tail_kind": tail})
    world = type("Broken", (ManyShards,), {"broker_kind": broker})
    with pytest.raises(AssertionError):
        run_all(world)
