"""What `everlog spark compact` and `everlog spark vacuum` do: the table of the history, kept up and kept small."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from everlog.app import parse_seconds
from everlog.base import UsageError
from everlog.cli import sparkjobs
from everlog.store import read_lake_record

if TYPE_CHECKING:
    from everlog.cli.sparkprogress import SparkProgress
    from everlog.spark import Compaction, CompactionOptions, CompactionSummary, Location

LAKE = "lake"  # the table's directory in a data directory, unless told otherwise


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    table: str | None
    options: list[str] | None
    codec: str
    everything: bool
    merge: bool
    retain: str | None
    skip_damaged: bool
    follow: bool
    every: str


def compact(source: sparkjobs.Source, wish: Wish) -> int:
    """Bring the table up to the log, once or until interrupted; 1 when something was lost or damaged."""
    from everlog.spark import Compaction, CompactionSummary, OnSpark, check_bucket

    options = _options(wish)
    every = parse_seconds(wish.every)
    location = table_of(source.data, wish.table, wish.options)
    summary = CompactionSummary()
    with sparkjobs.session(source) as (spark, bar):
        check_bucket(location)
        announce = lambda what, tasks: bar.step(f"{what}, {tasks} task{'' if tasks == 1 else 's'}")  # noqa: E731
        made = Compaction(source.data or "", location, OnSpark(spark), options, announce)
        try:
            _run(made, summary, every if wish.follow else None, bar)
        except KeyboardInterrupt:
            if not wish.follow:
                raise
    _show(made, summary)
    return int(bool(summary.damage or summary.lost))


def _run(made: "Compaction", summary: "CompactionSummary", every: float | None, bar: "SparkProgress") -> None:
    made.run(summary)
    while every is not None:
        bar.step(f"{summary.rows:,} rows in the table, waiting for sealed segments")
        time.sleep(every)
        made.run(summary)


def vacuum(data: str | None, table: str | None, options: list[str] | None, hours: int, dry: bool, force: bool) -> int:
    """Remove files that nothing refers to."""
    from everlog.spark import find_lake
    from everlog.spark import vacuum as remove

    lake = find_lake(table_of(data, table, options))
    found = remove(lake, hours, dry_run=dry, force=force)
    for path in found:
        print(path)
    print(f"{len(found):,} file{'' if len(found) == 1 else 's'} {'would be ' if dry else ''}removed")
    return 0


def table_of(data: str | None, table: str | None, options: list[str] | None) -> "Location":
    """The table that is named, or that the data directory names, or the usual one in it."""
    from everlog.spark import locate, parse_options

    if table is None:
        if data is None:
            raise UsageError("no table", hint="give DATA or --table")
        record = read_lake_record(data)
        table = record.table if record is not None else str(Path(data) / LAKE)
    return locate(table, parse_options(options or ()))


def _options(wish: Wish) -> "CompactionOptions":
    from everlog.spark import CODECS, CompactionOptions, parse_days

    codec = next((name for name in CODECS if name == wish.codec), None)
    if codec is None:
        raise UsageError(f"--codec {wish.codec!r} is not known", hint=f"use one of {', '.join(CODECS)}")
    return CompactionOptions(
        codec=codec,
        everything=wish.everything,
        on_damage="skip" if wish.skip_damaged else "fail",
        merge=wish.merge,
        retain_us=None if wish.retain is None else parse_days(parse_seconds(wish.retain)),
    )


def _show(made: "Compaction", summary: "CompactionSummary") -> None:
    """What was done, how far the table goes, and what it will never have."""
    from everlog.spark import name_lost

    table = Table("shard", "compacted up to")
    table.columns[1].justify = "right"
    for shard, end in made.lake.ends(made.shards).items():
        table.add_row(str(shard), "nothing yet" if end is None else f"{end:,}")
    print(made.lake.location.uri)
    Console().print(table)
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    print(
        f"{summary.rows:,} rows in {summary.files:,} files of {summary.bytes / 1e6:,.1f} MB added "
        f"({summary.log_bytes / 1e6:,.1f} MB of log, {rate:,.0f} rows/s), "
        f"{summary.merged:,} files merged, {summary.dropped:,} dropped"
    )
    for lost in summary.lost:
        print(f"lost before it was compacted: shard {lost.shard}, offsets {lost.from_offset} to {lost.to_offset - 1}")
    if before := [lost for lost in made.lost() if lost not in summary.lost]:
        print(f"lost before earlier compactions, for good: {name_lost(before)}")
    for text in summary.damage:
        print(f"left out: {text}")
