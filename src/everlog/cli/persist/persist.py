"""`everlog persist`: servers of streams and key-value stores."""

import importlib
import sys
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from everlog.app import load
from everlog.base import UsageError
from everlog.bus import Welcome
from everlog.cli.option_groups import with_options
from everlog.cli.persist.bucket import restore, verify
from everlog.cli.persist.bus_options import Place, parse_place
from everlog.cli.persist.printer import print_json
from everlog.cli.table_printer import print_table
from everlog.client import Client
from everlog.persist import drain_server

app = typer.Typer(rich_markup_mode=None, help="Servers of streams and key-value stores.")

app.command()(verify)
app.command()(restore)


@app.command()
def serve(
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Settings; else everlog.toml here.")] = None,
    data: Annotated[
        str | None, typer.Option("-d", "--data", metavar="DIR", help="Where they are kept; with --storage, a cache.")
    ] = None,
    bus: Annotated[str | None, typer.Option("-b", "--bus", metavar="URL", help="mqtt[s]://… or nats://…")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "-s", "--storage", metavar="PLACE", help="What servers share: a directory, s3://… or postgresql://…"
        ),
    ] = None,
    shards: Annotated[str | None, typer.Option(metavar="N", help="State shards, when it is new.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="How it calls itself.")] = None,
    patience: Annotated[
        str | None, typer.Option(metavar="TIME", help="After so long without a beat a server is replaced: 5s.")
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="URL", help="Streams go there too: a directory, s3://bucket/prefix, …")
    ] = None,
    local_files: Annotated[
        str | None, typer.Option(metavar="N", help="With a bucket: files of a shard that stay here; all.")
    ] = None,
    local_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The same in bytes, as they are packed, such as 10GiB.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
) -> int:
    """Serve streams on a bus, alone or together with others on shared storage. `everlog serve` does so by itself."""
    named = {
        "--data": ("persist.data", data),
        "--bus": ("persist.bus", bus),
        "--storage": ("persist.storage", storage),
        "--shards": ("persist.shards", shards),
        "--name": ("persist.name", name),
        "--patience": ("persist.patience", patience),
        "--bucket": ("persist.bucket", bucket),
        "--local-files": ("persist.local_files", local_files),
        "--local-bytes": ("persist.local_bytes", local_bytes),
        "--log-level": ("logging.level", log_level),
        "--log-format": ("logging.format", log_format),
    }
    loaded = load(config, flags=[(flag, path, value) for flag, (path, value) in named.items()])
    room: Any = importlib.import_module("everlog.app.persist_serve")  # heavy, so only here
    return int(room.run_persist(loaded.settings))


@app.command()
@with_options("place", parse_place)
def status(*, place: Place) -> int:
    """List the servers on a bus, with what they own and do, and who owns each shard."""

    async def work(client: Client) -> int:
        servers = sorted(await client.servers(), key=lambda one: one.server)
        if place.as_json:
            for found in servers:
                print_json(msgspec.to_builtins(found, str_keys=True))
        else:
            _print_servers(servers)
        owned = [shard for found in servers for shard in found.owned]
        if missing := set(range(servers[0].shards if servers else 0)) - set(owned):
            print(f"everlog: nobody serves shards {_ranges(sorted(missing))}", file=sys.stderr)
            return 1
        return 0

    return place.run(work)


def _print_servers(servers: list[Welcome]) -> None:
    table = Table("server", "version", "owns", "role", "in use", "requests", "under way", "unfiled", "followed streams")
    for found in servers:
        roles = [name for name, has in (("coordinator", found.is_coordinator), ("draining", found.is_draining)) if has]
        table.add_row(
            found.server,
            found.version,
            _share(found.owned, found.shards),
            ", ".join(roles) or "-",
            _ranges(found.opened),
            f"{found.requests:,}",
            str(found.under_way),
            f"{found.unfiled_rows:,}",
            str(found.followed),
        )
    print_table(table)
    if any(found.epochs for found in servers):
        table = Table("shard", "owner", "epoch")
        for shard, epoch, owner in sorted((s, e, found.server) for found in servers for s, e in found.epochs.items()):
            table.add_row(str(shard), owner, str(epoch))
        print_table(table)


@app.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which server, as `status` calls it.")],
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Settings; else everlog.toml here.")] = None,
    storage: Annotated[
        str | None, typer.Option("-s", "--storage", metavar="PLACE", help="What the servers share.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Give up after this long.")] = 90.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Have a server hand over all that it owns, shard by shard, and end; SIGTERM does the same."""
    place = load(config, flags=[("--storage", "persist.storage", storage)]).settings.persist.storage
    if place is None:
        raise UsageError("which servers?", hint="--storage PLACE, or storage in [persist] of the settings")

    def say(shards: list[int], is_done: bool) -> None:
        if as_json:
            print_json({"server": name, "owned": shards, "done": is_done})
        else:
            print(f"{name} is drained" if is_done else f"{name} has {_ranges(shards)}", flush=True)

    return 0 if drain_server(place, name, timeout, say) else 1


def _share(owned: list[int], shards: int) -> str:
    """Return how many of all shards a server owns, and which: `8 of 16 (0-7)`."""
    return f"{len(owned)} of {shards}" + (f" ({_ranges(owned)})" if 0 < len(owned) < shards else "")


def _ranges(numbers: list[int]) -> str:
    """Return numbers in order as ranges, such as `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in parts) or "-"
