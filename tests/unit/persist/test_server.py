"""A persist server: what it does with requests that come twice, too early, or to a shard that fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.buses import Heard
from tests.memory_shard import MemoryShard, MemoryShards

from everlog.base import EverlogError, Fenced, StorageError
from everlog.bus import FrameKind, LocalBus, LocalHub, decode_frame, encode_frame
from everlog.persist import Begin, PersistServer
from everlog.streams import Answer, Call, ErrorCode, Failure, GetAll, Message, Reply, Set

APPEND = Call(Set("s", Message(b"x")))


@asynccontextmanager
async def serving(shards: MemoryShards) -> AsyncIterator[tuple[PersistServer, LocalBus, Heard]]:
    hub = LocalHub()
    server, bus, heard = PersistServer(LocalBus(hub), shards), LocalBus(hub), Heard()
    await server.start()
    await server.own(0)
    await bus.open()
    await bus.subscribe(f"{bus.inbox}/#", heard)
    yield server, bus, heard
    await server.stop()


def ask(bus: LocalBus, id: int, call: Call = APPEND, window: int = 1, right: str = "w") -> None:
    data = encode_frame(FrameKind.REQUEST, id, window, 0, msgspec.msgpack.encode(call))
    bus.publish(f"everlog/p/0/{right}/s", data, f"{bus.inbox}/r")


def answers(heard: Heard) -> list[Answer]:
    return [msgspec.msgpack.decode(decode_frame(one).body, type=Answer) for one in heard.payloads]


class Slow(MemoryShard):
    """Answers when it is let."""

    held: list[Callable[[], None]]

    def handle(self, call: Call, answer: Callable[[Answer], None]) -> None:
        self.held = [*getattr(self, "held", []), lambda: MemoryShard.handle(self, call, answer)]


async def test_a_request_that_comes_again_while_it_is_under_way_is_done_once() -> None:
    shards = MemoryShards()
    slow = shards.opened[0] = Slow()
    async with serving(shards) as (server, bus, heard):
        for _ in range(3):
            ask(bus, 1)
        ask(bus, 2)
        while len(getattr(slow, "held", [])) < 2:  # noqa: ASYNC110 - two of the four are handed on
            await asyncio.sleep(0)
        for go_on in slow.held:
            go_on()
        slow.turn()
        await heard.until(2)
        assert (len(slow.held), len(slow.streams["s"]), server.welcome().under_way) == (2, 2, 0)


async def test_a_lost_series_is_sent_again_from_where_the_caller_is() -> None:
    shards = MemoryShards()
    async with serving(shards) as (_, bus, heard):
        for id in range(30):
            ask(bus, id)
        await heard.until(30)
        heard.deliveries.clear()
        ask(bus, 99, Call(GetAll("s")), 2, "r")
        await heard.until(2)
        ask(bus, 99, Call(GetAll("s")), 2, "r")  # nothing has come: all of it again
        await heard.until(4)
        assert [decode_frame(one).number for one in heard.payloads] == [0, 1, 0, 1]
        bus.publish("everlog/p/0/r/s", encode_frame(FrameKind.CREDIT, 99, 1, 0x8000 | 9), f"{bus.inbox}/r")
        await heard.until(7)
        assert [decode_frame(one).number for one in heard.payloads][4:] == [1, 2, 3]
        bus.publish("everlog/p/0/r/s", encode_frame(FrameKind.CREDIT, 99, 4, 9), f"{bus.inbox}/r")
        bus.publish("everlog/p/0/r/s", encode_frame(FrameKind.CREDIT, 99, 4, 9), f"{bus.inbox}/r")
        await heard.until(8)
        assert decode_frame(heard.payloads[7]).number == 0xFFFF_FFFF  # it is over


class Failing(MemoryShards):
    """Shards that can't be opened at first, and that fail when told to."""

    def __init__(self, errors: list[EverlogError]) -> None:
        super().__init__()
        self.errors = errors
        self.fail: Callable[[EverlogError], None]

    def open(self, shard: int) -> Begin:
        if self.errors:
            raise self.errors.pop(0)
        begin = super().open(shard)

        def begin_and_note(post: object, failed: Callable[[EverlogError], None]) -> MemoryShard:
            self.fail = failed
            return begin(post, failed)  # type: ignore[arg-type, return-value]

        return begin_and_note  # type: ignore[return-value]


