"""`everlog cluster`: several brokers with one history, for who operates them."""

import os
import sys
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from everlog.app import load
from everlog.base import UsageError
from everlog.cli.table_printer import cell, print_json, print_table
from everlog.cluster import (
    Carried,
    ClusterDatabase,
    ClusterStatus,
    drain_broker,
    export_directory,
    find_cluster,
    import_directory,
    init_cluster,
    lift_restored,
    make_reader,
    read_status,
)
from everlog.commitlog import RealDisk
from everlog.tiering import open_bucket

app = typer.Typer(rich_markup_mode=None, help="Several brokers with one history.")

Url: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="URL", help="postgresql://…; else cluster.url of the settings.")
]
Schema: TypeAlias = Annotated[str | None, typer.Option(metavar="NAME", help="The schema of its tables; everlog.")]
Config: TypeAlias = Annotated[str | None, typer.Option(metavar="FILE", help="Settings; else everlog.toml here.")]
BucketPlace: TypeAlias = Annotated[
    str | None, typer.Option(metavar="PLACE", help="s3://bucket/prefix, or a directory that all brokers share.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


@app.command()
def init(
    url: Url = None,
    bucket: BucketPlace = None,
    shards: Annotated[int, typer.Option(metavar="N", help="For ever: some for each core that will ever serve.")] = 16,
    reader: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Make this role of the database one that may read, for Spark.")
    ] = None,
    schema: Schema = None,
    config: Config = None,
) -> int:
    """Make the tables of a cluster, and a bucket its own; what is there stays."""
    database, place = _whole_place(url, schema, bucket, config)
    store = init_cluster(database, open_bucket(place), shards)
    print(f"the cluster {store.identity:x} has {store.shards} shards; start brokers: everlog serve --cluster URL")
    if reader is not None:
        print(f"{reader} may read its messages, with {make_reader(database, reader)} connections at most")
    return 0


@app.command()
def status(url: Url = None, as_json: AsJson = False, schema: Schema = None, config: Config = None) -> int:
    """Show brokers, shards, sessions and standbys; exit code 1 if a shard has no owner."""
    database, _ = _place(url, schema, None, config)
    found = read_status(database, find_cluster(database))
    if as_json:
        print_json([msgspec.to_builtins(found)])
    else:
        _print(found)
    return 1 if found.unowned else 0


@app.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the broker, as `everlog cluster status` shows it.")],
    url: Url = None,
    schema: Schema = None,
    config: Config = None,
) -> int:
    """Have a broker hand its shards and sessions over to the others, and end."""
    database, _ = _place(url, schema, None, config)
    find_cluster(database)
    incarnation = drain_broker(database, name)
    print(f"{name} (incarnation {incarnation}) hands over what it has, and ends then")
    return 0


@app.command()
def restored(
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", help="It was restored, and all brokers are stopped.")] = False,
    schema: Schema = None,
    config: Config = None,
) -> int:
    """Make a database that was restored from a backup fit for use: offsets and epochs go on far ahead."""
    database, _ = _place(url, schema, None, config)
    if not yes:
        raise UsageError("every shard will go on 2^40 offsets later, for ever", hint="after a restore only: say --yes")
    table = Table("shard", "ended at", "goes on at", "epoch", box=None, header_style="bold")
    for one in lift_restored(database):
        table.add_row(*map(str, (one.shard, one.end, one.goes_on, one.epoch)))
    print_table(table)
    return 0


@app.command("import")
def import_(
    data_dir: Annotated[str, typer.Argument(metavar="DATA_DIR", help="Of a single broker, which is stopped.")],
    url: Url = None,
    bucket: BucketPlace = None,
    schema: Schema = None,
    config: Config = None,
) -> int:
    """Make a cluster from the data directory of a single broker: history, sessions and retained messages."""
    database, place = _whole_place(url, schema, bucket, config)
    with _Bar() as bar:
        carried = import_directory(data_dir, database, open_bucket(place), RealDisk(), bar.tell)
    print(f"the cluster has {_say(carried)}; start brokers: everlog serve --cluster URL")
    if os.path.isdir(os.path.join(data_dir, "persist")):
        print("streams and key-value stores are no part of it: serve them from there (everlog persist serve)")
    return 0


