"""`everlog replay`: print or publish again what was published in the past."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import typer

from everlog.base import UsageError
from everlog.cli.begin_words import exact_begin
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import OF_PUB_AND_SUB, Target, parse_filter_option, parse_target
from everlog.cli.client.log_entry import Entry
from everlog.cli.client.message_format import Formatter, formatter
from everlog.cli.client.pace import Pace, parse_speed
from everlog.cli.client.replay_extent import Extent, exact_time, own_properties
from everlog.cli.client.replay_source import BrokerSource, Source, StoreSource
from everlog.cli.option_groups import with_options
from everlog.cli.visible import visible_line
from everlog.mqtt import Connect
from everlog.store import Begin, BeginKind, parse_begin, show_positions


@with_options("target", parse_target, leave_out=(*OF_PUB_AND_SUB, "protocol_version"))
def replay(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="Which topics.")],
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="earliest, -1h, 2026-01-31T12:00:00Z, or a position 0:1234.")
    ] = "earliest",
    to: Annotated[str | None, typer.Option(metavar="WHEN", help="Stop before; now if not given.")] = None,
    speed: Annotated[str, typer.Option(metavar="SPEED", help="max, original, or a factor: 10x.")] = "max",
    limit: Annotated[
        int | None, typer.Option("--limit", "-C", metavar="COUNT", min=1, help="At most this many.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIR", help="Read a data directory, not a broker.")
    ] = None,
    to_broker: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Publish there instead of printing.")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="In front of the published topics.")] = "",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic in front of the payload.")] = False,
    template: Annotated[
        str | None, typer.Option("-F", metavar="FORMAT", help="Such as '%t %p'; see everlog sub.")
    ] = None,
    no_newline: Annotated[bool, typer.Option("-N", help="No newline after a message.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    qos: Annotated[
        int | None,
        typer.Option("-q", "--qos", min=0, max=2, metavar="QOS", help="At most this; 2, but 0 to print without -F."),
    ] = None,
    *,
    target: Target,
) -> int:
    """Print the messages that were published in the past, oldest first, or publish them again."""
    now_us = time.time_ns() // 1000
    begin = exact_begin(begin)
    starts, ends = parse_begin(begin, now_us), _parse_to(to, now_us)
    for text in filters:
        if parse_filter_option(text).group is not None:
            raise UsageError(f"{text} is a shared subscription", hint="give the filter behind $share/<group>/")
    if prefix and to_broker is None:
        raise UsageError("--prefix is for topics that are published", hint="give --to-broker too")
    shows_qos = template is not None  # a subscription at QoS 0 is faster, and is sent everything as QoS 0
    level = qos if qos is not None else 2 if to_broker is not None or shows_qos else 0
    source: Source = (
        StoreSource(str(data), filters, starts, ends)
        if data is not None
        else BrokerSource(target, filters, begin, ends, level)
    )
    form = formatter(verbose=verbose, template=template, newline=not no_newline)
    sink: Sink = PrintSink(form) if to_broker is None else PublishSink(*_address(to_broker), prefix, level)
    return asyncio.run(run(source, sink, Pace(parse_speed(speed)), limit, show_bar=not quiet and sys.stderr.isatty()))


class Sink(Protocol):
    """Where messages go."""

    async def open(self) -> None: ...

    async def put(self, entry: Entry) -> None: ...

    async def settle(self) -> int:
        """Wait until every message has arrived; returns how many were refused."""

    def flush(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class PrintSink:
    """Standard output; the time that a format shows is the message's own."""

    form: Formatter
    _lines: list[bytes] = field(default_factory=list)

    async def open(self) -> None:
        """Do nothing: standard output is open."""

    async def put(self, entry: Entry) -> None:
        """Format a message; the next flush writes it."""
        self._lines.append(self.form(entry.message, entry.time_us * 1000))

    def flush(self) -> None:
        """Write what has gathered."""
        sys.stdout.buffer.write(b"".join(self._lines))
        sys.stdout.buffer.flush()
        self._lines.clear()

    async def settle(self) -> int:
        """Write the rest; nothing is ever refused."""
        self.flush()
        return 0

    async def close(self) -> None:
        """Do nothing: standard output stays open."""


class PublishSink:
    """Another broker, or the same under other topics."""

    def __init__(self, host: str, port: int, prefix: str, qos: int) -> None:
        self._host, self._port, self._prefix, self._qos = host, port, prefix, qos
        self._client = AsyncClient(Connect(5, "", keep_alive=60))

    async def open(self) -> None:
        """Connect."""
        await self._client.open(self._host, self._port)

    async def put(self, entry: Entry) -> None:
        """Publish a message as it was."""
        message = entry.message
        topic = self._prefix + message.topic.decode()
        qos = min(message.qos, self._qos)
        await self._client.publish(topic, message.payload, qos, message.retain, own_properties(message))

    def flush(self) -> None:
        """Do nothing: the client flushes by itself."""

    async def settle(self) -> int:
        """Wait for every acknowledgement; returns how many messages were refused."""
        await self._client.settle()
        return len(self._client.refused)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


async def run(source: Source, sink: Sink, pace: Pace, limit: int | None, *, show_bar: bool) -> int:
    """Pass messages from the source to the sink until history is over; returns 1 if any were refused."""
    async with AsyncExitStack() as parts:
        for part in (source, sink):
            parts.push_async_callback(part.close)
            await part.open()
        for note in source.notes:
            print(f"everlog: {visible_line(note)}", file=sys.stderr)
        with ExitStack() as shown:
            bar = Bar(source.extent, shown) if show_bar else None
            try:
                await _pass_on(source, sink, pace, limit, bar)
                refused = await sink.settle()
            except (asyncio.CancelledError, KeyboardInterrupt):
                sink.flush()
                print(f"everlog: go on with --from {show_positions(source.extent.begins)}", file=sys.stderr)
                raise
    if refused:
        print(f"everlog: {refused} messages were refused", file=sys.stderr)
    return int(refused > 0)


async def _pass_on(source: Source, sink: Sink, pace: Pace, limit: int | None, bar: "Bar | None") -> None:
    extent = source.extent
    async for portion in source.portions():
        for entry in portion:
            if not extent.takes(entry):
                continue
            await pace.wait_for(entry.time_us, sink.flush)
            await sink.put(entry)
            extent.passed(entry)
            if limit is not None:
                limit -= 1
                if limit == 0:
                    return
        sink.flush()
        if bar is not None and portion:
            bar.show(portion[-1].time_us)
        if not extent.left:
            return


class Bar:
    """A progress bar on standard error."""

    def __init__(self, extent: Extent, shown: ExitStack) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._extent = extent
        self._all = extent.left
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = shown.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        self._task = self._progress.add_task("replay", total=self._all or None)

    def show(self, time_us: int) -> None:
        """Show how much is done, and the time that was reached."""
        done = self._all - self._extent.left
        self._progress.update(self._task, completed=done, description=exact_time(time_us)[:19])


def _parse_to(text: str | None, now_us: int) -> Begin | None:
    if text is None or text in ("now", "latest"):
        return None
    found = parse_begin(exact_begin(text), now_us)
    if found.kind is BeginKind.EARLIEST:
        raise UsageError("--to earliest leaves nothing", hint="give a time or a position, or none for now")
    return found


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        host, port = text, "1883"
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"--to-broker {text!r} is not an address", hint="write it like localhost:1883")
    return host.strip("[]"), int(port)
