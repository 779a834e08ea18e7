"""What streams, key-value stores and queues do for a Python program, over every bus and embedded."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.buses import PATIENCE_S, Carrier, carriers
from tests.nats_servers import PROGRAM, NatsServer, needs_nats

import everlog
from everlog.app.embedded import WallClock
from everlog.base import UsageError
from everlog.bus import Bus, FrameKind, NotAllowed, encode_frame, make_bus
from everlog.client import (
    CaughtUp,
    Client,
    Exists,
    Full,
    Item,
    Level,
    NotFound,
    NotServed,
    TimedOut,
    TooLarge,
    Watch,
    WrongKind,
    WrongRevision,
    connect,
)
from everlog.persist import LocalShards, PersistServer
from everlog.streams import Call, Delete, Get, KeysDeleted, KeySet, Message, MessagesDeleted, Set

BIG = bytes(range(256)) * 4000  # a megabyte, in many parts


@asynccontextmanager
async def serving(carrier: Carrier, directory: Path, shards: int = 1) -> AsyncIterator[PersistServer]:
    opener = LocalShards(str(directory), WallClock(), shards)
    server = PersistServer(carrier.bus(), opener)
    await server.start()
    for shard in range(shards):
        await server.own(shard)
    try:
        yield server
    finally:
        await server.stop()
        opener.close()


@pytest_asyncio.fixture(params=["local", "nats", "mqtt"])
async def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Carrier]:
    if request.param == "nats" and PROGRAM is None:
        pytest.skip("needs nats-server: run tools/install-servers")
    found = carriers(tmp_path)[request.param]()
    await found.start()
    yield found
    await found.stop()


@pytest_asyncio.fixture
async def client(carrier: Carrier, tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(carrier, tmp_path / "data"), Client(carrier.bus(), timeout_s=PATIENCE_S) as found:
        yield found


async def taken(watch: Watch, count: int) -> list[Item]:
    items: list[Item] = []
    async with asyncio.timeout(PATIENCE_S):
        async for item in watch:
            items.append(item)
            if len(items) == count:
                break
    return items


async def test_a_stream_keeps_what_is_given_and_deletes_what_is_asked(client: Client) -> None:
    stream = client.stream("team/log")
    first = await stream.append(b"one", headers={"a": "ü"}, timestamp=1.5)
    await stream.append(None)
    await stream.set(7, "seven")
    assert (first.seq, [one.seq async for one in stream.get_all()]) == (1, [1, 2, 7])
    found = await stream.get(1)
    assert (found.value, found.headers, found.timestamp) == (b"one", {"a": "ü"}, 1.5)
    assert (await stream.get(2)).value is None
    assert await stream.delete(2, 3) == 1
    with pytest.raises(NotFound):
        await stream.get(2)
    assert (await stream.append_all([b"8", b"9", BIG])).seqs == [8, 9, 10]
    assert (await stream.get(10)).value == BIG
    assert [one.seq async for one in stream.get_all(2, 9, 2)] == [7, 8]
    assert await stream.delete_all(8) == 3
    assert ((await stream.info()).messages, (await stream.info()).last_seq) == (2, 10)
    await stream.remove()
    with pytest.raises(NotFound):
        await stream.info()


async def test_a_watch_of_the_other_kind_is_refused(client: Client) -> None:
    await client.stream("s").append(b"x")
    await client.kv("k").put("a", b"x")
    with pytest.raises(WrongKind):
        await taken(client.kv("s").watch(), 1)
    with pytest.raises(WrongKind):
        await taken(client.stream("k").watch(after=(1, 0)), 1)


async def test_a_write_with_the_same_id_is_done_once(client: Client) -> None:
    stream = client.stream("s")
    one = await stream.append(b"x", message_id="mine")
    again = await stream.append(b"x", message_id="mine")
    assert (again.seq, again.is_duplicate, one.is_duplicate) == (one.seq, True, False)


async def test_large_values_come_whole_in_reads_series_and_feeds(client: Client) -> None:
    stream, store = client.stream("s"), client.kv("k")
    await stream.append(BIG)
    await store.put("big", BIG)
    entry = await store.get("big")
    assert entry is not None
    assert entry.value == BIG
    assert [one.value async for one in stream.get_all()] == [BIG]
    assert [one.value async for one in store.entries()] == [BIG]
    state = await taken(store.watch(), 2)
    assert isinstance(state[0], KeySet)
    assert state[0].entry.value == BIG


async def test_a_store_has_the_last_value_and_one_winner(client: Client) -> None:
    store = client.kv("settings")
    assert await store.get("color") is None
    revision = (await store.create("color", "blue")).seq
    with pytest.raises(Exists) as exists:
        await store.create("color", "red")
    assert exists.value.revision == revision
    results = await asyncio.gather(*(store.update("color", f"{i}", revision) for i in range(5)), return_exceptions=True)
    assert [isinstance(one, WrongRevision) for one in results].count(False) == 1
    await store.put("shape", b"round")
    assert [key async for key in store.keys("")] == ["color", "shape"]
    assert [key async for key in store.keys("s")] == ["shape"]
    assert await store.delete("shape")
    assert not await store.delete("shape")
    assert await store.delete_all() == 1


async def test_a_watch_of_a_store_tells_the_keys_that_it_asks_for(client: Client) -> None:
    store = client.kv("k")
    await store.put("a/1", b"x")
    await store.put("b/1", b"y")
    watch = store.watch("a/")
    watching = asyncio.ensure_future(taken(watch, 4))
    await asyncio.sleep(0)
    while watch.position is None:  # noqa: ASYNC110 - what it has taken up is not told otherwise
        await asyncio.sleep(0.005)
    await store.put("b/2", b"not this")
    await store.put("a/2", b"this")
    await store.delete("b/1")
    await store.delete("a/1")
    first, caught_up, second, deleted = await watching
    assert isinstance(first, KeySet)
    assert isinstance(caught_up, CaughtUp)
    assert isinstance(second, KeySet)
    assert (first.entry.key, second.entry.key) == ("a/1", "a/2")
    assert isinstance(deleted, KeysDeleted)
    assert deleted.keys == ["a/1"]


async def test_a_queue_hands_each_message_to_one_taker(client: Client) -> None:
    stream = client.stream("jobs")
    for i in range(4):
        await stream.append(b"%d" % i)
    queue = stream.queue("workers")
    await queue.configure(max_deliveries=2)
    one, two = await asyncio.gather(queue.take(2), queue.take(2))
    assert sorted(int(job.message.value or b"") for job in one + two) == [0, 1, 2, 3]
    await queue.ack(*(job.ticket for job in one))
    await queue.nack(*(job.ticket for job in two))
    again = await queue.take(9)
    assert [job.deliveries for job in again] == [2, 2]
    await queue.nack(*(job.ticket for job in again))
    lag = await queue.lag()
    assert (lag.acked, lag.dead, lag.waiting) == (2, 2, 0)
    dead = [letter.message.seq async for letter in queue.dead()]
    await queue.revive(dead[:1])
    await queue.drop_dead(dead[1:])
    async with asyncio.timeout(PATIENCE_S):
        async for job in queue.messages():
            assert job.message.seq == dead[0]
            await queue.ack(job.ticket)
            break
    assert (await queue.lag()).dead == 0
    await queue.remove()
    with pytest.raises(NotFound):
        await queue.lag()


async def test_whoever_waits_at_a_queue_is_woken_by_the_feed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SHORTEST_S", "_LONGEST_S", "_TOLD_S"):  # nobody looks again by himself
        monkeypatch.setattr(f"everlog.client.queue.{name}", 1000.0)
    stream = client.stream("jobs")
    queue = stream.queue("workers")
    await stream.append(b"before")
    await queue.configure(start_seq=None)
    jobs = queue.messages()
    waiting = asyncio.ensure_future(anext(jobs))
    async with asyncio.timeout(PATIENCE_S):
        while not sum([one.followed for one in await client.servers(0.05)]):
            pass
        await stream.append(b"now")
        assert (await waiting).message.value == b"now"
    await jobs.aclose()


async def test_limits_are_told_by_errors_of_their_own(client: Client) -> None:
    stream = client.stream("small")
    await stream.configure(max_messages=2, max_message_bytes=5, discard="new")
    with pytest.raises(TooLarge):
        await stream.append(b"123456")
    await stream.append_all([b"1", b"2"])
    with pytest.raises(Full):
        await stream.append(b"3")
    with pytest.raises(WrongKind):
        await client.kv("small").put("a", b"b")
    for name in ("", "a//b", "a/+", "$x", "x" * 600):
        with pytest.raises(UsageError):
            client.stream(name)
    with pytest.raises(UsageError, match="bytes or text"):
        await stream.append({"a": 1})  # type: ignore[arg-type]


async def test_a_batch_is_done_whole_or_not_at_all(client: Client) -> None:
    stream = client.stream("s")
    await stream.append(b"1")
    with pytest.raises(WrongRevision):
        await stream.batch([Set("s", Message(b"2")), Set("s", Message(b"3"), expected_last_seq=99), Delete("s", [1])])
    assert [one.value async for one in stream.get_all()] == [b"1"]
    await stream.batch([Set("s", Message(b"2")), Delete("s", [1])])
    assert [one.value async for one in stream.get_all()] == [b"2"]


async def test_a_copy_and_a_file_have_what_the_stream_had(client: Client, tmp_path: Path) -> None:
    stream = client.stream("s")
    await stream.append_all([b"1", b"2"])
    await stream.fork("copy")
    await stream.append(b"3")
    assert [one.value async for one in client.stream("copy").get_all()] == [b"1", b"2"]
    sizes: list[int] = []
    size = await stream.download(tmp_path / "s.db", sizes.append)
    assert ((tmp_path / "s.db").stat().st_size, sizes[-1]) == (size, size)
    assert not (tmp_path / "s.db.partial").exists()
    with closing(sqlite3.connect(tmp_path / "s.db")) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


async def test_what_is_written_to_memory_is_answered_so(client: Client) -> None:
    stream = client.stream("s", Level.MEMORY)
    assert (await stream.append(b"x")).seq == 1
    assert (await stream.get(1)).value == b"x"


async def test_a_restarted_server_has_everything_and_followers_go_on(carrier: Carrier, tmp_path: Path) -> None:
    client = Client(carrier.bus(), timeout_s=PATIENCE_S)
    async with serving(carrier, tmp_path / "data", 4):
        await client.open()
        streams = [client.stream(f"s/{i}") for i in range(8)]
        for stream in streams:
            await stream.append(b"before")
        watch = streams[0].watch()
        watching = asyncio.ensure_future(taken(watch, 3))
        while watch.position is None:  # noqa: ASYNC110 - what it has taken up is not told otherwise
            await asyncio.sleep(0.005)
    async with serving(carrier, tmp_path / "data", 4):
        for stream in streams:
            assert (await stream.append(b"after")).seq == 2
        items = await watching
        assert [type(item).__name__ for item in items][:2] == ["MessageSet", "CaughtUp"]
        assert not isinstance(items[2], MessagesDeleted)
        await client.close()


# Names and rights (hole 29)


async def asked(bus: Bus, subject: str, call: Call) -> bytes:
    """The answer to a request that nobody but a liar would send."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subscription = await bus.subscribe(f"{bus.inbox}/x", lambda batch: answer.set_result(batch[0].payload))
    bus.publish(subject, encode_frame(FrameKind.REQUEST, 1, 1, 0, msgspec.msgpack.encode(call)), f"{bus.inbox}/x")
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await answer
    finally:
        subscription.cancel()


