"""Plays the cases on each broker in turn, and judges ours by what is demanded."""

import contextlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everlog.base import EverlogError
from everlog.bench.load.bare_disk import measure_disk
from everlog.bench.load.brokers import Broker, Running, free_port, started
from everlog.bench.load.cases import CASES, DISK, PEER, Case, Demand, figure_of
from everlog.bench.load.fleet_cases import FLEET_CASES
from everlog.bench.load.options import Options
from everlog.bench.load.scenarios import play
from everlog.bench.load.speed_cases import SPEED_CASES
from everlog.bench.load.usage import sample

OURS = "everlog"
ALL_CASES = (*CASES, *SPEED_CASES, *FLEET_CASES)
TROUBLES = ("lost", "duplicates", "out_of_order", "foreign", "corrupt", "wrong_qos_or_retain", "unexpected_acks")
_CALM_PCT = 25.0  # of a CPU for other programs; beyond, a run may be repeated

Report = dict[str, Any]
Reports = dict[tuple[str, str], Report]  # by case and broker


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a demand: our figure and what it is compared with; None where there is nothing to compare."""

    case: str
    demand: Demand
    ours: float | None
    base: float | None = 1.0
    more: float | None = 0.0  # of the disk, added to what is asked for
    peer: float | None = None  # the same figure of the peer's, to look at

    @property
    def found(self) -> float | None:
        """Our figure as a multiple of what it is compared with."""
        return self.ours / self.base if self.ours is not None and self.base else None

    @property
    def bound(self) -> float | None:
        """The least or the most that our figure may be."""
        if not self.base or self.more is None:
            return None
        bound = self.demand.value * self.base + self.more
        return min(bound, self.demand.cap) if self.demand.cap else bound

    @property
    def met(self) -> bool | None:
        """Whether it is met; None when that can't be told."""
        if self.ours is None or self.bound is None:
            return None
        return self.ours >= self.bound if self.demand.at_least else self.ours <= self.bound


@contextlib.contextmanager
def pinned() -> Iterator[set[int] | None]:
    """Keep this process on the last CPU and yield the brokers' CPU, or None where there is only one."""
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    os.sched_setaffinity(0, {cpus[-1]})
    try:
        yield {cpus[0]} if len(cpus) > 1 else None
    finally:
        os.sched_setaffinity(0, before)


def compare(
    brokers: Sequence[Broker],
    cases: Sequence[Case],
    seconds: float,
    repeat: int,
    tell: Callable[[str, str, Report | None], None],
) -> Reports:
    """Play every case on every broker, each freshly started; `tell` hears of each run before (None) and after it."""
    reports: Reports = {}
    with pinned() as cpus:
        for case in cases:
            for broker in filter(case.is_for, brokers):
                tell(case.name, broker.name, None)
                report = _calmest(case, broker, seconds, repeat, cpus)
                reports[case.name, broker.name] = report
                tell(case.name, broker.name, report)
            if case.needs_disk:
                reports[case.name, DISK] = measure_disk()
    return reports


def _calmest(case: Case, broker: Broker, seconds: float, repeat: int, cpus: set[int] | None) -> Report:
    """Play a case up to `repeat` times; return the run that other programs disturbed least."""
    best: Report = {}
    for _ in range(repeat):
        report = play_case(case, broker, seconds, cpus)
        if not best or _noise(report) < _noise(best):
            best = report
        if _noise(best) <= _CALM_PCT:
            break
    return best


def _noise(report: Report) -> float:
    return 1e9 if report["status"] != "ok" else report.get("other_cpu_pct", 0) + report.get("steal_pct", 0)


def play_case(case: Case, broker: Broker, seconds: float, cpus: set[int] | None) -> Report:
    """Play a case once on a broker that is started for it."""
    changes = dict(case.options) | dict(case.others.get(broker.program, {}))
    arguments: tuple[str, ...] = ()
    if broker.is_everlog:
        broker = replace(broker, keeps=broker.keeps and case.keeps)
        arguments = case.arguments
    if case.shards:
        arguments = (*arguments, "--shards", str(case.shards))
        changes["shards"] = case.shards
    if case.reads_metrics:
        changes["metrics_port"] = free_port()
        arguments = (*arguments, "--http-port", str(changes["metrics_port"]))
    if case.timed:
        changes["seconds"] = seconds
    changes["label"] = f"{broker.name}/{case.name}"
    try:
        with tempfile.TemporaryDirectory(prefix=f"everlog-bench-{broker.program}-") as name:
            folder = Path(name)
            if case.after:  # what it leaves behind is found by the number of the run
                changes["number"] = secrets.randbits(31) + 1
                with started(broker, cpus, arguments, case.environment, folder) as running:
                    before = play(Options(case.after, running.port, pids=(running.pid,), **changes))
                if before["status"] != "ok":
                    return before
            begun = time.monotonic()
            with started(broker, cpus, arguments, case.environment, folder) as running:
                return _played(case, running, time.monotonic() - begun, changes)
    except EverlogError as error:
        return {"scenario": case.scenario, "status": "failed", "error": str(error)}


def _played(case: Case, running: Running, start_s: float, changes: dict[str, Any]) -> Report:
    """Return the report of a case, with what is known of the broker besides."""
    if case.is_clocked:
        changes["turn_clock"] = str(running.data / "turns")
    before_mb = sample((running.pid,)).rss_mb
    options = Options(case.scenario, running.port, pids=(running.pid,), **changes)
    report = play(options)
    report["mb_per_s"] = round(report.get("msgs_per_s", 0.0) * options.size / 1e6, 1)
    report["back_s"] = round(start_s + report.get("seconds", 0.0), 2)
    report["grown_mb"] = round(sample((running.pid,)).rss_mb - before_mb, 1)
    return report


def judge(reports: Reports) -> list[Verdict]:
    """Return what became of every demand on ours."""
    return [
        _verdict(case, demand, mine, reports)
        for case in ALL_CASES
        if (mine := reports.get((case.name, OURS))) is not None
        for demand in case.demands
    ]


def _verdict(case: Case, demand: Demand, mine: Report, reports: Reports) -> Verdict:
    disk = figure_of(reports.get((case.name, DISK), {}), demand.disk) if demand.disk else None
    base: float | None = 1.0
    if demand.against == DISK:
        base = disk
    elif demand.against:
        other = (case.name, PEER) if demand.against == PEER else (demand.against, OURS)
        base = figure_of(reports.get(other, {}), demand.figure)
    more = 0.0 if not demand.plus else None if disk is None else demand.plus * disk
    ours = figure_of(mine, demand.figure) if mine["status"] == "ok" else None
    peer = figure_of(reports.get((case.name, PEER), {}), demand.figure)
    return Verdict(case.name, demand, ours, base, more, peer)


def save(path: Path, reports: Reports, verdicts: Sequence[Verdict]) -> None:
    """Write everything as JSON."""
    content = {
        "runs": [{"case": case, "peer": broker, **report} for (case, broker), report in reports.items()],
        "demands": [
            {
                "case": verdict.case,
                "demand": verdict.demand.words,
                "ours": verdict.ours,
                "bound": verdict.bound,
                "found": verdict.found,
                "peer": verdict.peer,
                "met": verdict.met,
            }
            for verdict in verdicts
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
