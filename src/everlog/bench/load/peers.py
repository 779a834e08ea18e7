"""Plays the cases on each broker in turn, and judges ours by what is demanded."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlog.base import EverlogError
from everlog.bench.load.brokers import Broker, started
from everlog.bench.load.cases import CASES, PEER, Case, Demand, figure_of
from everlog.bench.load.options import Options
from everlog.bench.load.scenarios import play

OURS = "everlog"
TROUBLES = ("lost", "duplicates", "out_of_order", "foreign", "corrupt", "wrong_qos_or_retain", "unexpected_acks")
_CALM_PCT = 25.0  # of a CPU for other programs; beyond, a run may be repeated

Report = dict[str, Any]
Reports = dict[tuple[str, str], Report]  # by case and broker


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a demand; `found` is None when there is nothing to compare with."""

    case: str
    demand: Demand
    found: float | None

    @property
    def met(self) -> bool | None:
        """Whether it is met; None when that can't be told."""
        if self.found is None:
            return None
        return self.found >= self.demand.value if self.demand.at_least else self.found <= self.demand.value


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
    arguments = ("--shards", str(case.shards)) if case.shards else ()
    if case.shards:
        changes["shards"] = case.shards
    if case.timed:
        changes["seconds"] = seconds
    try:
        with started(broker, cpus, arguments, case.slow_shard_ms) as running:
            label = f"{broker.name}/{case.name}"
            return play(Options(case.scenario, running.port, pids=(running.pid,), label=label, **changes))
    except EverlogError as error:
        return {"scenario": case.scenario, "status": "failed", "error": str(error)}


def judge(reports: Reports) -> list[Verdict]:
    """Return what became of every demand on ours."""
    verdicts = []
    for case in CASES:
        mine = reports.get((case.name, OURS))
        for demand in case.demands if mine is not None else ():
            assert mine is not None
            found = figure_of(mine, demand.figure) if mine["status"] == "ok" else None
            if demand.against:
                of_peer = demand.against == PEER
                other = reports.get((case.name, PEER) if of_peer else (demand.against, OURS), {})
                base = figure_of(other, demand.figure)
                found = found / base if found is not None and base else None
            verdicts.append(Verdict(case.name, demand, found))
    return verdicts


def save(path: Path, reports: Reports, verdicts: Sequence[Verdict]) -> None:
    """Write everything as JSON."""
    content = {
        "runs": [{"case": case, "peer": broker, **report} for (case, broker), report in reports.items()],
        "demands": [
            {"case": verdict.case, "demand": verdict.demand.words, "found": verdict.found, "met": verdict.met}
            for verdict in verdicts
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
