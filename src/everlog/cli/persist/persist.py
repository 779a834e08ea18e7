"""`everlog persist`: servers of streams and key-value stores."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from everlog.app import parse_bytes
from everlog.base import UsageError
from everlog.cli.option_groups import with_options
from everlog.cli.persist.bus_options import Place, parse_place
from everlog.cli.persist.printer import print_json
from everlog.cli.table_printer import print_table
from everlog.client import Client

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Servers of streams and key-value stores.")


@app.command()
def serve(
    data: Annotated[Path, typer.Option("-d", "--data", metavar="DIR", help="Where they are kept.")],
    bus: Annotated[str, typer.Option("-b", "--bus", metavar="URL", help="mqtt[s]://… or nats://…")],
    shards: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=254, help="State shards, when DIR is new.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="How it calls itself.")] = "",
    bucket: Annotated[
        str | None, typer.Option(metavar="URL", help="Streams go there too: a directory, s3://bucket/prefix, …")
    ] = None,
    local_files: Annotated[
        int, typer.Option(metavar="N", min=0, help="With a bucket: files of a shard that stay here; 0: all.")
    ] = 0,
    local_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="The same in bytes, as they are packed, such as 10GiB; 0: all.")
    ] = "0",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="text or json.")] = "text",
) -> int:
    """Serve the streams of a directory on a bus. `everlog serve` does so by itself, on its own broker."""
    if log_level not in ("debug", "info", "warning", "error") or log_format not in ("text", "json"):
        raise UsageError("no such log level or format", hint="debug, info, warning or error; text or json")
    room: Any = importlib.import_module("everlog.app.persist_serve")  # heavy, so only here
    place = (bucket, local_files, parse_bytes(local_bytes))
    return int(room.run_persist(room.PersistOptions(str(data), bus, shards, name, log_level, log_format, *place)))


@app.command()
@with_options("place", parse_place)
def status(*, place: Place) -> int:
    """List the servers on a bus, with what they own and do."""

    async def work(client: Client) -> int:
        servers = await client.servers()
        for found in sorted(servers, key=lambda one: one.server) if place.as_json else ():
            print_json(msgspec.to_builtins(found))
        if place.as_json:
            return 0
        table = Table("server", "version", "shards", "owns", "in use", "requests", "under way", "followed streams")
        for found in sorted(servers, key=lambda one: one.server):
            table.add_row(
                found.server,
                found.version,
                str(found.shards),
                _ranges(found.owned),
                _ranges(found.opened),
                f"{found.requests:,}",
                str(found.under_way),
                str(found.followed),
            )
        print_table(table)
        owned = [shard for found in servers for shard in found.owned]
        if missing := set(range(servers[0].shards if servers else 0)) - set(owned):
            print(f"everlog: nobody serves shards {_ranges(sorted(missing))}", file=sys.stderr)
            return 1
        return 0

    return place.run(work)


def _ranges(numbers: list[int]) -> str:
    """Return numbers in order as ranges, such as `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in parts) or "-"
