"""load: a load generator whose own cost is small beside a broker's, and the comparison of brokers with it."""

from everlog.bench.load.against import Line, Rounds, Spread, between_cases, contestants, lines, play_rounds, save_rounds
from everlog.bench.load.brokers import Broker, installed, started
from everlog.bench.load.cases import CASES, CPU, P50, P99, RATE, Case
from everlog.bench.load.options import Options
from everlog.bench.load.peers import ALL_CASES, TROUBLES, Report, Verdict, compare, judge, save
from everlog.bench.load.scenarios import SCENARIOS, play
