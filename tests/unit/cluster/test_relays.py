"""Two brokers whose link is cut talk over a third one: in order, once, and as if there were a link."""

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator

import pytest
from tests.unit.cluster.test_links import CLUSTER, members, until

from everlog.base import Unavailable
from everlog.cluster import LinkKind, Links
from everlog.cluster.link_frames import LinkFrame

NOWHERE = "127.0.0.1:1"  # nobody listens there


class Seen:
    """What one broker is told of its links, and over them."""

    def __init__(self, links: Links) -> None:
        self.changes: list[tuple[int, bool]] = []
        self.heard: list[tuple[int, int, bytes]] = []
        links.watch(lambda who, there: self.changes.append((who, there)))
        links.hear(LinkKind.PUBLISH, lambda *what: self.heard.append(what))


async def said(who: int, body: bytes) -> bytes:
    return b"%d said " % who + body


@contextlib.asynccontextmanager
async def cut_apart(count: int) -> AsyncIterator[list[Links]]:
    """Brokers of which the last can't reach the first."""
    made = [Links(CLUSTER, number + 1, f"b{number + 1}") for number in range(count)]
    try:
        for one in made:
            one.ping_s = 0.05
            one.answer(LinkKind.RELEASE_SESSION, said)
            await one.start()
        for one in made[:-1]:
            one.update(members(*made))
        made[-1].update(members(*made, b1=NOWHERE))
        yield made
    finally:
        for one in made:
            await one.close()


async def test_what_two_say_over_a_third_arrives_in_order_and_once() -> None:
    async with cut_apart(3) as (a, b, c):
        at_a, at_c = Seen(a), Seen(c)
        await until(lambda: 3 in a.living and 1 in c.living)
        assert (a.relayed, b.relayed, c.relayed) == (1, 0, 1)
        for number in range(300):
            body = b"%d" % number * (30_000 if number % 7 == 0 else 1)
            assert c.send(1, LinkKind.PUBLISH, number, body)
            assert a.send(3, LinkKind.PUBLISH, number, body)
        await until(lambda: len(at_a.heard) == len(at_c.heard) == 300)
        assert [(who, number) for who, number, _ in at_a.heard] == [(3, number) for number in range(300)]
        assert [(who, number) for who, number, _ in at_c.heard] == [(1, number) for number in range(300)]
        assert all(body == b"%d" % number * (30_000 if number % 7 == 0 else 1) for _, number, body in at_a.heard)
        assert await c.ask(1, LinkKind.RELEASE_SESSION, b"x") == b"3 said x"
        assert await a.ask(3, LinkKind.RELEASE_SESSION, b"y") == b"1 said y"
        assert (3, True) in at_a.changes  # more than once if it was asked again before its answer was there
        assert at_c.changes.count((1, True)) == 1
        assert a.offer(LinkKind.OFFER, 0, b"batch") == 1, "offers are not passed on: the tail has them"


async def test_when_the_third_is_lost_so_is_the_link_until_another_relays() -> None:
    async with cut_apart(4) as (a, b, c, d):
        await until(lambda: 4 in a.living and 1 in d.living)
        at_a, at_d = Seen(a), Seen(d)
        never = asyncio.ensure_future(d.ask(1, LinkKind.GROUP_GIVE, b""))
        a.answer(LinkKind.GROUP_GIVE, forever)
        over = d._links[1].via  # type: ignore[union-attr]
        (via,) = [one for one in (b, c) if one.incarnation == over.incarnation]
        await via.close()
        with pytest.raises(Unavailable):
            await never
        await until(lambda: (1, True) in at_d.changes and (4, True) in at_a.changes)
        assert [change for change in at_d.changes if change[0] == 1] == [(1, False), (1, True)]
        assert [change for change in at_a.changes if change[0] == 4][:2] == [(4, False), (4, True)]
        assert await d.ask(1, LinkKind.RELEASE_SESSION, b"x") == b"4 said x"


async def forever(who: int, body: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


async def test_a_link_of_their_own_takes_the_place_of_the_detour() -> None:
    async with cut_apart(3) as (a, b, c):
        await until(lambda: 3 in a.living and 1 in c.living)
        at_a, at_c = Seen(a), Seen(c)
        c._dials.pop(1).cancel()
        c.update(members(a, b, c))
        await until(lambda: not a.relayed and not c.relayed)
        assert (at_a.changes, at_c.changes) == ([(3, False), (3, True)], [(1, False), (1, True)])
        assert await c.ask(1, LinkKind.RELEASE_SESSION, b"x") == b"3 said x"
        assert a.offer(LinkKind.OFFER, 0, b"batch") == 0


async def test_nothing_is_passed_on_twice_nor_of_who_is_no_member() -> None:
    async with cut_apart(3) as (a, b, c):
        await until(lambda: 3 in a.living and 1 in c.living)
        heard = Seen(a).heard
        to_b = b._links[3]
        assert not hasattr(to_b, "via")
        loop = struct.pack("<QB", 1, LinkKind.RELAY) + struct.pack("<QB", 1, LinkKind.PUBLISH) + b"around"
        b._relays.received(to_b, LinkFrame(LinkKind.RELAY, 7, loop))  # type: ignore[arg-type]
        c.send(1, LinkKind.PUBLISH, 8, b"after it")
        await until(lambda: bool(heard))
        assert heard == [(3, 8, b"after it")]
        a.update(members(a, b))
        a._highest = 9
        await until(lambda: 3 not in a.living)
        for _ in range(40):
            await asyncio.sleep(0.01)
            assert 3 not in a.living


async def test_links_that_come_and_go_leave_both_ends_of_one_mind() -> None:
    """Whatever is lost on the way, both ends say that there is a link, and what is said then arrives."""
    chance = random.Random(16)
    async with cut_apart(4) as (a, b, c, d):
        for _ in range(60):
            one = chance.choice((b, c))
            links = [link for link in one._connections if link.is_open]
            if links:
                chance.choice(links).close()
            await asyncio.sleep(chance.random() * 0.1)
        await until(lambda: all(len(one.living) == 3 for one in (a, b, c, d)))

        async def works() -> bool:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(0.5):
                    there = await d.ask(1, LinkKind.RELEASE_SESSION, b"x") == b"4 said x"
                    return there and await a.ask(4, LinkKind.RELEASE_SESSION, b"x") == b"1 said x"
            return False

        async with asyncio.timeout(30):
            while not await works():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
