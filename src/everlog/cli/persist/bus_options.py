"""The options that all commands on streams and key-value stores have: where they are, how long to wait, the form."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

import everlog
from everlog.base import UsageError
from everlog.client import DEFAULT_URL, Client, Level, connect

VARIABLE = "EVERLOG_BUS"


class LevelName(StrEnum):
    """How safe a write is when it is acknowledged."""

    MEMORY = "memory"
    FSYNC = "fsync"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the streams are, and how to print what is found."""

    url: str
    data: Path | None
    timeout_s: float
    as_json: bool

    def opened(self, level: LevelName = LevelName.FSYNC) -> AbstractAsyncContextManager[Client]:
        """Return a client for `async with`."""
        chosen = Level[level.name]
        if self.data is not None:
            embedded: AbstractAsyncContextManager[Client] = everlog.open(str(self.data), level=chosen)
            return embedded
        return connect(self.url, level=chosen, timeout_s=self.timeout_s)

    def run(self, work: Callable[[Client], Awaitable[int]], level: LevelName = LevelName.FSYNC) -> int:
        """Do some work with a client, and return the exit code."""

        async def both() -> int:
            async with self.opened(level) as client:
                return await work(client)

        return asyncio.run(both())


def parse_place(
    bus: Annotated[
        str | None,
        typer.Option(
            "-b", "--bus", metavar="URL", help=f"mqtt[s]://… or nats://…, several with commas; else ${VARIABLE}."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A directory that no server runs on, instead of a bus.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Give up after this long.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> Place:
    """Return what the options mean together."""
    if bus is not None and data is not None:
        raise UsageError("--bus and --data are two places", hint="give one of them")
    return Place(bus or os.environ.get(VARIABLE) or DEFAULT_URL, data, timeout, as_json)


Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as team/to-do.")]
LevelOption: TypeAlias = Annotated[LevelName, typer.Option(help="What the answer to a write waits for.")]
Ttl: TypeAlias = Annotated[str | None, typer.Option(metavar="TIME", help="It expires after this long: 10m.")]
HeaderOptions: TypeAlias = Annotated[
    list[str] | None, typer.Option("-H", "--header", metavar="KEY=VALUE", help="Kept with the value; repeatable.")
]
FileOption: TypeAlias = Annotated[
    Path | None, typer.Option("-f", "--file", metavar="FILE", help="The value is this file; - is standard input.")
]


def parse_headers(pairs: list[str] | None) -> dict[str, str] | None:
    """Return `KEY=VALUE` options as a dictionary."""
    headers = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-H {pair!r} is not KEY=VALUE")
        headers[key] = value
    return headers or None