async def test_a_shard_that_can_not_be_opened_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import everlog.persist.owned_shard as module

    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    async with serving(Failing([StorageError("it is locked")])) as (_, bus, heard):
        ask(bus, 1)
        await heard.until(1)
        (failure,) = answers(heard)
        assert isinstance(failure, Failure)
        assert (failure.code, "locked" in failure.message) == (ErrorCode.UNAVAILABLE, True)
        ask(bus, 1)
        await heard.until(2)
        assert isinstance(answers(heard)[1], Reply)


async def test_a_shard_that_fails_is_opened_again_but_not_one_that_another_server_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import everlog.persist.owned_shard as module

    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    shards = Failing([])
    async with serving(shards) as (_, bus, heard):
        ask(bus, 1)
        await heard.until(1)
        shards.fail(StorageError("a bad disk"))
        ask(bus, 2)
        await heard.until(2)
        assert isinstance(answers(heard)[1], Reply)
        shards.fail(Fenced("another owner"))
        ask(bus, 3)
        await heard.until(3)
        failure = answers(heard)[2]
        assert isinstance(failure, Failure)
        assert failure.code is ErrorCode.NOT_OWNER


async def test_a_server_that_gave_a_shard_away_says_who_has_it() -> None:
    async with serving(MemoryShards()) as (server, bus, heard):
        ask(bus, 1)
        await heard.until(1)
        server.owner_of = lambda shard: ("b", 7)
        await server.retire(0)
        for id in (2, 3):
            ask(bus, id, *((Call(GetAll("s")), 1, "r") if id == 3 else ()))
        await heard.until(3)
        for failure in answers(heard)[1:]:
            assert isinstance(failure, Failure)
            assert (failure.code, failure.owner, failure.epoch) == (ErrorCode.NOT_OWNER, "b", 7)
        server.forget(0)
        ask(bus, 4)
        for _ in range(3):
            await asyncio.sleep(0)  # it is delivered, if anybody listens
        await server.own(0)
        ask(bus, 5)
        await heard.until(4)
        assert [decode_frame(one).id for one in heard.payloads] == [1, 2, 3, 5]


async def test_who_waits_for_a_commit_that_hangs_is_told_when_the_shard_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everlog.persist.owned_shard._SETTLE_S", 0.05)
    shards = MemoryShards()
    hanging = shards.opened[0] = MemoryShard()
    hanging.turn = lambda: None  # type: ignore[method-assign]
    async with serving(shards) as (server, bus, heard):
        ask(bus, 1)
        while hanging.is_idle:  # noqa: ASYNC110 - until it is handed on
            await asyncio.sleep(0)
        await server.retire(0)
        await heard.until(1)
        (failure,) = answers(heard)
        assert isinstance(failure, Failure)
        assert failure.code is ErrorCode.UNAVAILABLE


async def test_a_server_that_may_not_serve_any_more_answers_nothing_but_that() -> None:
    async with serving(MemoryShards()) as (server, bus, heard):
        server.serve_until = 0.0
        ask(bus, 1)
        ask(bus, 2, Call(GetAll("s")), 1, "r")
        await heard.until(2)
        assert [one.code for one in answers(heard) if isinstance(one, Failure)] == [ErrorCode.UNAVAILABLE] * 2
        server.serve_until = float("inf")
        ask(bus, 3)
        await heard.until(3)
        assert isinstance(answers(heard)[2], Reply)
