"""Tasks of a compaction without Spark."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from everlog.spark import store_cache

Item = TypeVar("Item")
Result = TypeVar("Result")


class InProcess:
    """Runs tasks one after the other in this process."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the result for each item."""
        return [function(item) for item in items]


def close_stores() -> None:
    """Close the stores that tasks of this process read."""
    while store_cache._opened:
        store_cache._opened.popitem()[1][1].close()
