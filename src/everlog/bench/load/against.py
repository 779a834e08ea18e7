"""Two checkouts of Everlog and the peers, measured in turns: what a change costs, and how much of it is noise.

Each round plays a case on every broker, on Everlog with everything and with nothing kept; the next round goes the other
way, so that what slowly changes on the machine hits all alike. Ratios are of two runs of the same round.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from everlog import _kernels
from everlog.base import UsageError
from everlog.bench.load.brokers import Broker, checkout
from everlog.bench.load.cases import CPU, P50, P99, RATE, Case, figure_of
from everlog.bench.load.peers import Report, pinned, play_case

THIS, AGAINST = "this", "against"

Rounds = dict[tuple[str, Broker], list[Report]]  # by case and broker, a report for each round


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over the rounds, with the extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of a case: by broker, and this checkout's as a multiple of the other's."""

    case: str
    keeps: bool
    figure: str
    brokers: dict[str, Spread | None]
    ratio: Spread | None

    @property
    def is_worse(self) -> bool | None:
        """Whether every round was worse (True) or better (False); None when rounds differ, which is noise."""
        if self.ratio is None or self.ratio.low <= 1 <= self.ratio.high:
            return None
        return (self.ratio.high < 1) == (self.figure == RATE)


def contestants(directory: Path, peers: Sequence[Broker]) -> list[Broker]:
    """Return this checkout and the one in a directory, each with everything and with nothing kept, then the peers."""
    if _kernels.interpreted():
        raise UsageError("the kernels of this Everlog are not compiled", hint="run: make kernels")
    ours = Broker(THIS), checkout(directory, AGAINST)
    return [*(replace(one, keeps=keeps) for keeps in (True, False) for one in ours), *peers]


def play_rounds(
    brokers: Sequence[Broker],
    cases: Sequence[Case],
    seconds: float,
    rounds: int,
    tell: Callable[[str, str, Report | None], None],
) -> Rounds:
    """Play every case on every broker, round by round; `tell` hears of each run before (None) and after it."""
    turns = [
        (case, broker)
        for case in cases
        for number in range(rounds)
        for broker in filter(case.is_for, brokers if number % 2 == 0 else reversed(brokers))
    ]
    reports: Rounds = {}
    with pinned() as cpus:
        for case, broker in turns:
            name = broker.name if broker.keeps else f"{broker.name}, nothing kept"
            tell(case.name, name, None)
            report = play_case(case, broker, seconds, cpus)
            reports.setdefault((case.name, broker), []).append(report)
            tell(case.name, name, report)
    return reports


def lines(rounds: Rounds, brokers: Sequence[Broker], cases: Sequence[Case]) -> list[Line]:
    """Return the figures of all cases, those with everything kept before those with nothing kept."""
    found = []
    for case in cases:
        for keeps in (True, False):
            these = [one for one in brokers if one.keeps == keeps or not one.is_everlog]
            for figure in (RATE, CPU, *((P50, P99) if case.has_latency else ())):
                values = {
                    one.name: [_figure(report, figure) for report in rounds.get((case.name, one), ())] for one in these
                }
                this, other, *_ = values.values()
                ratios = [a / b if a is not None and b else None for a, b in zip(this, other, strict=True)]
                if this:
                    spreads = {name: _spread(some) for name, some in values.items()}
                    found.append(Line(case.name, keeps, figure, spreads, _spread(ratios)))
    return found


def _figure(report: Report, figure: str) -> float | None:
    return figure_of(report, figure) if report["status"] == "ok" else None


def _spread(values: Sequence[float | None]) -> Spread | None:
    there = [value for value in values if value is not None]
    return Spread(median(there), min(there), max(there)) if there else None


def between_cases(found: Sequence[Line], cases: Sequence[Case]) -> list[tuple[str, str, dict[str, float]]]:
    """Return case, demand and multiples by checkout for the demands that compare a case with another case."""
    medians = {
        (line.case, line.figure, name): spread.median
        for line in found
        for name, spread in line.brokers.items()
        if spread is not None and line.keeps
    }
    shown = []
    for case in cases:
        for demand in case.demands:
            multiples = {
                name: medians[case.name, demand.figure, name] / medians[demand.against, demand.figure, name]
                for name in (THIS, AGAINST)
                if {(case.name, demand.figure, name), (demand.against, demand.figure, name)} <= medians.keys()
            }
            if multiples:
                shown.append((case.name, demand.words, multiples))
    return shown


def save_rounds(path: Path, rounds: Rounds, found: Sequence[Line]) -> None:
    """Write every run and all that was made of them as JSON."""
    runs = [
        {"case": case, "peer": broker.name, "keeps": broker.keeps, "round": number, **report}
        for (case, broker), reports in rounds.items()
        for number, report in enumerate(reports)
    ]
    path.write_text(json.dumps({"runs": runs, "figures": [asdict(line) for line in found]}, indent=1) + "\n")
