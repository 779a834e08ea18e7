"""Publishing kept messages again: in order, so many in flight, at a speed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from everlog.base import EverlogError, Unavailable, UsageError
from everlog.cli.client import Client
from everlog.cli.dial import Call
from everlog.cli.message import Message
from everlog.mqtt import Properties
from everlog.topics import check_topic_name

if TYPE_CHECKING:
    from everlog.spark.jobs import Kept

POSITION = "everlog-position"  # user properties of a marked message
TIME = "everlog-time"


@dataclass(frozen=True, slots=True)
class Manner:
    """How to publish: how much faster than it came (None: at once), where to, and what is changed."""

    speed: float | None = None
    prefix: str = ""
    qos: int | None = 1  # None: as it was
    retain: bool = False
    mark: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many were sent and how many of them refused, and the last one."""

    sent: int
    refused: int
    last: "Kept | None"


def parse_speed(text: str) -> float | None:
    """`max`, or a factor as 1.0 or 10x."""
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed {text!r} is no speed", hint="write max, 1.0 or 10x")
    return speed


def check_prefix(prefix: str) -> str:
    """A prefix that makes a topic of a topic."""
    try:
        check_topic_name(f"{prefix}x")
    except EverlogError as error:
        raise UsageError(f"--prefix {prefix!r}: {error.message}", hint="for example replay/") from None
    return prefix


async def publish_again(
    call: Call, chunks: "Iterator[list[Kept]]", manner: Manner, tell: Callable[[int], None]
) -> Outcome:
    """Publish what the chunks hold, one after the other on one connection; every one is acknowledged at the end."""
    client = Client(call.connect)
    pace = Pace(manner.speed)
    sent, last = 0, None
    try:
        await client.open(call.host, call.port, call.tls)
        nothing: list[Kept] = []
        while chunk := await asyncio.to_thread(next, chunks, nothing):
            for kept in chunk:
                await pace.wait_for(kept.time_us)
                await _publish(client, kept, manner)
                sent, last = sent + 1, kept
            tell(sent)
        await client.settle()
    except EverlogError as error:
        where = f"after {sent} messages, the last of shard {last.shard} offset {last.offset}" if last else "at once"
        raise Unavailable(
            f"{error.message}, {where}", hint=error.hint or "some of those may not have arrived"
        ) from error
    finally:
        await client.close()
    return Outcome(sent, len(client.refused), last)


async def _publish(client: Client, kept: "Kept", manner: Manner) -> None:
    qos = kept.qos if manner.qos is None else manner.qos
    properties = _properties(kept, manner.mark) if client.version == 5 else Properties()
    await client.publish(manner.prefix + kept.topic, kept.payload, qos, manner.retain and kept.retain, properties)


def _properties(kept: "Kept", mark: bool) -> Properties:
    own = Message(b"", b"", 0, False, 0, kept.properties).properties
    if not mark:
        return own
    marks = ((POSITION, f"{kept.shard}:{kept.offset}"), (TIME, str(kept.time_us)))
    return replace(own, user_properties=(*own.user_properties, *marks))


class Pace:
    """Waits until a message is due, counted from the first; without a speed everything is due at once."""

    def __init__(
        self,
        speed: float | None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._speed = speed
        self._now = now
        self._sleep = sleep
        self._first_us: int | None = None
        self._began = 0.0

    async def wait_for(self, time_us: int) -> None:
        """Come back when a message of that time is due."""
        if self._speed is None:
            return
        if self._first_us is None:
            self._first_us, self._began = time_us, self._now()
        due = self._began + (time_us - self._first_us) / 1e6 / self._speed
        if (wait_s := due - self._now()) > 0:
            await self._sleep(wait_s)
