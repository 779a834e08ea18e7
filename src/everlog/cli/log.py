"""`everlog log`: what the log of a data directory holds, read beside a running broker or without one."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress
from rich.table import Table

from everlog.base import GONE
from everlog.cli.begin_words import exact_begin
from everlog.cli.client.log_entry import Entry, entries, entry_printer, show_time
from everlog.cli.data_directory import Data, DataAndFilters, data_and_filters, open_store
from everlog.cli.table_printer import AsJson, cell, print_json, print_table
from everlog.store import LogStore, Positions, locate, parse_begin
from everlog.topics import Filter, parse_filter

app = typer.Typer(rich_markup_mode=None, help="Look into the log of a data directory.")

_STEP_RECORDS, _STEP_BYTES = 50_000, 16 << 20
_FOLLOW_S = 0.2

FormatOption = Annotated[
    str | None, typer.Option("-F", "--format", help="As in everlog sub; times are those at which messages were kept.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, with position and time.")]


@app.command()
def segments(data: Data, json: AsJson = False) -> None:
    """List the segments of every shard: offsets, times, sizes."""
    with open_store(data) as store:
        rows = list(_segments(store))
    if json:
        print_json(rows)
        return
    table = Table("shard", "from", "to", "records", "bytes", "first", "last", "topics", "")
    for column in (1, 2, 3, 4, 7):
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(
            str(row["shard"]),
            *(f"{row[name]:,}" for name in ("from", "to", "records")),
            decimal(row["bytes"]),
            *("" if row[name] is None else show_time(row[name]) for name in ("first_us", "last_us")),
            f"{row['topics']:,}",
            "" if row["state"] == "sealed" else row["state"],
        )
    print_table(table)


def _segments(store: LogStore) -> Iterator[dict[str, Any]]:
    for number, shard in enumerate(store.shards):
        for one in shard.segments():
            end = min(one.end_offset, shard.committed)
            thinned, holds = one.table.lookup(GONE) >= 0, end > one.base_offset
            yield {
                "shard": number,
                "from": one.base_offset,
                "to": end,
                "records": end - one.base_offset,
                "bytes": one.size_bytes,
                "first_us": one.first_time if holds else None,
                "last_us": one.last_time if holds else None,
                "topics": one.table.count - thinned,
                "state": "thinned" if thinned else "sealed" if one.sealed else "open",
            }


@app.command()
def topics(
    words: DataAndFilters = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="This many, the most frequent first.")] = 50,
    json: AsJson = False,
) -> None:
    """Count the messages of each topic."""
    data, filters = data_and_filters(words)
    counts: Counter[bytes] = Counter()
    with open_store(data) as store, _progress("counting", sum(store.committed()) - sum(_starts(store))) as advance:
        reader, positions = store.reader(_parsed(filters)), _starts(store)
        while True:
            result = reader.read(positions, _STEP_RECORDS, _STEP_BYTES)
            for found in result.batches:
                records = found.records
                at = records.start + records.layout.topics
                column = memoryview(records.data)[at : at + 4 * records.count].cast("I")
                for topic, count in Counter(column[row] for row in found.row_numbers()).items():
                    counts[records.table.name(topic)] += count
            advance(sum(result.positions) - sum(positions))
            positions = result.positions
            if result.caught_up:
                break
    if json:
        print_json({"topic": name.decode(), "messages": count} for name, count in counts.most_common(limit))
        return
    table = Table("messages", "topic")
    table.columns[0].justify = "right"
    for name, count in counts.most_common(limit):
        table.add_row(f"{count:,}", cell(name.decode()))
    print_table(table)
    if len(counts) > limit:
        print(f"{len(counts) - limit:,} more topics")


@app.command()
def tail(
    words: DataAndFilters = None,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="This many of the last messages.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is kept later.")] = False,
    template: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Print the last messages, and with -f those to come."""
    write = entry_printer(template, json)
    data, filters = data_and_filters(words)
    parsed = _parsed(filters)
    with open_store(data) as store:
        ends = store.committed()
        for entry in _last(store, parsed, ends, count):
            write(entry)
        reader, positions = store.reader(parsed), ends
        while follow:
            for shard in store.shards:
                shard.refresh()
            result = reader.read(positions, _STEP_RECORDS, _STEP_BYTES)
            for entry in entries(result.batches):
                write(entry)
            positions = result.positions
            if result.caught_up:
                time.sleep(_FOLLOW_S)


@app.command()
def dump(
    words: DataAndFilters = None,
    begin: Annotated[
        str, typer.Option("--from", help="earliest, a time, -1h, or a position like 0:1234.")
    ] = "earliest",
    end: Annotated[str, typer.Option("--to", help="Likewise; what is there now by default.")] = "latest",
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most this many.")] = None,
    template: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Print a range of history, by rising offset in each shard."""
    write = entry_printer(template, json)
    data, filters = data_and_filters(words)
    with open_store(data) as store:
        first, last = _at(store, begin), _at(store, end)
        for entry in islice(_range(store, _parsed(filters), first, last), limit):
            write(entry)


def _parsed(filters: list[str]) -> list[Filter] | None:
    return [parse_filter(text) for text in filters] if filters else None


def _starts(store: LogStore) -> Positions:
    return tuple(shard.start for shard in store.shards)


def _at(store: LogStore, text: str) -> Positions:
    begin = parse_begin(exact_begin(text), time.time_ns() // 1000)
    return locate(begin, _starts(store), store.committed(), store.positions_at)


def _range(store: LogStore, filters: list[Filter] | None, first: Positions, last: Positions) -> Iterator[Entry]:
    """Yield what lies between two positions, a step at a time."""
    reader, positions = store.reader(filters), first
    while any(at < end for at, end in zip(positions, last, strict=True)):
        result = reader.read(positions, _STEP_RECORDS, _STEP_BYTES)
        for entry in entries(result.batches):
            if entry.offset < last[entry.shard]:
                yield entry
        positions = result.positions
        if result.caught_up:
            return


def _last(store: LogStore, filters: list[Filter] | None, ends: Positions, count: int) -> list[Entry]:
    """Return the newest messages: look at more and more of the end until there are enough."""
    starts, span = _starts(store), 1024
    while count:
        first = tuple(max(start, end - span) for start, end in zip(starts, ends, strict=True))
        found = sorted(_range(store, filters, first, ends), key=lambda one: (one.time_us, one.shard, one.offset))
        if len(found) >= count or first == starts:
            return found[-count:]
        span *= 8
    return []


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
