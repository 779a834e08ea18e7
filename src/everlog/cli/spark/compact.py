"""`everlog spark compact` and `everlog spark vacuum`: the table of the history, brought up to date and kept small."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as TextTable

from everlog.app import parse_seconds
from everlog.base import UsageError
from everlog.cli.data_directory import data_of_settings
from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import Data, JobOptions, SettingsData, Table, TableOption
from everlog.cli.spark.job_session import data_of, open_session
from everlog.store import read_lake_record

if TYPE_CHECKING:
    from everlog.cli.spark.progress_bar import SparkProgress
    from everlog.spark import Compaction, CompactionOptions, CompactionSummary, Location

LAKE = "lake"  # the table's directory in a data directory, unless told otherwise


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """What the command line asks for."""

    table: Table = None
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is sealed later.")] = False
    every: Annotated[str, typer.Option(metavar="TIME", help="How often --follow looks.")] = "10s"
    codec: Annotated[str, typer.Option(metavar="CODEC", help="zstd or snappy.")] = "zstd"
    retain: Annotated[str | None, typer.Option(metavar="TIME", help="Drop days that ended longer ago: 30d.")] = None
    merge: Annotated[bool, typer.Option("--merge", help="Put small files together.")] = False
    everything: Annotated[bool, typer.Option("--all", help="Take what is committed of open segments too.")] = False
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out what is damaged, and say so, instead of stopping.")
    ] = False
    option: TableOption = None


@with_options("job", JobOptions, leave_out=("topics", "from_", "to"), instead={"data": SettingsData})
@with_options("request", CompactRequest)
def compact(*, request: CompactRequest, job: JobOptions) -> int:
    """Turn sealed segments into a Delta table, each row once; a broker may run meanwhile."""
    from everlog.spark import Compaction, CompactionSummary, OnSpark, check_bucket

    options = _options(request)
    every = parse_seconds(request.every)
    location = _table_for(job, request)
    summary = CompactionSummary()
    with open_session(job) as (spark, bar):
        check_bucket(location)
        announce = lambda what, tasks: bar.step(f"{what}, {tasks} task{'' if tasks == 1 else 's'}")  # noqa: E731
        made = Compaction(data_of(job), location, OnSpark(spark), options, announce)
        try:
            _run(made, summary, every if request.follow else None, bar)
        except KeyboardInterrupt:
            if not request.follow:
                raise
    _show(made, summary)
    return int(bool(summary.damage or summary.lost))


def _table_for(job: JobOptions, request: CompactRequest) -> "Location":
    """Return the table that is named, or that the store names, or the usual one in it."""
    from everlog.spark import ClusterPlace, locate, parse_options, read_cluster_record

    place = data_of(job)
    if request.table is not None or not isinstance(place, ClusterPlace):
        return table_of(job.data, request.table, request.option)
    record = read_cluster_record(place)
    table = f"{place.bucket.place.rstrip('/')}/{LAKE}" if record is None else record.table
    return locate(table, dict(place.bucket.options) | parse_options(request.option or ()))


def _run(made: "Compaction", summary: "CompactionSummary", every: float | None, bar: "SparkProgress") -> None:
    made.run(summary)
    while every is not None:
        bar.step(f"{summary.rows:,} rows in the table, waiting for sealed segments")
        time.sleep(every)
        made.run(summary)


def vacuum(
    data: Data = None,
    table: Table = None,
    hours: Annotated[int, typer.Option(min=0, metavar="N", help="Spare what was in use in the last N hours.")] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow less than 24 hours: nothing else uses it.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Put small files together first: of a table that Spark's sink writes.")
    ] = False,
    option: TableOption = None,
) -> int:
    """Remove files of a table that nothing refers to: of failed attempts, and of what was merged or dropped."""
    from everlog.spark import find_lake, is_plain_table, keep_plain
    from everlog.spark import vacuum as remove

    location = table_of(data, table, option)
    if is_plain_table(location):
        found, merged = keep_plain(location, hours, merge=merge, dry_run=dry_run, force=force)
        if merged:
            print(f"{merged:,} files merged")
    elif merge:
        raise UsageError("the table of a store is merged by its compaction", hint="everlog spark compact DATA --merge")
    else:
        found = remove(find_lake(location), hours, dry_run=dry_run, force=force)
    for path in found:
        print(path)
    print(f"{len(found):,} file{'' if len(found) == 1 else 's'} {'would be ' if dry_run else ''}removed")
    return 0


def table_of(data: str | None, table: str | None, options: list[str] | None) -> "Location":
    """Return the table that is named, or that the data directory names, or the usual one in it."""
    from everlog.spark import locate, parse_options

    if table is None:
        data = str(data_of_settings()) if data is None else data
        record = read_lake_record(data)
        table = record.table if record is not None else str(Path(data) / LAKE)
    return locate(table, parse_options(options or ()))


def _options(request: CompactRequest) -> "CompactionOptions":
    from everlog.spark import CODECS, CompactionOptions, parse_days

    codec = next((name for name in CODECS if name == request.codec), None)
    if codec is None:
        raise UsageError(f"--codec {request.codec!r} is not known", hint=f"use one of {', '.join(CODECS)}")
    return CompactionOptions(
        codec=codec,
        everything=request.everything,
        on_damage="skip" if request.skip_damaged else "fail",
        merge=request.merge,
        retain_us=None if request.retain is None else parse_days(parse_seconds(request.retain)),
    )


def _show(made: "Compaction", summary: "CompactionSummary") -> None:
    """Print what was done, how far the table goes, and what it will never have."""
    from everlog.spark import name_lost

    table = TextTable("shard", "compacted up to")
    table.columns[1].justify = "right"
    for shard, end in made.lake.ends(made.shards).items():
        table.add_row(str(shard), "nothing yet" if end is None else f"{end:,}")
    print(made.lake.location.uri)
    Console().print(table)
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    print(
        f"{summary.rows:,} rows in {summary.files:,} files of {summary.file_bytes / 1e6:,.1f} MB added "
        f"({summary.log_bytes / 1e6:,.1f} MB of log, {rate:,.0f} rows/s), "
        f"{summary.merged:,} files merged, {summary.dropped:,} dropped"
    )
    for lost in summary.lost:
        print(f"lost before it was compacted: shard {lost.shard}, offsets {lost.from_offset} to {lost.to_offset - 1}")
    if before := [lost for lost in made.lost() if lost not in summary.lost]:
        print(f"lost before earlier compactions, for good: {name_lost(before)}")
    for text in summary.damage:
        print(f"left out: {text}")
