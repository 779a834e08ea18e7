"""Turns what a job found into tables and charts for a terminal and a page; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from everlog.spark.jobs.charts import bars, hour_map, timeline
from everlog.spark.jobs.html_page import Cell, Drawing, Grid, render
from everlog.spark.jobs.run_audit import COUNTS, Audit, Line
from everlog.spark.jobs.stats import KeyStats, Stats
from everlog.spark.jobs.store_audit import ShardAudit
from everlog.spark.jobs.structure_file import Structure

SHOWN = 50  # rows of a table of shapes or levels
MAX_BARS = 20


@dataclass(frozen=True, slots=True)
class Report:
    """A title, the main numbers, and tables and charts; a terminal shows the tables only."""

    title: str
    about: str
    numbers: tuple[tuple[str, Cell], ...]
    parts: tuple[Grid | Drawing, ...]

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The tables."""
        return tuple(part for part in self.parts if isinstance(part, Grid) and part.rows)

    def html(self) -> str:
        """Return the report as a page."""
        return render(self.title, self.about, self.numbers, self.parts)


def report_structure(structure: Structure, about: str) -> Report:
    """Report shapes, what varies in them, and what does not fit."""
    shapes = structure.shapes[:SHOWN]
    levels = [
        (shape.text, number + 1, level.kind, level.values, ", ".join(level.examples))
        for shape in shapes
        for number, level in enumerate(shape.levels)
        if level.varies
    ]
    more = len(structure.shapes) - len(shapes)
    return Report(
        "Topic structure",
        about,
        (
            ("messages", structure.messages),
            ("topics", structure.topics),
            ("shapes", len(structure.shapes)),
            ("anomalies", len(structure.anomalies)),
        ),
        (
            Drawing("Messages by shape", bars([(shape.text, shape.messages) for shape in shapes[:MAX_BARS]])),
            Grid(
                "Shapes",
                ("shape", "topics", "messages", "bytes", "last", "filter"),
                tuple((s.text, s.topics, s.messages, s.bytes, s.last, s.filter) for s in shapes),
                f"{more:,} more have fewer messages" if more else "",
            ),
            Grid("Levels that vary", ("shape", "level", "kind", "values", "examples"), tuple(levels)),
            Grid(
                "Anomalies",
                ("kind", "where", "topics", "messages", "why"),
                tuple((a.kind, a.where, a.topics, a.messages, a.why) for a in structure.anomalies),
            ),
        ),
    )


def report_stats(stats: Stats, about: str, what: str) -> Report:
    """Report who talks most, when, and who is silent; `what` names what was counted by."""
    hours: dict[datetime, int] = {}
    for when, messages, _ in stats.slices:
        hour = when.replace(minute=0, second=0, microsecond=0)
        hours[hour] = hours.get(hour, 0) + messages
    hottest = sorted(hours.items(), key=lambda one: (-one[1], one[0]))[:5]
    line = [(when, messages) for when, messages, _ in stats.slices]
    span_s = 0.0 if stats.first is None or stats.last is None else (stats.last - stats.first).total_seconds()
    return Report(
        "Statistics",
        about,
        (
            ("messages", stats.messages),
            (f"{what}s", stats.key_count),
            ("bytes of payload", stats.bytes),
            ("messages a second", stats.messages / span_s if span_s else None),
            ("first", stats.first),
            ("last", stats.last),
        ),
        (
            Drawing("Messages over time", timeline(line, stats.slice_s)),
            Drawing("Hours, UTC", hour_map(hours)),
            Drawing("Top talkers", bars([(key.key, key.messages) for key in stats.keys[:MAX_BARS]])),
            Grid("Top talkers", _key_columns(what), tuple(_key_row(key) for key in stats.keys)),
            Grid("Most bytes", (what, "bytes", "messages", "mean", "largest"), _heaviest(stats.heaviest)),
            Grid("Longest gaps", (what, "gap", "from", "messages a second"), _gaps(stats.keys)),
            Grid(
                "Silent at the end",
                (what, "silent for", "last", "longest gap before", "messages"),
                tuple((k.key, _span(k.silent_s), k.last, _span(k.longest_gap_s), k.messages) for k in stats.silent),
            ),
            Grid("Hottest hours", ("hour, UTC", "messages"), tuple(hottest)),
        ),
    )


