"""Links between brokers over real sockets: one connection a pair, questions, strangers, peers that are slow or gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.certificates import Authority, needs_openssl
from tests.fault_proxy import FaultProxy

from everlog.base import Unavailable
from everlog.cluster import LinkKind, Links, read_link_tls
from everlog.cluster.link import OFFER_BYTES
from everlog.cluster.link_frames import MAX_BODY, encode_link_frame
from everlog.cluster.link_hello import Hello, encode_hello
from everlog.ownership import Member

CLUSTER = 77


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def members(*links: Links, **addresses: str) -> dict[int, Member]:
    names = {one.incarnation: f"b{one.incarnation}" for one in links}
    return {
        number: Member(number, names[number], addresses.get(names[number], one.address), "")
        for number, one in zip(names, links, strict=True)
    }


@contextlib.asynccontextmanager
async def linked(count: int, **options: object) -> AsyncIterator[list[Links]]:
    """Brokers that know each other, linked pair by pair."""
    made = [Links(CLUSTER, number + 1, f"b{number + 1}", **options) for number in range(count)]  # type: ignore[arg-type]
    try:
        for one in made:
            await one.start()
        for one in made:
            one.update(members(*made))
        await until(lambda: all(len(one.living) == count - 1 for one in made))
        yield made
    finally:
        for one in made:
            await one.close()


async def test_each_pair_has_one_connection_and_answers_questions() -> None:
    async with linked(3) as (a, b, c):
        assert [sorted(one.living) for one in (a, b, c)] == [[2, 3], [1, 3], [1, 2]]
        assert [len(one._connections) for one in (a, b, c)] == [2, 2, 2]

        async def reverse(who: int, body: bytes) -> bytes:
            return bytes((who,)) + body[::-1]

        a.answer(LinkKind.RELEASE_SESSION, reverse)
        c.answer(LinkKind.RELEASE_SESSION, reverse)
        assert await b.ask(1, LinkKind.RELEASE_SESSION, b"abc") == b"\x02cba"
        large = bytes(range(256)) * 4000
        assert await asyncio.gather(
            *(b.ask(3, LinkKind.RELEASE_SESSION, large[:size]) for size in (0, 1, 70_000, 1_000_000))
        ) == [b"\x02" + large[:size][::-1] for size in (0, 1, 70_000, 1_000_000)]


async def test_an_error_of_the_answerer_is_the_askers_and_what_nobody_answers_too() -> None:
    async with linked(2) as (a, b):

        async def refuse(who: int, body: bytes) -> bytes:
            raise Unavailable("not now", hint="later")

        async def stumble(who: int, body: bytes) -> bytes:
            raise ZeroDivisionError

        a.answer(LinkKind.RELEASE_SESSION, refuse)
        with pytest.raises(Unavailable, match=r"not now \(later\)"):
            await b.ask(1, LinkKind.RELEASE_SESSION, b"")
        a.answer(LinkKind.RELEASE_SESSION, stumble)
        with pytest.raises(Unavailable, match="ZeroDivisionError"):
            await b.ask(1, LinkKind.RELEASE_SESSION, b"")
        with pytest.raises(Unavailable, match="not known here"):
            await b.ask(1, LinkKind.CLOSE_ORIGIN, b"")
        with pytest.raises(Unavailable, match="no link"):
            await b.ask(9, LinkKind.CLOSE_ORIGIN, b"")


async def test_what_is_told_arrives_in_order() -> None:
    async with linked(2) as (a, b):
        heard: list[tuple[int, int, bytes]] = []
        a.hear(LinkKind.UNKEPT, lambda *what: heard.append(what))
        for number in range(100):
            b.send(1, LinkKind.UNKEPT, number, b"%d" % number * (30_000 if number % 7 == 0 else 1))
        await until(lambda: len(heard) == 100)
        assert [number for _, number, _ in heard] == list(range(100))
        assert all(body == b"%d" % number * (30_000 if number % 7 == 0 else 1) for _, number, body in heard)


async def test_what_is_told_without_a_number_reaches_the_answerer() -> None:
    async with linked(2) as (a, b):
        heard: list[tuple[int, bytes]] = []

        async def hear(who: int, body: bytes) -> bytes:
            heard.append((who, body))
            return b""

        a.answer(LinkKind.RELEASE_SESSION, hear)
        b.tell(1, LinkKind.RELEASE_SESSION, b"client")
        b.tell(9, LinkKind.RELEASE_SESSION, b"nobody")
        await until(lambda: heard == [(2, b"client")])


async def test_a_lost_link_ends_its_questions_and_is_made_again() -> None:
    a, b = Links(CLUSTER, 1, "b1"), Links(CLUSTER, 2, "b2")
    for one in (a, b):
        one.ping_s, one.silent_s = 0.1, 1.0
    await a.start()
    await b.start()
    with FaultProxy(a.address) as proxy:
        seen: list[tuple[int, bool]] = []
        b.watch(lambda who, there: seen.append((who, there)))
        asked = asyncio.Event()

        async def never(who: int, body: bytes) -> bytes:
            asked.set()
            await asyncio.Event().wait()
            return b""

        a.answer(LinkKind.RELEASE_SESSION, never)
        try:
            a.update(members(a, b))
            b.update(members(a, b, b1=proxy.address))
            await until(lambda: 1 in b.living and 2 in a.living)
            question = asyncio.ensure_future(b.ask(1, LinkKind.RELEASE_SESSION, b""))
            await asked.wait()
            proxy.cut()
            with pytest.raises(Unavailable):
                await question
            await until(lambda: len(seen) == 3 and 1 in b.living and 2 in a.living)
            assert seen == [(1, True), (1, False), (1, True)]
            proxy.hold()  # packets get lost: nothing is closed, and yet nothing is heard
            await until(lambda: 1 not in b.living and 2 not in a.living)
            proxy.go_on()
            await until(lambda: 1 in b.living and 2 in a.living)
        finally:
            await b.close()
            await a.close()


async def test_who_is_no_member_any_more_has_no_link_and_gets_none() -> None:
    async with linked(2) as (a, b):
        a.update({number: one for number, one in members(a, b).items() if number == 1})
        await until(lambda: not a.living and not b.living)
        refused = asyncio.Event()
        b.watch(lambda who, there: refused.set() if there else None)
        await asyncio.sleep(0)  # b dials again, and again
        link_count = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            link_count += len(a.living)
        assert link_count == 0


async def greeted(links: Links, first: bytes) -> bytes:
    """Connect as a stranger, say something, and return what is answered before the connection is closed."""
    host, _, port = links.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(first)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "hello",
    [
        Hello(CLUSTER + 1, 5, "another cluster's", 3),
        Hello(CLUSTER, 5, "looks for another", 2),
        Hello(CLUSTER, 2, "should have been dialled", 3),
        Hello(CLUSTER, 3, "ourselves", 3),
        Hello(CLUSTER, 4, "dead", 3),
        Hello(CLUSTER, 9, "of the future", 3, format_min=2, format_max=3),
    ],
    ids=lambda hello: hello.name,
)
async def test_a_stranger_is_refused(hello: Hello) -> None:
    links = Links(CLUSTER, 3, "b3")
    await links.start()
    try:
        links.update({3: Member(3, "b3", "", ""), 5: Member(5, "b5", "", "")})
        assert await greeted(links, encode_link_frame(LinkKind.HELLO, 0, encode_hello(hello))) == b""
        assert not links.living
    finally:
        await links.close()


async def test_huge_frames_and_noise_are_refused_before_and_after_the_hello() -> None:
    links = Links(CLUSTER, 3, "b3")
    await links.start()
    try:
        hello = encode_link_frame(LinkKind.HELLO, 0, encode_hello(Hello(CLUSTER, 5, "b5", 3)))
        huge = bytearray(encode_link_frame(LinkKind.PUBLISH, 0, b""))
        huge[4:8] = (MAX_BODY + 1).to_bytes(4, "little")
        for first in (b"GET / HTTP/1.1\r\n\r\n" * 9, bytes(huge), encode_link_frame(LinkKind.PUBLISH, 0, b"x")):
            assert await greeted(links, first) == b""
        for then in (bytes(huge), b"noise" * 100):
            await greeted(links, hello + then)
            await until(lambda: not links.living)
    finally:
        await links.close()


async def test_offers_to_a_slow_peer_are_dropped_and_not_gathered() -> None:
    async with linked(2) as (a, b):
        link = next(iter(b._links.values()))
        assert a._connections
        for one in a._connections:
            assert one._transport is not None
            one._transport.pause_reading()
        body = bytes(1 << 20)
        dropped = 0
        for _ in range(200):
            dropped += b.offer(LinkKind.OFFER, 0, body)
            await asyncio.sleep(0)
        assert dropped > 100
        assert link.waiting_bytes <= OFFER_BYTES + 2 * len(body)


@needs_openssl
async def test_with_certificates_only_those_of_the_authority_are_linked(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    ours, theirs = authority.issue("broker"), other.issue("stranger")
    async with linked(2, tls=read_link_tls(ours.cert, ours.key, authority.cert)) as (a, b):
        stranger = Links(CLUSTER, 3, "b3", tls=read_link_tls(theirs.cert, theirs.key, authority.cert))
        plain = Links(CLUSTER, 4, "b4")
        for one in (stranger, plain):
            await one.start()
            one.update(members(a, b, one))
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert not stranger.living
            assert not plain.living
        await stranger.close()
        await plain.close()
        assert sorted(a.living) == [2]
