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


def found(epoch: int, *values: bytes, is_last: bool = True) -> Reply:
    messages = [StoredMessage(seq, 1, value, size=len(value)) for seq, value in enumerate(values, 1)]
    return Reply(epoch, 1, Level.FSYNC, Messages(messages, is_last), is_last)


@asynccontextmanager
async def answering(*scripted: Answer) -> AsyncIterator[tuple[Client, list[int]]]:
    """A client of a server that gives these answers, one for each request; and the ids of the requests."""
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
                if waiting:
                    body = msgspec.msgpack.encode(waiting.pop(0))
                    bus.publish(one.reply, encode_frame(FrameKind.REPLY, frame.id, 0, LAST, body))

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