def _key_columns(what: str) -> tuple[str, ...]:
    return (what, "messages", "a second", "peak a second", "bytes", "mean", "smallest", "largest", "last")


def _key_row(key: KeyStats) -> tuple[Cell, ...]:
    sizes = (key.bytes, key.mean_bytes, key.smallest, key.largest)
    return (key.key, key.messages, key.rate, key.peak, *sizes, key.last)


def _heaviest(keys: Sequence[KeyStats]) -> tuple[tuple[Cell, ...], ...]:
    return tuple((key.key, key.bytes, key.messages, key.mean_bytes, key.largest) for key in keys)


def _gaps(keys: Sequence[KeyStats]) -> tuple[tuple[Cell, ...], ...]:
    found = sorted((key for key in keys if key.longest_gap_s), key=lambda key: -key.longest_gap_s)
    return tuple((key.key, _span(key.longest_gap_s), key.gap_from, key.rate) for key in found)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return str(timedelta(seconds=round(seconds)))


def report_store(shards: Sequence[ShardAudit], about: str) -> Report:
    """Report on a store that was checked alone."""
    columns = ("shard", "records", "first", "last", "emptied", "missing", "duplicated", "time back")
    rows = tuple((s.shard, s.records, s.first, s.last, s.emptied, s.missing, s.duplicated, s.time_back) for s in shards)
    findings = [
        *(("missing", s.shard, _range(one)) for s in shards for one in s.missing_ranges),
        *(("duplicated", s.shard, _range(one)) for s in shards for one in s.duplicated_ranges),
        *(("time goes back", s.shard, f"at {at:,} by {by / 1e6:g} s") for s in shards for at, by in s.back_at),
    ]
    return Report(
        "Audit of a store",
        about,
        (
            ("records", sum(shard.records for shard in shards)),
            ("missing offsets", sum(shard.missing for shard in shards)),
            ("duplicated offsets", sum(shard.duplicated for shard in shards)),
            ("times that go back", sum(shard.time_back for shard in shards)),
            ("emptied offsets", sum(shard.emptied for shard in shards)),
        ),
        (
            Grid("Shards", columns, rows),
            Grid("Findings", ("finding", "shard", "offsets"), tuple(findings)),
        ),
    )


def _range(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def report_audit(audit: Audit, about: str) -> Report:
    """Report on histories that were compared."""
    sums = {name: sum(counts[name] for _, counts in audit.places) for name in COUNTS}
    return Report(
        "Audit of a run",
        about,
        (
            *((name, sums[name]) for name in ("lost", "duplicated", "reordered", "foreign")),
            ("published without an ack", audit.unacked),
        ),
        (
            Grid(
                "Places",
                ("where", *COUNTS),
                tuple((where, *(counts[name] for name in COUNTS)) for where, counts in audit.places),
            ),
            Grid("Findings", ("where", "publisher", "topic", *COUNTS, "sequence numbers"), _findings(audit.lines)),
        ),
    )


def _findings(lines: Sequence[Line]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (line.where, line.publisher, line.topic, *(getattr(line, name) for name in COUNTS), _numbers(line))
        for line in lines
    )


def _numbers(line: Line) -> str:
    told = []
    if line.lost_from is not None and line.lost_to is not None:
        told.append(f"lost {line.lost_from}" + (f" … {line.lost_to}" if line.lost_to != line.lost_from else ""))
    if line.duplicated_at is not None:
        told.append(f"twice {line.duplicated_at}")
    if line.reordered_at is not None:
        told.append(f"late {line.reordered_at}")
    return "; ".join(told)
