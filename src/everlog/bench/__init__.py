"""bench: what each part costs, printed with its recipe."""

from everlog.bench.table import Row, measure, show

__all__ = ["Row", "measure", "show"]
