"""A client that connects again when its connection is lost: after how long, and after which errors it gives up."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from random import random
from typing import TypeVar

from everlog.base import Unavailable
from everlog.cli.client.async_client import AsyncClient, Handler, Refused
from everlog.cli.client.connect_options import Target
from everlog.cli.client.server_reference import Way
from everlog.cli.visible import visible_line
from everlog.mqtt import Reason

T = TypeVar("T")

LONGEST_S = 30.0  # between two tries

# Reasons that pass by themselves; any other would only be repeated.
_PASSING = {
    Reason.UNSPECIFIED_ERROR,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY,
    Reason.SERVER_SHUTTING_DOWN,
    Reason.KEEP_ALIVE_TIMEOUT,
    Reason.QUOTA_EXCEEDED,
    Reason.ADMINISTRATIVE_ACTION,
    Reason.CONNECTION_RATE_EXCEEDED,
    Reason.USE_ANOTHER_SERVER,  # behind the same name there may be another by then
    Reason.MAXIMUM_CONNECT_TIME,
}


def delays(chance: Callable[[], float] = random) -> Iterator[float]:
    """Yield how long to wait before each try: 1 s, then twice as long up to a limit, less up to a quarter by chance."""
    seconds = 1.0
    while True:
        yield seconds * (1 - chance() / 4)
        seconds = min(2 * seconds, LONGEST_S)


def is_passing(error: Unavailable) -> bool:
    """Return whether it makes sense to try again."""
    return not isinstance(error, Refused) or error.reason in _PASSING


async def keep_connected(
    target: Target, work: Callable[[AsyncClient], Awaitable[T]], handler: Handler | None = None, *, again: bool = True
) -> T:
    """Connect and do the work; with `again`, connect and do it again whenever the connection is lost.

    If the first connection can't be made, that is an error at once. What is in flight is sent again on the next
    connection. A server that refers to another one is followed there at once, except by WebSocket. Losses, references
    and reconnects are reported on standard error.
    """
    client = AsyncClient(target.connect, handler)
    client.on_packet = _tell_of if target.debug and not target.quiet else None

    def tell(what: str) -> None:
        if not target.quiet:
            print(f"everlog: {what}", file=sys.stderr)

    was_open = False
    waits = delays()
    loop, way = asyncio.get_running_loop(), Way((target.host, target.port), (target.host, target.port))
    while True:
        began = loop.time()
        try:
            await client.open(*way.place, target.tls, target.bind, target.websocket)
            if was_open:
                tell("connected again")
            was_open = True
            waits = delays()
            return await work(client)
        except Unavailable as error:
            way.served(loop.time() - began)
            if target.websocket is None and way.follow(error):
                wait_s = 0.0
                tell(f"{visible_line(str(error))}; going on at {visible_line(way.place[0])}:{way.place[1]}")
            elif again and was_open and is_passing(error):
                wait_s = next(waits)
                way.lost()
                tell(f"{visible_line(str(error))}; trying again in {wait_s:.1f} s")
            else:
                raise
        finally:
            await client.close()
        await asyncio.sleep(wait_s)


def _tell_of(direction: str, what: str) -> None:
    print(f"everlog: {direction} {visible_line(what)}", file=sys.stderr)
