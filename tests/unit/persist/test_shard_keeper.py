"""Servers that share storage, in one process: who serves what, who says so, and who falls silent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.buckets import s3_options
from tests.buses import Heard
from tests.postgres_server import new_schema, shared_server
from tests.s3_server import BUCKET

from everlog.app.embedded import WallClock
from everlog.base import StorageError, Unavailable, UsageError
from everlog.bus import FrameKind, LocalBus, LocalHub, decode_frame, encode_frame
from everlog.client import Client, Level
from everlog.ownership import COORDINATOR, Replaced
from everlog.persist import (
    BucketStorage,
    PersistServer,
    ShardKeeper,
    SharedShards,
    SharedStorage,
    drain_server,
    open_storage,
    refuse_strangers,
)
from everlog.streams import Answer, Call, ErrorCode, Failure, FeedReset, Message, MessageSet, Set
from everlog.tiering import DirectoryBucket, MemoryBucket, open_bucket

SHARDS = 4
PATIENCE_S = 60.0  # nobody is declared dead in these tests unless they say so
WAIT_S = 20.0


class Server:
    """A server and what it is made of."""

    def __init__(self, world: "World", name: str, patience_s: float) -> None:
        self.name = name
        self.is_stopped = False
        self.bus = LocalBus(world.hub)
        self.storage = world.open_storage()
        self.shards = SharedShards(self.storage, str(world.directory / name), WallClock())
        self.server = PersistServer(self.bus, self.shards, name, store=self.storage.record.store)
        self.keeper = ShardKeeper(self.server, self.bus, self.storage, self.shards, patience_s=patience_s)

    @property
    def incarnation(self) -> int:
        members = self.storage.ownership.read().members
        return next((number for number, member in members.items() if member.name == self.name), 0)

    async def start(self) -> None:
        await self.server.start()
        await self.keeper.start()

    async def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            await self.keeper.stop()
            await self.server.stop()
            self.shards.close()
            self.storage.close()


class World:
    """Servers, the bus between them and what they share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hub = LocalHub()
        self.bucket: Any = MemoryBucket()
        self.open_storage: Callable[[], SharedStorage] = lambda: BucketStorage(self.bucket, SHARDS, group_s=0.0)
        self.servers: list[Server] = []
        self._parts = AsyncExitStack()

    async def add(self, name: str, patience_s: float = PATIENCE_S) -> Server:
        server = Server(self, name, patience_s)
        await server.start()
        self._parts.push_async_callback(server.stop)
        self.servers.append(server)
        return server

    async def client(self) -> Client:
        return await self._parts.enter_async_context(Client(LocalBus(self.hub), timeout_s=WAIT_S))

    async def close(self) -> None:
        await self._parts.aclose()


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.persist.shard_keeper._BEAT_S", 0.1)
    monkeypatch.setattr("everlog.persist.shard_keeper._AGAIN_S", 0.05)
    monkeypatch.setattr("everlog.persist.neighbours._EACH_S", 0.02)


