"""`everlog kv`: key-value stores."""

import sys
from typing import Annotated

import typer

from everlog.app import parse_seconds
from everlog.cli.option_groups import with_options
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
from everlog.cli.persist.printer import as_members, print_item, print_json, print_line, print_value, read_value
from everlog.cli.visible import visible_line
from everlog.client import CaughtUp, Client
from everlog.streams import Written

app = typer.Typer(rich_markup_mode=None, help="Key-value stores: the last value of each key.")
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Value = Annotated[str | None, typer.Argument(metavar="VALUE", help="The value.")]


@app.command()
@with_options("place", parse_place)
def get(name: Name, key: Key, *, place: Place) -> int:
    """Print the value of a key."""

    async def work(client: Client) -> int:
        found = await client.kv(name).get(key)
        if found is None:
            print(visible_line(f"everlog: {name} has no key {key!r} (see: everlog kv keys {name})"), file=sys.stderr)
            return 1
        if place.as_json:
            print_json(as_members(found))
        else:
            print_value(found.value)
        return 0

    return place.run(work)


@app.command()
@with_options("place", parse_place)
def put(
    name: Name,
    key: Key,
    value: Value = None,
    file: FileOption = None,
    header: HeaderOptions = None,
    ttl: Ttl = None,
    revision: Annotated[
        int | None, typer.Option(metavar="N", help="Only if this is its revision; 0: only if it is new.")
    ] = None,
    level: LevelOption = LevelName.FSYNC,
    *,
    place: Place,
) -> int:
    """Give a key a value, and print its revision."""
    headers, seconds = parse_headers(header), None if ttl is None else parse_seconds(ttl)

    async def work(client: Client) -> int:
        store, data = client.kv(name), read_value(value, file)
        if revision is None:
            done = await store.put(key, data, headers=headers, ttl=seconds)
        else:
            done = await store.update(key, data, revision, headers=headers, ttl=seconds)
        return _say(place, done)

    return place.run(work, level)


@app.command()
@with_options("place", parse_place)
def create(
    name: Name,
    key: Key,
    value: Value = None,
    file: FileOption = None,
    header: HeaderOptions = None,
    ttl: Ttl = None,
    level: LevelOption = LevelName.FSYNC,
    *,
    place: Place,
) -> int:
    """Give a key a value if it has none, and print its revision."""
    headers, seconds = parse_headers(header), None if ttl is None else parse_seconds(ttl)

    async def work(client: Client) -> int:
        data = read_value(value, file)
        return _say(place, await client.kv(name).create(key, data, headers=headers, ttl=seconds))

    return place.run(work, level)


def _say(place: Place, done: Written) -> int:
    if place.as_json:
        print_json({"revision": done.seq})
    else:
        print(done.seq)
    return 0


@app.command()
@with_options("place", parse_place)
def delete(
    name: Name,
    key: Key,
    revision: Annotated[int | None, typer.Option(metavar="N", help="Only if this is its revision.")] = None,
    *,
    place: Place,
) -> int:
    """Delete a key."""

    async def work(client: Client) -> int:
        was_there = await client.kv(name).delete(key, revision)
        if place.as_json:
            print_json({"deleted": was_there})
        else:
            print("deleted" if was_there else "it was not there")
        return 0

    return place.run(work)


@app.command()
@with_options("place", parse_place)
def keys(
    name: Name,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only keys that begin so.")] = "",
    values: Annotated[bool, typer.Option("--values", help="With their values.")] = False,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most this many.")] = None,
    *,
    place: Place,
) -> int:
    """List keys in order."""

    async def work(client: Client) -> int:
        store = client.kv(name)
        if not values:
            async for key in store.keys(prefix, limit):
                if place.as_json:
                    print_json({"key": key})
                else:
                    print_line(key, flush=False)
            return 0
        async for entry in store.entries(prefix, limit):
            if place.as_json:
                print_json(as_members(entry))
            else:
                print_line(entry.key, (entry.value or b"").decode(errors="replace"), flush=False)
        return 0

    return place.run(work)


@app.command()
@with_options("place", parse_place)
def watch(
    name: Name,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only keys that begin so.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Only what comes from now on.")] = False,
    count: Annotated[int | None, typer.Option("-C", "--count", min=1, help="End after so many changes.")] = None,
    *,
    place: Place,
) -> int:
    """Print all entries, then every change as it comes."""

    async def work(client: Client) -> int:
        left = -1 if count is None else count
        is_live = not new
        async for item in client.kv(name).watch(prefix):
            if isinstance(item, CaughtUp):
                is_live = True
            if is_live:
                print_item(item, place.as_json)
                left -= not isinstance(item, CaughtUp)
            if left == 0:
                break
        return 0

    return place.run(work)
