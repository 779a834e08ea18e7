"""bench: what each part costs, printed with its recipe."""

from everlog.bench.suites import SUITES, run_suites
from everlog.bench.table import Row, measure, show

__all__ = ["SUITES", "Row", "measure", "run_suites", "show"]