async def test_a_name_or_a_right_that_is_not_the_subjects_is_refused(carrier: Carrier, client: Client) -> None:
    await client.stream("secret").append(b"x")
    bus = carrier.bus()
    await bus.open()
    for subject, request, code in [
        ("everlog/p/0/r/mine", Get("secret", 1), b"denied"),
        ("everlog/p/0/r/secret", Set("secret", Message(b"y")), b"denied"),
        ("everlog/p/0/w/secret", Get("secret", 1), b"denied"),
        ("everlog/p/0/w/mine/too", Set("mine", Message(b"y")), b"denied"),
        ("everlog/p/0/r/secret", Get("secret", 1), b"ok"),
    ]:
        assert code in await asked(bus, subject, Call(request))  # type: ignore[arg-type]
    assert (await client.stream("secret").info()).messages == 1
    await bus.close()


async def test_a_name_of_another_shard_is_refused(carrier: Carrier, tmp_path: Path) -> None:
    async with serving(carrier, tmp_path / "data", 2):
        bus = carrier.bus()
        await bus.open()
        answers = [await asked(bus, f"everlog/p/{shard}/r/s", Call(Get("s", 1))) for shard in (0, 1)]
        assert sorted(b"wrong_shard" in answer for answer in answers) == [False, True]
        await bus.close()


