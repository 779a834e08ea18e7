"""Brokers of a cluster in one process, on ownership in memory: who owns which shard, who is replaced, who leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from everlog.base import Fenced, Unavailable
from everlog.cluster import BrokerKeeper
from everlog.ownership import NOBODY, Board, MemoryOwnership, Overruled, Replaced

SHARDS = 6
WAIT_S = 60.0


class Fences:
    """The epoch that each shard was taken over at last."""

    def __init__(self) -> None:
        self.epochs = [0] * SHARDS
        self.owners = [0] * SHARDS


class SharedLog:
    """A broker's log, whose writes the fences judge."""

    def __init__(self, fences: Fences) -> None:
        self.fences = fences
        self.stuck = 0.0
        self.fails: set[int] = set()

    def own(self, epochs: dict[int, int], incarnation: int) -> None:
        for shard, epoch in epochs.items():
            if shard in self.fails:
                raise Unavailable("the copy can't be read")
            if epoch <= self.fences.epochs[shard]:
                raise Fenced("a later owner has it")
            self.fences.epochs[shard], self.fences.owners[shard] = epoch, incarnation

    def release(self, numbers: list[int]) -> None:
        for number in numbers:
            self.fences.owners[number] = 0

    def stuck_s(self, now: float) -> float:
        return self.stuck