@app.command("export")
def export(
    url: Annotated[str, typer.Argument(metavar="URL", help="postgresql://…; its brokers are stopped.")],
    data_dir: Annotated[str, typer.Argument(metavar="DATA_DIR", help="To make: `everlog serve --data` opens it.")],
    bucket: BucketPlace = None,
    schema: Schema = None,
    config: Config = None,
) -> int:
    """Make the data directory of a single broker from a cluster: history, sessions and retained messages."""
    if bucket is None:
        bucket = load(config).settings.cluster.bucket
    database, place = _place(url, schema, bucket, config)
    if place is None:
        raise UsageError("which bucket?", hint="--bucket, the one that the cluster was made with")
    with _Bar() as bar:
        carried = export_directory(database, open_bucket(place), data_dir, RealDisk(), bar.tell)
    shards = f" --shards {carried.shards}" if carried.shards > 1 else ""
    print(f"{data_dir} has {_say(carried)}; start it: everlog serve --data {data_dir}{shards}")
    return 0


class _Bar:
    """A progress bar on standard error, where somebody watches."""

    def __init__(self) -> None:
        self._progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)


def _say(carried: Carried) -> str:
    said = f"{carried.messages} messages in {carried.shards} shards, {carried.sessions} sessions, "
    said += f"{carried.retained} retained messages and {carried.groups} shared groups"
    if carried.owed_retained:
        said += f" ({carried.owed_retained} sessions were owed retained messages: they get them when they subscribe)"
    return said


def _place(
    url: str | None, schema: str | None, bucket: str | None, config: str | None
) -> tuple[ClusterDatabase, str | None]:
    if url is None:
        cluster = load(config).settings.cluster
        url, schema, bucket = cluster.url, schema or cluster.schema, bucket or cluster.bucket
    if url is None:
        raise UsageError("which cluster?", hint="give its URL, postgresql://…, or cluster.url in the settings")
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"{url!r} is not the address of PostgreSQL", hint="write it like postgresql://HOST/NAME")
    return ClusterDatabase(url, schema or "everlog"), bucket


def _whole_place(
    url: str | None, schema: str | None, bucket: str | None, config: str | None
) -> tuple[ClusterDatabase, str]:
    """Return the place of a cluster that is to be made, which needs a bucket."""
    database, place = _place(url, schema, bucket, config)
    if place is None:
        raise UsageError("a cluster needs a bucket", hint="--bucket s3://BUCKET/PREFIX, or a directory that all share")
    return database, place


def _print(found: ClusterStatus) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("broker", "incarnation", "link", "shards", "sessions", ""):
        table.add_column(name, justify="right" if name in ("incarnation", "shards", "sessions") else "left")
    for one in found.brokers:
        notes = [word for word, is_so in (("coordinates", one.coordinates), ("is drained", one.draining)) if is_so]
        numbers = (str(one.incarnation), cell(one.link), str(one.shards), str(one.sessions))
        table.add_row(cell(one.name), *numbers, ", ".join(notes))
    print_table(table)
    print(f"{found.owned} of {found.shards} shards have an owner", end="")
    print(f"; without: {', '.join(map(str, found.unowned))}" if found.unowned else "")
    print(_say_replication(found))
    if found.sessions_without_broker:
        print(f"{found.sessions_without_broker} sessions are held by no living broker: any takes them on CONNECT")


def _say_replication(found: ClusterStatus) -> str:
    factor, demanded, present = found.replication_factor, found.standbys_demanded, found.standbys_present
    said = f"replication factor {factor}: what is acknowledged is on the primary"
    if not demanded:
        return f"{said} alone; set synchronous_standby_names to have it on standbys"
    said += f" and on {demanded} standby{'s' if demanded > 1 else ''}"
    if present is None:
        return f"{said}; how many are there is not told to this role (grant pg_monitor)"
    return f"{said}, {present} are there" + (": commits wait" if present < demanded else "")
