"""What the commands of `everlog spark` do: open a session, load a history, run a job, show and write its result."""

import asyncio
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from everlog.base import EverlogError, StorageError, Unavailable, UsageError
from everlog.cli.sparkprogress import SparkProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from everlog.cli.dial import Call
    from everlog.cli.sparkreplay import Manner
    from everlog.spark.jobs import Cell, Grid, Report

_BLAME: dict[str, type[EverlogError]] = {"StorageError": StorageError, "Unavailable": Unavailable}
WIDE = 200  # columns of a table that goes to a file


@dataclass(frozen=True, slots=True)
class Source:
    """Where the history is, what of it, and where Spark runs."""

    data: str | None
    topics: list[str] | None = None
    from_: str | None = None
    to: str | None = None
    master: str | None = None
    conf: list[str] | None = None
    verbose: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all of the history is meant."""
        return not self.topics and self.from_ is None and self.to is None

    @property
    def about(self) -> str:
        """In words."""
        parts = [self.data or "", *(f"topic {topic}" for topic in self.topics or ())]
        parts += [f"from {self.from_}"] * (self.from_ is not None) + [f"to {self.to}"] * (self.to is not None)
        return ", ".join(part for part in parts if part)


def structure(source: Source, html: Path | None, json_file: Path | None) -> int:
    """Learn shapes, show them, and leave them for compaction."""
    with session(source) as (spark, bar):
        from everlog.spark.jobs import FILE_NAME, report_structure, structure_of, write_structure

        bar.step("learning shapes")
        found = structure_of(load(spark, source, "topic", "timestamp", "payload"))
    publish(report_structure(found, source.about), html)
    tell_lost(source)
    if json_file is None and source.is_whole and source.data is not None and "://" not in source.data:
        json_file = Path(source.data) / FILE_NAME
    if json_file is not None:
        write_structure(found, json_file)
        print(f"written to {json_file}")
    return 0


def stats(source: Source, by: str, top: int, html: Path | None, json_file: Path | None) -> int:
    """Count, and show who talks most."""
    with session(source) as (spark, bar):
        from everlog.spark import jobs

        bar.step("looking at times")
        span = jobs.time_span(load(spark, source, "timestamp")) or (0, 0)
        slice_us = jobs.choose_slice(*span)
        bar.step("counting")
        slices = jobs.slices_of(load(spark, source, "topic", "timestamp", "payload"), slice_us).persist()
        key, what = None, "topic"
        if by == "shape":
            key, what = jobs.shape_key(_structure(spark, source, bar)), "shape"
        elif by != "topic":
            key, what = jobs.levels_key(int(by)), "group"
        found = jobs.stats_of(slices, slice_us, key, top)
        slices.unpersist()
    publish(jobs.report_stats(found, source.about, what), html)
    tell_lost(source)
    write_json(found, json_file)
    return 0


def _structure(spark: "SparkSession", source: Source, bar: SparkProgress) -> Any:
    """The structure that was learned before, or is learned now."""
    from everlog.spark.jobs import FILE_NAME, read_structure, structure_of

    known = read_structure(Path(source.data or "") / FILE_NAME)
    if known is None:
        bar.step("learning shapes")
        known = structure_of(load(spark, source, "topic", "timestamp", "payload"))
    return known


def replay(source: Source, call: "Call", manner: "Manner") -> int:
    """Publish a selection again."""
    with session(source) as (spark, bar):
        from everlog.cli.sparkreplay import publish_again
        from everlog.spark.jobs import COLUMNS, in_order, kept_in

        bar.step("counting")
        total = load(spark, source, "offset").count()
        bar.step("sorting")
        chunks = kept_in(in_order(load(spark, source, *COLUMNS), total))
        bar.unwatch()
        bar.step("publishing")
        outcome = asyncio.run(publish_again(call, chunks, manner, lambda sent: bar.count(sent, total)))
    print(f"{outcome.sent:,} messages published again" + f", {outcome.refused:,} refused" * bool(outcome.refused))
    tell_lost(source)
    return int(bool(outcome.refused))


def shell(source: Source) -> int:
    """Open a session for somebody who types, or a script."""
    from everlog.cli import sparkshell

    with session(source, needs_data=False) as (spark, bar):
        messages = None if source.data is None else load(spark, source)
        known = sparkshell.names(spark, messages)
        bar.end()
        if source.data is not None:
            tell_lost(source)
        return sparkshell.run(known, sparkshell.banner(spark, source.data))


# A session and a frame.


def require_spark() -> None:
    """Refuse to go on without the packages that the jobs need."""
    for name in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"{name} is not installed", hint="pip install 'everlog[spark]'") from error


@contextmanager
def session(source: Source, needs_data: bool = True) -> "Iterator[tuple[SparkSession, SparkProgress]]":
    """A session for one command, and its progress bar; Spark's errors become ours."""
    require_spark()
    _check_data(source.data, needs_data)
    settings = dict(_setting(text) for text in source.conf or ())
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from everlog.spark import spark_session

    running = SparkSession.getActiveSession()
    with SparkProgress() as bar:
        try:
            if running is None:
                with _aside(source.verbose):
                    spark = spark_session("everlog", master=source.master or "local[*]", settings=settings)
            else:
                spark = running
            bar.watch(spark)
            yield spark, bar
        except PySparkException as error:
            raise _our_error(error) from error
        finally:
            bar.end()
            if running is None and (begun := SparkSession.getActiveSession()) is not None:
                begun.stop()


