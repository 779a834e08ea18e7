"""load: a load generator whose own cost is small beside a broker's, and the comparison of brokers with it."""

from everlog.bench.load.brokers import installed, started
from everlog.bench.load.cases import CASES, Case
from everlog.bench.load.options import Options
from everlog.bench.load.peers import Report, Verdict, compare, judge, save
from everlog.bench.load.scenarios import SCENARIOS, play

__all__ = [
    "CASES",
    "SCENARIOS",
    "Case",
    "Options",
    "Report",
    "Verdict",
    "compare",
    "installed",
    "judge",
    "play",
    "save",
    "started",
]