# Embedded, and without async


def test_a_directory_is_opened_without_a_server(tmp_path: Path) -> None:
    for count in range(2):
        with everlog.open(str(tmp_path / "data")) as db:
            stream = db.stream("s")
            assert stream.append("x").seq == count + 1
            assert [one.seq for one in stream.get_all()] == list(range(1, count + 2))
            db.kv("k").put("a", b"1")
            assert list(db.kv("k").keys()) == ["a"]
            items = []
            for item in stream.watch():
                items.append(item)
                if isinstance(item, CaughtUp):
                    break
            assert len(items) == count + 2
            with pytest.raises(NotFound):
                stream.get(99)


async def test_a_directory_is_opened_in_an_event_loop(tmp_path: Path) -> None:
    async with everlog.open(str(tmp_path / "data"), shards=3) as db:
        await asyncio.gather(*(db.stream(f"s/{i}").append(b"x") for i in range(20)))
    with pytest.raises(UsageError, match="3 state shards"):
        await everlog.open(str(tmp_path / "data"), shards=2).__aenter__()


async def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    async with everlog.open(str(tmp_path / "data")) as db:
        await db.stream("s").append(b"x")
        async with everlog.open(str(tmp_path / "data")) as other:
            other._requester.timeout_s = 0.3
            with pytest.raises(NotServed, match="can't be opened"):
                await other.stream("s").append(b"y")
        assert (await db.stream("s").append(b"z")).seq == 2


@needs_nats
async def test_permissions_of_nats_say_who_may_reach_which_stream(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "streams-on-nats.md").read_text()
    (config,) = re.findall(r"```\n(authorization.*?)```", page, re.DOTALL)
    with NatsServer(tmp_path, config) as nats:
        url = nats.url.replace("//", "//{}:s3cret@")
        opener = LocalShards(str(tmp_path / "data"), WallClock())
        server = PersistServer(make_bus(url.format("server")), opener)
        await server.start()
        await server.own(0)
        async with connect(url.format("anne"), timeout_s=PATIENCE_S) as client:
            stream = client.stream("team/log")
            await stream.append(b"x")
            assert [type(item).__name__ for item in await taken(stream.watch(), 2)] == ["MessageSet", "CaughtUp"]
            with pytest.raises(NotAllowed, match="everlog/p/0/f/private"):
                await taken(client.stream("private").watch(), 1)
        async with connect(url.format("anne"), timeout_s=0.4) as client:
            with pytest.raises(TimedOut, match="may this user"):
                await client.stream("private").append(b"x")
        with pytest.raises(NotAllowed, match="user and password"):
            await connect(url.format("bert")).open()
        await server.stop()
        opener.close()