@contextmanager
def _aside(verbose: bool) -> Iterator[None]:
    """What a process that is started meanwhile says on standard error goes nowhere, unless it is wanted."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    usual = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(nowhere)


def load(spark: "SparkSession", source: Source, *columns: str) -> "DataFrame":
    """The history as a frame with these columns, or all; without what is lost, which `tell_lost` names."""
    chosen = {"columns": ",".join(columns)} if columns else {}
    return spark.read.format("everlog").options(**_given(source), **chosen, onLost="skip").load()


def tell_lost(source: Source) -> None:
    """Say which offsets a job went without, as neither log nor table has them."""
    from everlog.spark import lost_in, name_lost

    lost = lost_in(_given(source))
    if lost:
        print(f"left out, as retention removed it before it was compacted: {name_lost(lost)}")


def _given(source: Source) -> dict[str, str]:
    """The options that say what to read."""
    where = source.data or ""
    given = {
        "path": where if "://" in where else os.path.abspath(where),
        "topic": json.dumps(source.topics) if source.topics else None,
        "from": source.from_,
        "to": source.to,
    }
    return {name: value for name, value in given.items() if value is not None}


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--conf {text!r} is not KEY=VALUE", hint="for example spark.driver.memory=4g")
    return name.strip(), value.strip()


def _check_data(data: str | None, needed: bool) -> None:
    """Say at once what Spark would say after a while."""
    if data is None:
        if needed:
            raise UsageError("no DATA", hint="give the directory that `everlog serve --data` was given")
    elif "://" not in data and not (Path(data) / "store").exists():
        raise UsageError(f"{data} holds no store", hint="give the directory that `everlog serve --data` was given")


def _our_error(error: Exception) -> EverlogError:
    """What Spark raised, in the words of ours that caused it if one did."""
    text = str(error)
    found = re.findall(r"everlog\.base\.errors\.(\w+): (.*)", text)
    if found:
        kind, message = found[-1]
        return _BLAME.get(kind, UsageError)(message.strip())
    lines = [line for line in text.splitlines() if line.strip()]
    return StorageError(f"Spark failed: {lines[0] if lines else type(error).__name__}", hint="more with --verbose")


# Results.


def publish(report: "Report", html: Path | None) -> None:
    """Show a report on the terminal, and write it as a page."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    facts = "  ".join(f"{_show(value)} {name}" for name, value in report.numbers if value is not None)
    console.print(Text(facts, style="bold"))
    for grid in report.grids:
        console.print(as_table(grid))
    if html is not None:
        from everlog.spark.jobs import write_page

        write_page(html, report.html())
        print(f"written to {html}")


def as_table(grid: "Grid") -> Table:
    """A table for the terminal."""
    table = Table(title=grid.title, caption=grid.remark or None, title_justify="left", caption_justify="left")
    for number, name in enumerate(grid.columns):
        numeric = all(isinstance(row[number], int | float | None) for row in grid.rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(Text(_show(cell)) for cell in row))
    return table


def _show(cell: "Cell") -> str:
    """A cell; topics are the publishers' to choose, so their control characters are shown and not obeyed."""
    from everlog.spark.jobs import show

    return "".join(char if char.isprintable() else "�" for char in show(cell))


def write_json(result: Any, path: Path | None) -> None:
    """A result as JSON."""
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"--json {path} can't be written: {error.strerror}") from error
    print(f"written to {path}")
