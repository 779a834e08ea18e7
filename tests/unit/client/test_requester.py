"""What a client does with answers that pass by themselves, or come from an owner that was replaced."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from everlog.bus import (
    HELLO,
    LAST,
    Delivery,
    FrameKind,
    LocalBus,
    LocalHub,
    Welcome,
    decode_frame,
    encode_frame,
    request_patterns,
)
from everlog.client import Client
from everlog.streams import Answer, ErrorCode, Failure, Level, Messages, Reply, StoredMessage

NOT_OWNER = Failure(ErrorCode.NOT_OWNER, "b has it", owner="b", epoch=2)


def found(epoch: int, *values: bytes, is_last: bool = True, first: int = 1) -> Reply:
    messages = [StoredMessage(seq, 1, value, size=len(value)) for seq, value in enumerate(values, first)]
    return Reply(epoch, 1, Level.FSYNC, Messages(messages, is_last), is_last)


@asynccontextmanager
async def answering(*scripted: Answer | list[Answer]) -> AsyncIterator[tuple[Client, list[int]]]:
    """A client of servers that give these answers, one or a series to each request; and the ids of the requests."""
    hub, asked, waiting = LocalHub(), list[int](), list(scripted)
    bus = LocalBus(hub)
    await bus.open()

    def greet(deliveries: list[Delivery]) -> None:
        for one in deliveries:
            body = msgspec.msgpack.encode(Welcome(server="a", shards=1, owned=[0], protocol=1, version="0"))
            bus.publish(one.reply, encode_frame(FrameKind.WELCOME, decode_frame(one.payload).id, body=body))

    def take(deliveries: list[Delivery]) -> None:
        for one in deliveries:
            frame = decode_frame(one.payload)
            if frame.kind is FrameKind.REQUEST:
                asked.append(frame.id)
                told = waiting.pop(0) if waiting else []
                for number, answer in enumerate(told if isinstance(told, list) else [told]):
                    flags, body = LAST if answer.is_last else 0, msgspec.msgpack.encode(answer)
                    bus.publish(one.reply, encode_frame(FrameKind.REPLY, frame.id, number, flags, body))

    await bus.subscribe(HELLO, greet)
    for pattern in request_patterns(0):
        await bus.subscribe(pattern, take)
    async with Client(LocalBus(hub), timeout_s=20) as client:
        yield client, asked
    await bus.close()


Read = Callable[[Client], AsyncIterator[bytes | None]]


async def one(client: Client) -> AsyncIterator[bytes | None]:
    yield (await client.stream("s").get(1)).value


async def many(client: Client) -> AsyncIterator[bytes | None]:
    async for message in client.stream("s").get_all():
        yield message.value


@pytest.mark.parametrize("read", [one, many])
async def test_what_a_server_does_not_own_is_asked_again_with_the_same_id(read: Read) -> None:
    async with answering(NOT_OWNER, NOT_OWNER, found(2, b"x")) as (client, asked):
        assert [value async for value in read(client)] == [b"x"]
        assert (len(asked), len(set(asked))) == (3, 1)


@pytest.mark.parametrize("read", [one, many])
async def test_the_answer_of_an_owner_that_was_replaced_does_not_count(read: Read) -> None:
    async with answering(found(2, b"new"), found(1, b"old"), found(2, b"new")) as (client, _):
        assert [value async for value in one(client)] == [b"new"]
        assert [value async for value in read(client)] == [b"new"]


async def test_a_series_is_told_by_one_owner_from_its_beginning_to_its_end() -> None:
    """A request that was sent twice is answered by the owner before and by the next, and each makes other parts."""
    mixed: list[Answer] = [found(1, b"1", is_last=False), found(2, b"3", first=3)]
    async with answering(mixed, found(2, b"2", b"3", first=2)) as (client, asked):
        assert [value async for value in many(client)] == [b"1", b"2", b"3"]
        assert len(set(asked)) == 2