class Moves:
    """What a broker appends to."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences
        self.appends: set[int] = set()
        self.is_committed = asyncio.Event()
        self.is_committed.set()
        self.given: list[int] = []

    def owned(self, shard: int) -> None:
        self.appends.add(shard)

    async def let_go(self, shard: int) -> None:
        self.appends.discard(shard)
        await self.is_committed.wait()
        assert self._fences.owners[shard], "it was released before it was committed"
        self.given.append(shard)

    def kept(self, shard: int) -> None:
        self.appends.add(shard)


class Ownership(MemoryOwnership):
    """Storage that a test can take away."""

    is_down = False

    def beat(self, incarnation: int) -> None:
        if self.is_down:
            raise Unavailable("the database is down")
        super().beat(incarnation)

    def read(self) -> Board:
        if self.is_down:
            raise Unavailable("the database is down")
        return super().read()


class World:
    """Brokers, and what they share."""

    def __init__(self, parts: AsyncExitStack) -> None:
        self.ownership = Ownership()
        self.fences = Fences()
        self.refused: set[str] = set()
        self.keepers: list[BrokerKeeper] = []
        self._parts = parts

    async def add(self, name: str, patience_s: float = 60.0) -> tuple[BrokerKeeper, SharedLog, Moves]:
        log, moves = SharedLog(self.fences), Moves(self.fences)
        keeper = BrokerKeeper(
            [self.ownership],
            log,
            name,
            f"{name}:1",
            SHARDS,
            moves,
            patience_s=patience_s,
            refuses=lambda address: address in self.refused,
        )
        await keeper.join()
        await keeper.start()
        keeper.on_moved = self.wake
        self.keepers.append(keeper)
        self._parts.push_async_callback(keeper.stop)
        return keeper, log, moves

    def wake(self) -> None:
        for keeper in self.keepers:
            keeper.wake()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - of threads too
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as parts:
        yield World(parts)


def test_a_newcomer_gets_its_part_one_shard_after_the_other_each_committed_first() -> None:
    async def run() -> None:
        async with world() as here:
            a, _, of_a = await here.add("a")
            await here.until(lambda: len(a.owned) == SHARDS)
            of_a.is_committed.clear()
            b, _, of_b = await here.add("b")
            await here.until(lambda: len(of_a.appends) == SHARDS - 1)
            assert of_a.given == []
            assert b.owned == {}
            of_a.is_committed.set()
            await here.until(lambda: len(b.owned) == 3)
            assert set(a.owned) == of_a.appends
            assert set(b.owned) == of_b.appends
            assert of_a.appends | of_b.appends == set(range(SHARDS))
            for shard in b.owned:
                assert b.owner_of(shard) == b.incarnation  # though its board may not say so yet
                assert a.owner_of(shard) in (NOBODY, b.incarnation)  # what it has let go of, whatever its board says
            await here.until(lambda: all(a.owner_of(shard) == b.incarnation for shard in b.owned))

    asyncio.run(run())


def test_what_can_t_be_committed_is_not_let_go_of() -> None:
    async def run() -> None:
        async with world() as here:
            a, _, of_a = await here.add("a")
            await here.until(lambda: len(a.owned) == SHARDS)

            async def fail(shard: int) -> None:
                of_a.appends.discard(shard)
                raise Unavailable("it is not committed")

            of_a.let_go = fail  # type: ignore[method-assign]
            await here.add("b")
            await here.until(lambda: "not committed" in a.trouble)
            assert of_a.appends == set(range(SHARDS))
            assert len(a.owned) == SHARDS

    asyncio.run(run())


def test_a_drained_broker_ends_when_others_have_all_it_owned() -> None:
    async def run() -> None:
        async with world() as here:
            a, _, of_a = await here.add("a")
            await here.until(lambda: len(a.owned) == SHARDS)
            b, _, _ = await here.add("b")
            here.ownership.drain(a.incarnation)  # as an operator does
            here.wake()
            await asyncio.wait_for(a.wait(), WAIT_S)
            assert a.is_draining
            assert of_a.appends == set()
            assert len(b.owned) + len(here.ownership.read().owned_by(a.incarnation)) <= SHARDS
            await here.until(lambda: len(b.owned) == SHARDS)

    asyncio.run(run())


def test_a_broker_whose_commits_hang_is_replaced_and_one_on_a_database_that_is_down_is_not() -> None:
    async def run() -> None:
        async with world() as here:
            a, log, _ = await here.add("a", 2.0)
            b, _, _ = await here.add("b", 2.0)
            await here.until(lambda: len(a.owned) == len(b.owned) == 3)
            here.ownership.is_down = True
            await here.until(lambda: a.trouble and b.trouble)
            await asyncio.sleep(3.0)  # far longer than the patience
            here.ownership.is_down = False
            here.wake()
            await here.until(lambda: not a.trouble and not b.trouble)
            assert len(a.owned) == len(b.owned) == 3
            log.stuck = 100.0
            with pytest.raises(Overruled):
                await asyncio.wait_for(a.wait(), WAIT_S)
            await here.until(lambda: len(b.owned) == SHARDS)

    asyncio.run(run())


def test_a_broker_whose_kernel_refuses_is_dead_at_once_if_its_link_was_lost() -> None:
    async def run() -> None:
        async with world() as here:
            a, log, _ = await here.add("a")
            b, _, _ = await here.add("b")
            await here.until(lambda: len(a.owned) == len(b.owned) == 3)
            log.stuck = 100.0  # it beats no more
            here.refused.add("a:1")
            b.suspect(a.incarnation)
            await here.until(lambda: len(b.owned) == SHARDS)  # the patience is a minute

    asyncio.run(run())


def test_who_is_fenced_on_one_shard_is_overruled_whole() -> None:
    async def run() -> None:
        async with world() as here:
            here.fences.epochs[3] = 100
            a, _, _ = await here.add("a")
            with pytest.raises(Overruled):
                await asyncio.wait_for(a.wait(), WAIT_S)

    asyncio.run(run())


def test_a_shard_that_can_t_be_opened_is_tried_again() -> None:
    async def run() -> None:
        async with world() as here:
            a, log, _ = await here.add("a")
            await here.until(lambda: len(a.owned) == SHARDS)
            b, of_b, _ = await here.add("b")
            of_b.fails = set(range(SHARDS))
            await here.until(lambda: "copy" in b.trouble)
            of_b.fails = set()
            await here.until(lambda: len(b.owned) == 3)
            assert not log.fails

    asyncio.run(run())


def test_a_second_broker_of_the_same_name_replaces_the_first() -> None:
    async def run() -> None:
        async with world() as here:
            a, _, _ = await here.add("a")
            await here.add("a")
            with pytest.raises(Replaced):
                await asyncio.wait_for(a.wait(), WAIT_S)

    asyncio.run(run())
