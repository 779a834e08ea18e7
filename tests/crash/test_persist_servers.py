"""Several persist servers on shared storage through faults of real processes; see `tests.persist_world`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.jumping_clock import JumpingClock
from tests.nats_servers import NatsServer, needs_nats
from tests.persist_process import PersistProcess
from tests.persist_world import World
from tests.postgres_server import new_schema, shared_server

from everlog.bus import Welcome, make_bus, shard_of_name
from everlog.client import Client, NotServed, TimedOut

pytestmark = [needs_nats, pytest.mark.slow]

SHARDS = 4
NAMES = [f"s{number}" for number in range(1000)]
STREAMS = [next(name for name in NAMES if shard_of_name(name, SHARDS) == shard) for shard in range(SHARDS)]
PATIENCE = "1s"


class Servers:
    """Servers by name, on one bus and one storage."""

    def __init__(self, directory: Path, storage: str, patience: str) -> None:
        self.directory = directory
        self.storage = storage
        self.patience = patience
        self.nats = NatsServer(directory)
        self.processes: dict[str, PersistProcess] = {}

    def make(self, name: str, **options: dict[str, str]) -> PersistProcess:
        """Return a server that is not started."""
        arguments = ("--storage", self.storage, "--shards", str(SHARDS), "--name", name)
        arguments += ("--patience", self.patience, "--log-level", "info")
        made = PersistProcess(self.directory, self.nats.url, *arguments, name=name, **options)
        self.processes[name] = made
        return made

    async def start(self, *names: str) -> None:
        """Start servers, all at once."""
        for name in names:
            self.processes[name].begin()
        for name in names:
            await asyncio.to_thread(self.processes[name].await_start)

    def of(self, found: Welcome) -> PersistProcess:
        return self.processes[found.server]


@contextmanager
def servers(directory: Path, storage: str = "", names: str = "ab", patience: str = PATIENCE) -> Iterator[Servers]:
    made = Servers(directory, storage or str(directory / "shared"), patience)
    with ExitStack() as parts:
        parts.enter_context(made.nats)
        for name in names:
            made.make(name)
        try:
            yield made
        finally:
            for process in made.processes.values():
                process.__exit__()


@asynccontextmanager
async def working(made: Servers, memory: float = 0.2) -> AsyncIterator[World]:
    """Clients at work on servers that have shared the shards evenly."""
    await made.start(*made.processes)
    async with World(made.nats.url, STREAMS, SHARDS, memory) as world:
        await world.servers(shared_by(len(made.processes)))
        await world.until_acked(10)
        yield world


def shared_by(count: int):  # type: ignore[no-untyped-def]
    """Return what tells whether so many servers have all shards among them, each about as many, one coordinating."""

    def is_so(found: list[Welcome]) -> bool:
        owned = sorted(shard for one in found for shard in one.owned)
        fair = all(len(one.owned) >= SHARDS // count for one in found)
        return owned == list(range(SHARDS)) and len(found) == count and fair and sum(map(_coordinates, found)) == 1

    return is_so


def _coordinates(found: Welcome) -> bool:
    return found.is_coordinator


async def roles(world: World) -> tuple[Welcome, Welcome]:
    """Return the server that coordinates, and another one."""
    found = await world.servers(shared_by(2))
    first = next(one for one in found if one.is_coordinator)
    return first, next(one for one in found if one is not first)


@pytest.mark.parametrize("storage", ["directory", pytest.param("postgres", marks=pytest.mark.soak)])
async def test_the_shards_of_a_killed_server_are_served_by_another_and_nothing_is_lost(
    tmp_path: Path, storage: str
) -> None:
    place = "" if storage == "directory" else f"{shared_server().url}?schema={new_schema()}"
    with servers(tmp_path, place) as made:
        async with working(made) as world:
            coordinator, _ = await roles(world)
            made.of(coordinator).kill()
            await world.until_acked(5)
            await world.check()


async def test_without_the_coordinator_only_its_own_streams_pause(tmp_path: Path) -> None:
    with servers(tmp_path, patience="60s") as made:
        async with working(made) as world:
            coordinator, other = await roles(world)
            made.of(coordinator).sleep()
            async with Client(make_bus(made.nats.url), timeout_s=60) as client:
                for name in STREAMS:
                    if shard_of_name(name, SHARDS) in other.owned:
                        await client.stream(name).append(b"meanwhile")
            found = await world.servers(lambda found: len(found) == 1)
            assert (found[0].server, found[0].owned) == (other.server, other.owned)
            made.of(coordinator).wake()
            await world.until_acked(5)
            await world.check()


async def test_a_server_that_slept_while_it_was_replaced_does_no_harm(tmp_path: Path) -> None:
    with servers(tmp_path) as made:
        async with working(made) as world:
            coordinator, _ = await roles(world)
            made.of(coordinator).sleep()
            await world.servers(lambda found: any(one.owned == list(range(SHARDS)) for one in found))
            await world.until_acked(5)
            made.of(coordinator).wake()  # with requests in its socket, a map to store and a journal to write
            await world.servers(shared_by(2))
            await world.until_acked(5)
            await world.check()


async def test_draining_and_a_restarted_bus_fail_no_request(tmp_path: Path) -> None:
    with servers(tmp_path) as made:
        async with working(made, memory=0) as world:
            coordinator, _ = await roles(world)
            log = made.of(coordinator).log
            before = log.read_text().count("is handed over to")
            await asyncio.to_thread(made.of(coordinator).stop)
            assert log.read_text().count("is handed over to") == before + len(coordinator.owned)
            await world.until_acked(5)
            made.nats.stop()
            await asyncio.to_thread(made.nats.start)
            await world.until_acked(5)
            assert world.failed == 0
            await world.check()
            assert all(follower.resets == 0 for follower in world.followers)


async def test_without_its_storage_nothing_is_acknowledged_and_with_it_all_goes_on(tmp_path: Path) -> None:
    with servers(tmp_path) as made:
        async with working(made) as world:
            (tmp_path / "shared").rename(tmp_path / "away")
            async with Client(make_bus(made.nats.url), timeout_s=1) as client:
                await until_refused(client)
            assert not (tmp_path / "shared").exists(), "it is not made anew where nobody else sees it"
            (tmp_path / "away").rename(tmp_path / "shared")
            await world.until_acked(5)
            await world.servers(shared_by(2))
            await world.check()


async def test_a_clock_that_jumps_by_a_year_expires_nothing_and_replaces_nobody(tmp_path: Path) -> None:
    clock = JumpingClock(tmp_path)
    with servers(tmp_path, names="") as made:
        made.make("a", variables=clock.variables)
        await made.start("a")
        async with Client(make_bus(made.nats.url), timeout_s=60) as client:
            await client.kv("k").put("x", b"stays", ttl=3600)
            found = (await client.servers())[0].epochs
            clock.jump(365 * 86_400)
            log = made.processes["a"].log
            async with asyncio.timeout(60):
                while "clock_jumped" not in log.read_text():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.05)
            for _ in range(3):  # ticks of the shards have passed
                await client.kv("k").put("y", b"new")
                await asyncio.sleep(0.5)
            entry = await client.kv("k").get("x")
            assert entry is not None
            assert (await client.servers())[0].epochs == found


async def until_refused(client: Client) -> None:
    try:
        while True:
            await client.stream(STREAMS[0]).append(b"written or not")
    except (TimedOut, NotServed):
        return


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("storage", ["directory", "postgres"])
async def test_servers_through_many_faults(tmp_path: Path, storage: str, seed: int) -> None:
    chance = Random(seed)
    place = "" if storage == "directory" else f"{shared_server().url}?schema={new_schema()}"
    with servers(tmp_path, place, "abc") as made:
        async with working(made) as world:
            for _ in range(20):
                await _some_fault(made, world, chance)
                await world.until_acked(5)
            await world.check()


async def _some_fault(made: Servers, world: World, chance: Random) -> None:
    victim = made.processes[chance.choice(sorted(made.processes))]
    shared = made.directory / "shared"
    kinds = ["kill", "kill two", "sleep", "nap", "drain", "bus"] + ["storage"] * shared.exists()
    kind = chance.choice(kinds)
    if kind.startswith("kill"):
        others = [one for one in made.processes.values() if one is not victim]
        victims = [victim, chance.choice(others)][: 1 + kind.endswith("two")]
        for one in victims:
            one.kill()
        if chance.random() < 0.5:
            await world.until_acked(2)
        await made.start(*[one.name for one in victims])
    elif kind in ("sleep", "nap"):
        victim.sleep()
        await (world.until_acked(2) if kind == "sleep" else asyncio.sleep(chance.random()))
        victim.wake()
    elif kind == "storage":
        shared.rename(made.directory / "away")
        await asyncio.sleep(2 * chance.random())
        (made.directory / "away").rename(shared)
    elif kind == "drain":
        await asyncio.to_thread(victim.stop)
        await made.start(victim.name)
    else:
        made.nats.stop()
        await asyncio.to_thread(made.nats.start)
