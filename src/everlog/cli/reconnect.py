"""A client that comes back: what is done again when the connection is lost, when, and what ends it for good."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from random import random
from typing import TypeVar

from everlog.base import Unavailable
from everlog.cli.client import Client, Handler, Refused
from everlog.cli.dial import Call
from everlog.mqtt import Reason

T = TypeVar("T")

LONGEST_S = 30.0  # between two tries

# What a broker says that is over by itself, or at another try; any other reason would be said again.
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
    Reason.MAXIMUM_CONNECT_TIME,
}


def delays(chance: Callable[[], float] = random) -> Iterator[float]:
    """1 s, then twice as long each time up to the longest, each shortened by up to a quarter so that many part."""
    seconds = 1.0
    while True:
        yield seconds * (1 - chance() / 4)
        seconds = min(2 * seconds, LONGEST_S)


def is_passing(error: Unavailable) -> bool:
    """Whether it makes sense to try again."""
    return not isinstance(error, Refused) or error.reason in _PASSING


async def keep_connected(
    call: Call, work: Callable[[Client], Awaitable[T]], handler: Handler | None = None, *, again: bool = True
) -> T:
    """Connect and do the work; with `again`, whenever the connection is lost, connect and do it again.

    What the first connection could not do is an error at once. A new connection takes over what the one before has in
    flight. What is lost and done about it is said on standard error.
    """
    client = Client(call.connect, handler)
    was_open = False
    waits = delays()
    while True:
        try:
            await client.open(call.host, call.port, call.tls)
            if was_open:
                print("everlog: connected again", file=sys.stderr)
            was_open = True
            waits = delays()
            return await work(client)
        except Unavailable as error:
            if not (again and was_open and is_passing(error)):
                raise
            wait_s = next(waits)
            print(f"everlog: {error}; trying again in {wait_s:.1f} s", file=sys.stderr)
        finally:
            await client.close()
        await asyncio.sleep(wait_s)
        client = client.successor()
