"""`everlog stream`: append to streams, read, delete, follow and download them."""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from everlog.app import parse_seconds
from everlog.base import UsageError
from everlog.cli.option_groups import with_options
from everlog.cli.persist.bucket import restore_one
from everlog.cli.persist.bus_options import (
    FileOption,
    HeaderOptions,
    LevelName,
    LevelOption,
    Name,
    Place,
    Ttl,
    parse_headers,
    parse_place,
)
from everlog.cli.persist.printer import (
    as_line,
    as_members,
    print_item,
    print_json,
    print_line,
    print_value,
    read_value,
    show_time,
)
from everlog.client import CaughtUp, Client, Stream

app = typer.Typer(rich_markup_mode=None, help="Streams: messages that are numbered, kept, read and deleted.")
app.command("restore")(restore_one)
_AT_ONCE = 100  # lines of standard input that are written together


@app.command()
@with_options("place", parse_place)
def append(
    name: Name,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The message.")] = None,
    file: FileOption = None,
    lines: Annotated[bool, typer.Option("-l", "--lines", help="A message for each line of standard input.")] = False,
    header: HeaderOptions = None,
    ttl: Ttl = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A second write with the same id is not done.")
    ] = None,
    level: LevelOption = LevelName.FSYNC,
    *,
    place: Place,
) -> int:
    """Write a message behind the last one, and print its seq."""
    if lines and (value is not None or file is not None or message_id):
        raise UsageError("-l takes its messages from standard input", hint="leave out VALUE, -f and --id")
    options: dict[str, Any] = {"headers": parse_headers(header), "ttl": None if ttl is None else parse_seconds(ttl)}

    async def one(client: Client) -> int:
        done = await client.stream(name).append(read_value(value, file), message_id=message_id, **options)
        if place.as_json:
            print_json({"seq": done.seq, "time": show_time(done.time_us), "duplicate": done.is_duplicate})
        else:
            print(done.seq)
        return 0

    async def many(client: Client) -> int:
        stream, last, count = client.stream(name), 0, 0
        while batch := [line.rstrip(b"\n") for _, line in zip(range(_AT_ONCE), sys.stdin.buffer, strict=False)]:
            for text in batch:
                last = (await stream.append(text, **options)).seq
            count += len(batch)
        if place.as_json:
            print_json({"count": count, "last_seq": last})
        else:
            print(f"{count} messages, the last is {last}")
        return 0

    return place.run(many if lines else one, level)


@app.command()
@with_options("place", parse_place)
def get(name: Name, seq: Annotated[int, typer.Argument(metavar="SEQ", help="Which message.")], *, place: Place) -> int:
    """Print the value of one message."""

    async def work(client: Client) -> int:
        found = await client.stream(name).get(seq)
        if place.as_json:
            print_json(as_members(found))
        else:
            print_value(found.value)
        return 0

    return place.run(work)


@app.command("list")
@with_options("place", parse_place)
def list_messages(
    name: Name,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", help="Begin with this seq.")] = 0,
    end: Annotated[int | None, typer.Option("--to", metavar="SEQ", help="End with this seq.")] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most this many.")] = None,
    *,
    place: Place,
) -> int:
    """List messages: time, seq and the beginning of the value; with --json all of it."""

    async def work(client: Client) -> int:
        async with aclosing(_all(client.stream(name), start, end, limit)) as messages:
            async for message in messages:
                if place.as_json:
                    print_json(as_members(message))
                else:
                    print_line(as_line(message))
        return 0

    return place.run(work)


def _all(stream: Stream, start: int, end: int | None, limit: int | None) -> Any:
    found: AsyncIterator[Any] = stream.get_all(start, end, limit)
    return found


@app.command()
@with_options("place", parse_place)
def delete(
    name: Name,
    seqs: Annotated[list[int] | None, typer.Argument(metavar="SEQ", help="Which messages.")] = None,
    up_to: Annotated[int | None, typer.Option(metavar="SEQ", help="All up to this seq, that one included.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All messages.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="The stream itself, with its limits and queues.")] = False,
    *,
    place: Place,
) -> int:
    """Delete messages, and print how many there were."""
    if [bool(seqs), up_to is not None, everything, remove].count(True) != 1:
        raise UsageError("which messages?", hint="give seqs, --up-to SEQ, --all or --remove")

    async def work(client: Client) -> int:
        stream = client.stream(name)
        if remove:
            await stream.remove()
            _say_deleted(place, None)
        elif seqs:
            _say_deleted(place, await stream.delete(*seqs))
        else:
            _say_deleted(place, await stream.delete_all(up_to))
        return 0

    return place.run(work)


def _say_deleted(place: Place, count: int | None) -> None:
    if place.as_json:
        print_json({"removed": True} if count is None else {"deleted": count})
    else:
        print("removed" if count is None else f"{count} deleted")


@app.command()
@with_options("place", parse_place)
def watch(
    name: Name,
    new: Annotated[bool, typer.Option("--new", help="Only what comes from now on.")] = False,
    count: Annotated[int | None, typer.Option("-C", "--count", min=1, help="End after so many changes.")] = None,
    *,
    place: Place,
) -> int:
    """Print all messages, then every change as it comes."""

    async def work(client: Client) -> int:
        left = -1 if count is None else count
        is_live = not new
        async for item in client.stream(name).watch():
            if isinstance(item, CaughtUp):
                is_live = True
            if is_live:
                print_item(item, place.as_json)
                left -= not isinstance(item, CaughtUp)
            if left == 0:
                break
        return 0

    return place.run(work)


@app.command()
@with_options("place", parse_place)
def info(name: Name, *, place: Place) -> int:
    """Print a stream's or a key-value store's numbers and limits."""

    async def work(client: Client) -> int:
        found = await client.stream(name).info()
        members = {
            "name": found.stream,
            "kind": str(found.kind),
            "messages": found.messages,
            "bytes": found.bytes,
            "first_seq": found.first_seq,
            "last_seq": found.last_seq,
            "last_time": show_time(found.last_time_us) if found.last_time_us else None,
            "queues": found.queues,
            "limits": {key: value for key, value in msgspec.structs.asdict(found.config).items() if value},
        }
        if place.as_json:
            print_json(members)
            return 0
        for key, value in members.items():
            shown = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
            shown = ", ".join(shown) if isinstance(shown, list) else shown
            print_line(f"{key.replace('_', ' '):<10} {'-' if shown in (None, '') else shown}")
        return 0

    return place.run(work)


@app.command()
@with_options("place", parse_place)
def download(
    name: Name, file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")], *, place: Place
) -> int:
    """Write a stream or key-value store, as it is now, to a plain SQLite file."""

    async def work(client: Client) -> int:
        size = await client.stream(name).download(file, progress=None if place.as_json else _progress)
        if place.as_json:
            print_json({"file": str(file), "bytes": size})
        else:
            print(f"{file}: {size:,} bytes")
        return 0

    return place.run(work)


def _progress(size: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{size:,} bytes", end="", file=sys.stderr, flush=True)
