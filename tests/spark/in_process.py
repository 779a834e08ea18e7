"""Tasks of a compaction without Spark."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class InProcess:
    """Runs tasks one after the other in this process."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the result for each item."""
        return [function(item) for item in items]
