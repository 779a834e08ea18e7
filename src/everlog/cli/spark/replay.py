"""`everlog spark replay`: publishes a selection of history again, in its order."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from everlog.base import EverlogError, Unavailable, UsageError
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import OF_PUB_AND_SUB, Target, parse_target
from everlog.cli.client.pace import Pace, parse_speed
from everlog.cli.client.replay_extent import exact_time
from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import JobOptions, SettingsData
from everlog.cli.spark.job_session import load, open_session, report_lost
from everlog.mqtt import Message, Properties
from everlog.topics import check_topic_name

if TYPE_CHECKING:
    from everlog.spark.jobs import Kept

POSITION, TIME = "everlog-origin", "everlog-origin-time"  # user properties of a marked message


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How messages are published again."""

    speed: Annotated[str, typer.Option(metavar="SPEED", help="max, original, or a factor: 10x.")] = "max"
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="In front of every topic: replay/")] = ""
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, metavar="QOS", help="For all of them.")] = 1
    retain: Annotated[bool, typer.Option("--retain", help="Retain what was retained.")] = False
    mark: Annotated[bool, typer.Option("--mark", help="Say position and time in user properties.")] = False


@with_options("job", JobOptions, instead={"data": SettingsData})
@with_options("options", PublishOptions)
@with_options("target", parse_target, leave_out=OF_PUB_AND_SUB)
def replay(*, job: JobOptions, options: PublishOptions, target: Target) -> int:
    """Publish a selection of history again, in its order."""
    pace = Pace(parse_speed(options.speed))
    check_prefix(options.prefix)
    with open_session(job) as (spark, bar):
        from everlog.spark.jobs import COLUMNS, in_order, kept_in

        bar.step("counting")
        total = load(spark, job, "offset").count()
        bar.step("sorting")
        chunks = kept_in(in_order(load(spark, job, *COLUMNS), total))
        bar.unwatch()
        bar.step("publishing")
        tell: Callable[[int], None] = lambda sent: bar.count(sent, total)  # noqa: E731
        sent, refused = asyncio.run(publish_again(target, chunks, options, pace, tell))
    print(f"{sent:,} messages published again" + f", {refused:,} refused" * bool(refused))
    report_lost(job)
    return int(bool(refused))


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that makes no topic of a topic."""
    try:
        check_topic_name(f"{prefix}x")
    except EverlogError as error:
        raise UsageError(f"--prefix {prefix!r}: {error.message}", hint="for example replay/") from None


async def publish_again(
    target: Target, chunks: "Iterator[list[Kept]]", options: PublishOptions, pace: Pace, tell: Callable[[int], None]
) -> tuple[int, int]:
    """Publish messages in order and wait for the acks; returns how many were sent, and how many of them refused."""
    client = AsyncClient(target.connect)
    sent, last = 0, None
    try:
        await client.open(target.host, target.port, target.tls)
        nothing: list[Kept] = []
        while chunk := await asyncio.to_thread(next, chunks, nothing):
            for kept in chunk:
                await pace.wait_for(kept.time_us)
                properties = _properties(kept, options.mark) if target.connect.version == 5 else Properties()
                topic, retain = options.prefix + kept.topic, options.retain and kept.retain
                await client.publish(topic, kept.payload, options.qos, retain, properties)
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
    return sent, len(client.refused)


def _properties(kept: "Kept", mark: bool) -> Properties:
    own = Message(b"", b"", 0, False, 0, kept.properties).properties
    if not mark:
        return own
    marks = ((POSITION, f"{kept.shard}:{kept.offset}"), (TIME, exact_time(kept.time_us)))
    return replace(own, user_properties=(*own.user_properties, *marks))
