"""load: a load generator whose own cost is small beside a broker's, and the comparison of brokers with it."""

from everlog.bench.load.options import Options
from everlog.bench.load.scenarios import SCENARIOS, play

__all__ = ["SCENARIOS", "Options", "play"]
