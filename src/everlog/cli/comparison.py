"""The table of `everlog bench peers`, and the line that shows how far it is."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from everlog.bench.load import CPU, P50, P99, RATE, TROUBLES, Line, Report, Rounds, Spread, Verdict

_WIDTH = 168
_FIGURES = {RATE: "msgs/s", CPU: "CPU µs/msg", P50: "p50 µs", P99: "p99 µs"}


class Ticker:
    """Progress on standard error; drawn only between runs, so that drawing is not measured."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> "Ticker":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, case: str, broker: str, report: Report | None) -> None:
        """Show that a run begins (no report) or has ended."""
        if report is None:
            self._progress.update(self._task, description=f"{case:<13} {broker:<10}")
        else:
            self._progress.advance(self._task)
            if not sys.stderr.isatty():
                rate = _number(report.get("msgs_per_s"))
                print(f"{case:<13} {broker:<10} {report['status']:<8} {rate:>12}/s", file=sys.stderr, flush=True)
        self._progress.refresh()


def print_comparison(reports: Mapping[tuple[str, str], Report], verdicts: Sequence[Verdict]) -> None:
    """Print a row for each case and broker, ours with what is demanded of it."""
    table = Table(title="brokers on the first CPU, generator on the last", title_justify="left", show_lines=False)
    for name in ("case", "broker"):
        table.add_column(name)
    for name in ("msgs/s", "CPU µs/msg", "p50 µs", "p99 µs", "peak MB", "gen µs/msg", "other %"):
        table.add_column(name, justify="right")
    table.add_column("ours against what is demanded, or what went wrong")
    before = ""
    for (case, broker), report in reports.items():
        if before and case != before:
            table.add_section()
        mine = [verdict for verdict in verdicts if verdict.case == case] if broker == "everlog" else []
        table.add_row(case if case != before else "", broker, *_cells(report), _notes(report, mine))
        before = case
    Console(width=max(_WIDTH, Console().width)).print(table)


def print_against(
    lines: Sequence[Line], between: Sequence[tuple[str, str, Mapping[str, float]]], rounds: Rounds
) -> None:
    """Print a row for each figure of each case; red where this was worse in every round, green where better."""
    table = Table(title="medians (and extremes) of the rounds; this as a multiple of against, in the same round")
    for name in ("case", "kept", "figure"):
        table.add_column(name)
    names = list(dict.fromkeys(name for line in lines for name in line.brokers))
    for name in (*names[:2], "this/against", *names[2:]):
        table.add_column(name, justify="right")
    before: tuple[str, ...] = ("", "")
    for line in lines:
        if before[0] and line.case != before[0]:
            table.add_section()
        here = (line.case, "all" if line.keeps else "nothing")
        titles = ("" if line.case == before[0] else here[0], "" if here == before else here[1])
        this, other, *peers = [_spread(line.brokers[name]) for name in names]
        colour = {None: "default", True: "red", False: "green"}[line.is_worse]
        ratio = f"[{colour}]{_spread(line.ratio)}[/]"
        table.add_row(*titles, _FIGURES[line.figure], this, other, ratio, *peers)
        before = here
    console = Console(width=max(_WIDTH, Console().width))
    console.print(table)
    for case, words, multiples in between:
        told = ", ".join(f"{name} {_number(value)}x" for name, value in multiples.items())
        console.print(f"{case}, {words}: {told}")
    others = sorted(one.get("other_cpu_pct", 0.0) for reports in rounds.values() for one in reports)
    console.print(f"other programs took {others[len(others) // 2]} % of a CPU (median), {others[-1]} % at most")
    for (case, broker), reports in rounds.items():
        for note in filter(None, (_notes(report, ()) for report in reports)):
            console.print(f"{case}, {broker.name}: {note}")


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{_number(spread.median)} ({_number(spread.low)}–{_number(spread.high)})"


def _cells(report: Report) -> list[str]:
    broker, latency = report.get("broker") or {}, report.get("latency_us") or {}
    return [
        _number(report.get("msgs_per_s")),
        _number(broker.get("cpu_us_per_msg")),
        _number(latency.get("p50")),
        _number(latency.get("p99")),
        _number(broker.get("peak_rss_mb")),
        _number((report.get("generator") or {}).get("cpu_us_per_msg")),
        _number(report.get("other_cpu_pct")),
    ]


def _notes(report: Report, verdicts: Sequence[Verdict]) -> str:
    notes = []
    if report["status"] != "ok":
        notes.append(f"[red]{report['status']}: {report.get('error', '')}[/]")
    notes += [f"[red]{name} {report[name]:,}[/]" for name in TROUBLES if report.get(name)]
    if not verdicts and report.get("connections"):
        notes.append(f"{_number(report.get('kb_per_connection'))} KiB/connection")
    notes += [_judged(verdict) for verdict in verdicts]
    return ", ".join(notes)


def print_verdicts(verdicts: Sequence[Verdict], reports: Mapping[tuple[str, str], Report]) -> None:
    """Print a line for each demand: what was asked for, what was found, and whether it holds."""
    table = Table(title="what the project demands of itself, brokers on the first CPU, generator on the last")
    for name in ("case", "demand", "ours", "bound", "mosquitto", ""):
        table.add_column(name, justify="left" if name in ("case", "demand", "") else "right")
    before = ""
    for verdict in verdicts:
        case = verdict.case if verdict.case != before else ""
        figures = (verdict.ours, verdict.bound, verdict.peer)
        table.add_row(case, verdict.demand.words, *map(_number, figures), _outcome(verdict))
        before = verdict.case
    console = Console(width=max(_WIDTH, Console().width))
    console.print(table)
    for (case, broker), report in reports.items():
        if report["status"] != "ok":
            console.print(f"[red]{case}, {broker}: {report['status']}: {report.get('error', '')}[/]")
    held = sum(verdict.met is True for verdict in verdicts)
    console.print(f"{held} of {len(verdicts)} hold")


def _outcome(verdict: Verdict) -> str:
    return {True: "[green]holds[/]", False: "[red]falls short[/]", None: "[dim]nothing to compare[/]"}[verdict.met]


def _judged(verdict: Verdict) -> str:
    if verdict.found is None:
        return f"[dim]{verdict.demand.words}: nothing to compare[/]"
    colour = "green" if verdict.met else "red"
    unit = "x" if verdict.demand.against else ""
    return f"[{colour}]{_number(verdict.found)}{unit}[/] ({verdict.demand.words})"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
