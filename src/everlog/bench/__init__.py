"""bench: what each part costs, printed with its recipe."""

from everlog.bench.measurement import Row, measure, show
from everlog.bench.suites import SUITES, run_suites