@asynccontextmanager
async def shared(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    try:
        yield world
    finally:
        await world.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - others change it
            await asyncio.sleep(0.005)


def all_owned(*servers: Server) -> Callable[[], bool]:
    """Return what tells whether the servers have all shards, evenly, and have opened them."""
    least = SHARDS // len(servers)

    def is_so() -> bool:
        owned = [one.server.owned for one in servers]
        opened = [len(one.server.welcome().opened) for one in servers]
        return sorted(shard for some in owned for shard in some) == list(range(SHARDS)) and min(opened) >= least

    return is_so


def name_of_shard(client: Client, shard: int) -> str:
    return next(name for n in range(1000) if client._requester.shard_of(name := f"s{n}") == shard)


@pytest.mark.parametrize("kind", ["memory", "s3", "postgres"])
async def test_two_servers_share_the_shards_and_serve_all_of_them(tmp_path: Path, kind: str) -> None:
    async with shared(tmp_path) as world:
        if kind == "s3":
            world.bucket = open_bucket(f"s3://{BUCKET}/{tmp_path.name}", s3_options())
        elif kind == "postgres":
            place = f"{shared_server().url}?schema={new_schema()}"
            world.open_storage = lambda: open_storage(place, SHARDS)
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        for number in range(8):
            await client.stream(f"s{number}").append(b"%d" % number)
        b = await world.add("b")
        await until(all_owned(a, b))
        level = Level.FSYNC if kind == "postgres" else Level.ARCHIVED
        for number in range(8):
            assert (await client.stream(f"s{number}").append(b"more", level=level)).seq == 2
            assert [one.value async for one in client.stream(f"s{number}").get_all()] == [b"%d" % number, b"more"]
        welcomes = [one.server.welcome() for one in (a, b)]
        assert [one.is_coordinator for one in welcomes] == [True, False]
        await until(lambda: sorted({**a.server.welcome().epochs, **b.server.welcome().epochs}) == list(range(SHARDS)))
        assert sorted({**a.server.welcome().epochs, **b.server.welcome().epochs}.values()) == [1, 1, 2, 2]


async def test_a_server_that_was_declared_dead_falls_silent_and_joins_again(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        await client.stream("s").append(b"one")
        first = a.incarnation
        silent: list[bool] = []
        really = a.server.disown

        async def disown(shard: int) -> None:
            silent.append(a.server.serve_until == 0)
            await really(shard)

        a.server.disown = disown  # type: ignore[method-assign]
        a.storage.ownership.declare_dead(first, a.storage.ownership.beats()[first])
        await until(lambda: a.incarnation == first + 1)
        assert (await client.stream("s").append(b"two")).seq == 2  # at the next epoch, by the same server
        assert silent == [True] * SHARDS
        assert [one.value async for one in client.stream("s").get_all()] == [b"one", b"two"]


async def test_after_too_long_without_a_beat_nothing_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a", patience_s=0.5)
        await until(all_owned(a))
        client = await world.client()
        await client.stream("s").append(b"one")

        def cut(*_: object) -> None:
            raise Unavailable("no storage")

        monkeypatch.setattr(a.storage.ownership, "beat", cut)
        heard, bus = Heard(), LocalBus(world.hub)
        await bus.open()
        await bus.subscribe(f"{bus.inbox}/#", heard)
        asked = msgspec.msgpack.encode(Call(Set("s", Message(b"x"))))
        subject = f"everlog/p/{client._requester.shard_of('s')}/w/s"
        last: Answer | None = None
        async with asyncio.timeout(WAIT_S):
            while not isinstance(last, Failure):
                heard.deliveries.clear()
                bus.publish(subject, encode_frame(FrameKind.REQUEST, 7, 1, 0, asked), f"{bus.inbox}/r")
                await heard.until(1)
                last = msgspec.msgpack.decode(decode_frame(heard.payloads[0]).body, type=Answer)
        assert last.code is ErrorCode.UNAVAILABLE
        monkeypatch.undo()
        assert (await client.stream("s").append(b"two")).seq > 1


async def test_a_server_whose_commits_hang_does_not_beat(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        a.shards.stuck_s = lambda now_s: PATIENCE_S + 1  # type: ignore[method-assign]
        assert not a.keeper._is_well()
        a.shards.stuck_s = lambda now_s: 1.0  # type: ignore[method-assign]
        assert a.keeper._is_well()
        a.keeper._bus_changed(False)
        a.keeper._bus_lost_s = a.keeper._clock() - PATIENCE_S - 1
        assert not a.keeper._is_well()


async def test_a_commit_that_is_under_way_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        really, go_on = world.bucket.create, asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(name: str, data: bytes) -> bytes | None:
            if "/journal/" in name:
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            return really(name, data)  # type: ignore[no-any-return]

        monkeypatch.setattr(world.bucket, "create", slow)
        writing = asyncio.ensure_future(client.stream("s").append(b"one"))
        await until(lambda: a.shards.stuck_s(a.keeper._clock() + 9) > 9)
        go_on.set()
        await writing
        await until(lambda: a.shards.stuck_s(a.keeper._clock() + 9) == 0)


async def test_a_shard_that_fails_is_served_again_at_another_epoch(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        await client.stream("s").append(b"one")
        shard = client._requester.shard_of("s")
        a.server._shards[shard]._failed(StorageError("a bad disk"))
        assert (await client.stream("s").append(b"two")).seq == 2
        assert a.storage.ownership.read().claims[f"shard-{shard}"].epoch == 2


async def test_a_view_that_can_not_be_read_is_made_anew(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        await client.stream("s").append(b"one")
        shard = client._requester.shard_of("s")
        await a.server._shards[shard].close()
        place = tmp_path / "a" / a.storage.record.store / f"shard-{shard}"
        (place / "catalogue.db").write_bytes(b"not a database at all" * 1000)
        a.keeper._on_lost(shard)
        assert [one.value async for one in client.stream("s").get_all()] == [b"one"]


async def test_a_second_process_with_the_same_name_ends_the_first(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        world.directory = tmp_path / "elsewhere"
        again = await world.add("a")
        with pytest.raises(Replaced, match="name of its own"):
            await a.keeper.wait()
        assert a.server.serve_until == 0
        await a.stop()
        await until(all_owned(again))


async def test_a_drained_server_hands_over_shard_by_shard_and_no_request_fails(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a, b = await world.add("a"), await world.add("b")
        await until(all_owned(a, b))
        client = await world.client()
        stopping, counts = asyncio.Event(), [0] * SHARDS

        async def write(shard: int) -> None:
            stream = client.stream(name_of_shard(client, shard))
            while not stopping.is_set():
                counts[shard] += 1
                assert (await stream.append(b"%d" % counts[shard])).seq == counts[shard]

        async def read(shard: int) -> None:
            stream = client.stream(name_of_shard(client, shard))
            while not stopping.is_set():
                seqs = [one.seq async for one in stream.get_all()]
                assert seqs == list(range(1, len(seqs) + 1))

        works = [asyncio.ensure_future(write(shard)) for shard in range(SHARDS)]
        await until(lambda: min(counts) > 5)
        works += [asyncio.ensure_future(read(shard)) for shard in range(SHARDS)]
        retired: list[int] = []
        really = a.server.retire

        async def retire(shard: int) -> None:
            retired.append(len(a.server.owned))
            assert not a.keeper._handed, "the one before is taken already"
            await really(shard)

        a.server.retire = retire  # type: ignore[method-assign]
        a.storage.ownership.drain(a.incarnation)
        async with asyncio.timeout(WAIT_S):
            await a.keeper.wait()
        assert retired == [2, 1]
        await until(all_owned(b))
        stopping.set()
        await asyncio.gather(*works)
        assert b.storage.ownership.read().owner_of(COORDINATOR).name == "b"  # type: ignore[union-attr]
        for shard in range(SHARDS):
            stream = client.stream(name_of_shard(client, shard))
            assert [one.value async for one in stream.get_all()] == [b"%d" % n for n in range(1, counts[shard] + 1)]


async def test_the_last_server_can_be_drained_too(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        world.bucket = DirectoryBucket(tmp_path / "shared")
        a = await world.add("a", patience_s=1.0)
        await until(all_owned(a))
        told: list[tuple[list[int], bool]] = []
        place = str(tmp_path / "shared")
        with pytest.raises(UsageError, match="there is no server 'b'"):
            drain_server(place, "b", 1, lambda *_: None)
        draining = asyncio.to_thread(drain_server, place, "a", WAIT_S, lambda owned, done: told.append((owned, done)))
        drained = asyncio.ensure_future(draining)
        await a.keeper.wait()
        await a.stop()
        assert await drained
        assert (told[0], told[-1]) == ((list(range(SHARDS)), False), ([], True))


async def test_a_feed_goes_on_over_a_move_without_a_reset(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        await until(all_owned(a))
        client = await world.client()
        name = name_of_shard(client, SHARDS - 1)
        seen: list[int] = []
        resets: list[FeedReset] = []

        async def follow() -> None:
            async for item in client.stream(name).watch(heartbeat_s=0.05):
                if isinstance(item, MessageSet):
                    seen.append(item.message.seq)
                elif isinstance(item, FeedReset):
                    resets.append(item)

        await client.stream(name).append(b"1")
        following = asyncio.ensure_future(follow())
        await until(lambda: seen == [1])
        b = await world.add("b")
        await until(all_owned(a, b))
        assert SHARDS - 1 in b.server.owned
        resumes = b.server.requests
        await until(lambda: b.server.requests > resumes + 2)  # an idle follower asks again and again
        await client.stream(name).append(b"2")
        await until(lambda: seen == [1, 2])
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert resets == []


async def test_a_bus_on_which_others_serve_something_else_is_refused(tmp_path: Path) -> None:
    async with shared(tmp_path) as world:
        a = await world.add("a")
        bus = LocalBus(world.hub)
        await bus.open()
        await refuse_strangers(bus, "b", a.storage.record.store)
        await refuse_strangers(bus, "a", "")
        for store in ("", "another"):
            with pytest.raises(UsageError, match="'a' serves other streams"):
                await refuse_strangers(bus, "b", store)


@pytest.mark.parametrize("kind", ["directory", "postgres"])
def test_draining_makes_no_storage(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "wrong") if kind == "directory" else f"{shared_server().url}?schema={new_schema()}"
    for _ in range(2):
        with pytest.raises(UsageError, match="no persist server has used this storage"):
            drain_server(place, "a", 1, lambda *_: None)
    assert not (tmp_path / "wrong").exists()


def test_the_number_of_shards_is_chosen_once() -> None:
    bucket = MemoryBucket()
    made = BucketStorage(bucket, 3)
    assert BucketStorage(bucket).record == made.record
    with pytest.raises(UsageError, match="3 state shards, not 4"):
        BucketStorage(bucket, 4)
