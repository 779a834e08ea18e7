"""Publishing kept messages again: in order, so many in flight, at a speed."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from everlog.base import EverlogError, Unavailable, UsageError
from everlog.cli.client import Client
from everlog.cli.dial import Call
from everlog.cli.message import Message
from everlog.cli.past import Pace, exact_time, parse_speed
from everlog.mqtt import Properties
from everlog.topics import check_topic_name

if TYPE_CHECKING:
    from everlog.spark.jobs import Kept

POSITION, TIME = "everlog-origin", "everlog-origin-time"  # user properties of a marked message


@dataclass(frozen=True, slots=True)
class Manner:
    """How to publish: how much faster than it came (None: at once), where to, and what is changed."""

    speed: float | None = None
    prefix: str = ""
    qos: int = 1
    retain: bool = False
    mark: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many were sent and how many of them refused, and the last one."""

    sent: int
    refused: int
    last: "Kept | None"


def speed_of(text: str) -> float | None:
    """`max`, `original`, or a factor as 1.0 or 10x."""
    return parse_speed(f"{text}x" if text[-1:].isdigit() else text)


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
                await pace.wait_for(kept.time_us, _nothing)
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


def _nothing() -> None:
    """What is to be done before a wait."""


async def _publish(client: Client, kept: "Kept", manner: Manner) -> None:
    properties = _properties(kept, manner.mark) if client.version == 5 else Properties()
    await client.publish(
        manner.prefix + kept.topic, kept.payload, manner.qos, manner.retain and kept.retain, properties
    )


def _properties(kept: "Kept", mark: bool) -> Properties:
    own = Message(b"", b"", 0, False, 0, kept.properties).properties
    if not mark:
        return own
    marks = ((POSITION, f"{kept.shard}:{kept.offset}"), (TIME, exact_time(kept.time_us)))
    return replace(own, user_properties=(*own.user_properties, *marks))
