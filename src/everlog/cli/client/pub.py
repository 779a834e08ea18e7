"""`everlog pub`: publish what is on the command line, in a file or on standard input."""

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from everlog.base import PeerError, UsageError
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import Qos, Target, UserProperties, parse_pairs, parse_target
from everlog.cli.client.packet_properties import merged
from everlog.cli.client.reconnect import keep_connected
from everlog.cli.option_groups import with_options
from everlog.mqtt import NO_PROPERTIES, Properties, RefusedPublish
from everlog.topics import check_topic_name

READ_BYTES = 64 << 10


@with_options("target", parse_target)
def pub(
    topic: Annotated[str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Where to publish.")] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="The payload.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="The payload is this file.")] = None,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="A message for each line of standard input.")
    ] = False,
    whole: Annotated[bool, typer.Option("-s", "--stdin-file", help="The payload is all of standard input.")] = False,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="An empty payload.")] = False,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    repeat: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Publish it this often.")] = 1,
    repeat_delay: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait between the repetitions.")] = 0.0,
    user_property: UserProperties = None,
    qos: Qos = 0,
    *,
    target: Target,
) -> int:
    """Publish messages; the options are those of mosquitto_pub."""
    if (message, file).count(None) + [lines, whole, null].count(False) != 4:
        raise UsageError("no payload, or more than one", hint="give one of -m, -f, -l, -s, -n")
    payloads = Payloads(_lines() if lines else _again(_payload(message, file, whole), repeat, repeat_delay))
    properties = Properties(user_properties=parse_pairs(user_property)) if user_property else NO_PROPERTIES
    properties = merged(properties, target.properties.get("publish", NO_PROPERTIES))
    name = _checked_topic(topic or target.topic)
    return asyncio.run(publish(target, name, payloads, qos, retain, properties, again=lines))


class Payloads:
    """The payloads to publish; what was read and not yet sent outlives a connection."""

    def __init__(self, batches: AsyncIterator[list[bytes]]) -> None:
        self.left: deque[bytes] = deque()
        self._batches = batches
        self._reading: asyncio.Task[list[bytes] | None] | None = None

    async def ready(self, client: AsyncClient) -> bool:
        """Wait until there are some, and return whether there are; raises what the connection fails with."""
        if self.left:
            return True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        reading = self._reading
        reading.add_done_callback(lambda _: client.wake())
        await client.wait_until(reading.done)
        self._reading = None
        batch = reading.result()
        self.left.extend(batch or ())
        return batch is not None

    async def _read(self) -> list[bytes] | None:
        return await anext(self._batches, None)


async def publish(
    target: Target,
    topic: str,
    payloads: Payloads,
    qos: int,
    retain: bool,
    properties: Properties,
    *,
    again: bool = False,
) -> int:
    """Publish every payload over as many connections as that takes, wait for the acks; returns 1 if one was refused."""

    async def work(client: AsyncClient) -> list[RefusedPublish]:
        while await payloads.ready(client):
            while payloads.left:
                await client.publish(topic, payloads.left[0], qos, retain, properties)
                payloads.left.popleft()
        await client.settle()
        return client.refused

    refused = await keep_connected(target, work, again=again)
    for packet, reason in () if target.quiet else refused:
        print(f"everlog: message {packet.packet_id} was refused: {reason.words}", file=sys.stderr)
    return 1 if refused else 0


def _checked_topic(topic: str | None) -> str:
    if topic is None:
        raise UsageError("no topic", hint="give one with -t")
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise UsageError(f"-t {topic!r}: {error.message}", hint="a topic name has no + or #") from None
    return topic


def _payload(message: str | None, file: Path | None, whole: bool) -> bytes:
    if message is not None:
        return os.fsencode(message)  # as it was typed, valid UTF-8 or not
    if whole:
        return sys.stdin.buffer.read()
    try:
        return b"" if file is None else file.read_bytes()
    except OSError as error:
        raise UsageError(f"-f {file} can't be read: {error.strerror}") from error


async def _again(payload: bytes, count: int, delay_s: float) -> AsyncIterator[list[bytes]]:
    for number in range(count):
        if number and delay_s:
            await asyncio.sleep(delay_s)
        yield [payload]


async def _lines() -> AsyncIterator[list[bytes]]:
    """Read standard input as it comes, in lines without their ends; the last line need not have one."""
    rest = b""
    while chunk := await _read(sys.stdin.fileno()):
        *whole, rest = (rest + chunk).split(b"\n")
        yield whole
    if rest:
        yield [rest]


async def _read(file: int) -> bytes:
    """Read some bytes of a file; waits for a pipe or a terminal without blocking the connection."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(file, ready.set)
        except PermissionError:  # /dev/null and its like are always ready
            return os.read(file, READ_BYTES)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(file)
    return os.read(file, READ_BYTES)
