"""`everlog pub` and `sub` follow a Server Reference, a few in a row, and find back to where they began."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from everlog.base import Unavailable
from everlog.cli.client.async_client import AsyncClient, Refused
from everlog.cli.client.connect_options import Target
from everlog.cli.client.reconnect import keep_connected
from everlog.cli.client.server_reference import MOST_HOPS, Way, parse_reference
from everlog.mqtt import Connack, Connect, Disconnect, Properties, Reason, encode

HOME = ("home", 1883)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("broker-b:1884", ("broker-b", 1884)),
        ("broker-b", ("broker-b", 7)),
        ("[fe80::1]:1884 other:1", ("fe80::1", 1884)),
        ("[fe80::1]", ("fe80::1", 7)),
        ("10.0.0.1:99 10.0.0.2:99", ("10.0.0.1", 99)),
        ("", None),
        (":1883", None),
        ("broker:0", None),
        ("broker:65536", None),
        ("broker:mqtt", None),
    ],
)
def test_the_first_address_counts_and_its_port_may_be_missing(text: str, place: tuple[str, int] | None) -> None:
    assert parse_reference(text, 7) == place


def refused(reason: Reason, reference: str | None) -> Refused:
    return Refused("refused", reason, Properties(server_reference=reference))


def test_for_now_leads_back_and_for_good_does_not() -> None:
    way = Way(HOME, HOME)
    assert way.follow(refused(Reason.USE_ANOTHER_SERVER, "b:1"))
    assert way.place == ("b", 1)
    way.lost()
    assert way.place == HOME
    way.lost()
    assert way.place == ("b", 1), "the one or the other"
    assert way.follow(refused(Reason.SERVER_MOVED, "c:1"))
    way.lost()
    assert way.place == ("c", 1)


def test_only_a_reference_is_followed_and_few_in_a_row() -> None:
    way = Way(HOME, HOME)
    assert not way.follow(Unavailable("no answer"))
    assert not way.follow(refused(Reason.USE_ANOTHER_SERVER, None))
    assert not way.follow(refused(Reason.NOT_AUTHORIZED, "b:1"))
    for _ in range(MOST_HOPS):
        assert way.follow(refused(Reason.USE_ANOTHER_SERVER, "b:1"))
    assert not way.follow(refused(Reason.USE_ANOTHER_SERVER, "b:1"))
    way.served(3.0)
    assert not way.follow(refused(Reason.USE_ANOTHER_SERVER, "b:1"))
    way.served(60.0)
    assert way.follow(refused(Reason.USE_ANOTHER_SERVER, "b:1"))


@asynccontextmanager
async def server(answers: list[bytes]) -> AsyncIterator[int]:
    """A server that gives the next answer to each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answers.pop(0))
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def connack(reason: Reason = Reason.SUCCESS, reference: str | None = None) -> bytes:
    return encode(Connack(False, reason, Properties(server_reference=reference)), 5)


def leave(reference: str) -> bytes:
    return encode(Disconnect(Reason.USE_ANOTHER_SERVER, Properties(server_reference=reference)), 5)


async def test_a_client_goes_on_where_it_is_told_to_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    last: list[bytes] = [connack()]
    reached: list[bool] = []

    async def work(client: AsyncClient) -> int:
        await client.wait_until(lambda: not last)
        reached.append(True)
        return 0

    async with (
        server(last) as third,
        server([connack() + leave(f"127.0.0.1:{third}")]) as second,
        server([connack(Reason.USE_ANOTHER_SERVER, f"127.0.0.1:{second}")]) as first,
    ):
        target = Target("127.0.0.1", first, None, Connect(5, "me", True, 0))
        assert await asyncio.wait_for(keep_connected(target, work, again=False), 30) == 0
        assert reached == [True]
        told = capsys.readouterr().err
        assert f"going on at 127.0.0.1:{second}" in told
        assert f"going on at 127.0.0.1:{third}" in told


async def test_two_that_refer_to_each_other_are_left_after_a_few_hops() -> None:
    answers: list[bytes] = []
    async with server(answers) as port:
        answers += [connack(Reason.SERVER_MOVED, f"127.0.0.1:{port}")] * (MOST_HOPS + 5)

        async def work(client: AsyncClient) -> int:
            return 0

        target = Target("127.0.0.1", port, None, Connect(5, "me", True, 0))
        with pytest.raises(Refused):
            await asyncio.wait_for(keep_connected(target, work), 30)
        assert len(answers) == 4
