"""`everlog replay`: print or publish again what was published in the past."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import typer

from everlog.base import PeerError, UsageError
from everlog.cli import dial
from everlog.cli.client import Client
from everlog.cli.entries import Entry
from everlog.cli.formats import Formatter, formatter
from everlog.cli.past import Extent, Pace, exact_time, own_properties, parse_speed
from everlog.cli.pastsource import BrokerSource, Source, StoreSource, check_filters, opened
from everlog.mqtt import Connect
from everlog.store import Begin, BeginKind, parse_begin, show_positions


def replay(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="Which topics.")],
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="earliest, -1h, 2026-01-31T12:00:00Z, or a position 0:1234.")
    ] = "earliest",
    to: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Stop before; now if not given.")] = None,
    speed: Annotated[str, typer.Option("--speed", metavar="SPEED", help="max, original, or a factor: 10x.")] = "max",
    limit: Annotated[int | None, typer.Option("--limit", "-C", metavar="COUNT", min=1, help="At most so many.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIR", help="Read a data directory, not a broker.")
    ] = None,
    to_broker: Annotated[
        str | None, typer.Option("--to-broker", metavar="HOST:PORT", help="Publish there instead of printing.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="In front of the published topics.")] = "",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic in front of the payload.")] = False,
    template: Annotated[str | None, typer.Option("-F", metavar="FORMAT", help="As '%t %p'; see everlog sub.")] = None,
    no_newline: Annotated[bool, typer.Option("-N", help="No newline behind a message.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    qos: Annotated[
        int | None, typer.Option("-q", "--qos", min=0, max=2, metavar="QOS", help="At most; as they were, published.")
    ] = None,
    host: dial.Host = "localhost",
    port: dial.Port = None,
    client_id: dial.ClientId = None,
    username: dial.User = None,
    pw: dial.Password = None,
    cafile: dial.CaFile = None,
    os_certs: dial.CaSystem = False,
    cert: dial.Cert = None,
    key: dial.CertKey = None,
    insecure: dial.Insecure = False,
) -> int:
    """Print the messages that were published in the past, oldest first, or publish them again."""
    now_us = time.time_ns() // 1000
    starts, ends = parse_begin(begin, now_us), _parse_to(to, now_us)
    _check(filters)
    if prefix and to_broker is None:
        raise UsageError("--prefix is for topics that are published", hint="give --to-broker too")
    call = dial.plan_call(
        host=host,
        port=port,
        url=None,
        client_id=client_id,
        user=username,
        password=pw,
        version="5",
        durable=False,
        expiry=None,
        keep_alive=60,
        cafile=cafile,
        system_cas=os_certs,
        cert=cert,
        cert_key=key,
        insecure=insecure,
        will=None,
    )
    level = qos if qos is not None else 2 if to_broker is not None else 0
    source: Source = (
        StoreSource(str(data), filters, starts, ends)
        if data is not None
        else BrokerSource(call, filters, begin, ends, level)
    )
    form = formatter(verbose=verbose, template=template, newline=not no_newline)
    sink: Sink = Printing(form) if to_broker is None else Publishing(*_address(to_broker), prefix, level)
    return asyncio.run(run(source, sink, Pace(parse_speed(speed)), limit, show_bar=not quiet and sys.stderr.isatty()))


class Sink(Protocol):
    """Where messages go."""

    async def open(self) -> None: ...

    async def put(self, entry: Entry) -> None: ...

    async def settle(self) -> int:
        """All is where it should be; how many were refused."""

    def flush(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Printing:
    """Standard output; the time that a format shows is the message's own."""

    form: Formatter
    _lines: list[bytes] = field(default_factory=list)

    async def open(self) -> None:
        """It is."""

    async def put(self, entry: Entry) -> None:
        """One message, written at the next flush."""
        self._lines.append(self.form(entry.message, entry.time_us / 1e6))

    def flush(self) -> None:
        """Write what has gathered."""
        sys.stdout.buffer.write(b"".join(self._lines))
        sys.stdout.buffer.flush()
        self._lines.clear()

    async def settle(self) -> int:
        """Nothing is ever refused."""
        self.flush()
        return 0

    async def close(self) -> None:
        """It stays."""


@dataclass(slots=True)
class Publishing:
    """Another broker, or the same under other topics."""

    host: str
    port: int
    prefix: str
    qos: int
    _client: Client = field(init=False)

    async def open(self) -> None:
        """Connect."""
        self._client = Client(Connect(5, "", keep_alive=60))
        await self._client.open(self.host, self.port)

    async def put(self, entry: Entry) -> None:
        """One message as it was published."""
        message = entry.message
        topic = self.prefix + message.topic.decode()
        qos = min(message.qos, self.qos)
        await self._client.publish(topic, message.payload, qos, message.retain, own_properties(message))

    def flush(self) -> None:
        """The client does so by itself."""

    async def settle(self) -> int:
        """Wait for every acknowledgement."""
        await self._client.settle()
        return len(self._client.refused)

    async def close(self) -> None:
        """Leave."""
        if hasattr(self, "_client"):
            await self._client.close()


async def run(source: Source, sink: Sink, pace: Pace, limit: int | None, *, show_bar: bool) -> int:
    """From the source to the sink until history is over; 1 when something was refused."""
    async with AsyncExitStack() as parts:
        await opened(source, parts)
        parts.push_async_callback(sink.close)
        await sink.open()
        with ExitStack() as shown:
            bar = Bar(source.extent, shown) if show_bar else None
            try:
                await _pass_on(source, sink, pace, limit, bar)
                refused = await sink.settle()
            except (asyncio.CancelledError, KeyboardInterrupt):
                sink.flush()
                _say_where(source.extent)
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
    """How far it is, on standard error."""

    def __init__(self, extent: Extent, shown: ExitStack) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._extent = extent
        self._all = extent.left
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = shown.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        self._task = self._progress.add_task("replay", total=self._all or None)

    def show(self, time_us: int) -> None:
        """Messages up to this time are through."""
        done = self._all - self._extent.left
        self._progress.update(self._task, completed=done, description=exact_time(time_us)[:19])


def _say_where(extent: Extent) -> None:
    print(f"everlog: go on with --from {show_positions(extent.begins)}", file=sys.stderr)


def _parse_to(text: str | None, now_us: int) -> Begin | None:
    if text is None or text in ("now", "latest"):
        return None
    found = parse_begin(text, now_us)
    if found.kind is BeginKind.EARLIEST:
        raise UsageError("--to earliest leaves nothing", hint="give a time or a position, or none for now")
    return found


def _check(filters: list[str]) -> None:
    try:
        check_filters(filters)
    except PeerError as error:
        raise UsageError(f"no topic filter: {error.message}", hint="write it like sensors/#") from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        host, port = text, "1883"
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"--to-broker {text!r} is no address", hint="write it like localhost:1883")
    return host.strip("[]"), int(port)
