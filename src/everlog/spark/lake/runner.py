"""Runs tasks on Spark: each item is a task of its own, and only the function's result comes back.

A task that fails is tried again by Spark, maybe while its first attempt still runs; the result of one attempt counts.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from everlog.spark.task_errors import task_error
from everlog.spark.worker_process import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


class Runner(Protocol):
    """A place where tasks run."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the result for each item, in their order; raises what a task failed with."""


class OnSpark:
    """Runs tasks on the executors of a session."""

    def __init__(self, session: "SparkSession") -> None:
        self._context = session.sparkContext

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the result for each item."""
        if not items:
            return []
        from py4j.protocol import Py4JJavaError

        try:
            return list(self._context.parallelize(items, len(items)).map(partial(_task, function)).collect())
        except Py4JJavaError as error:
            raise task_error("a task failed", str(error), "see the output of Spark") from error


def _task(function: Callable[[Item], Result], item: Item) -> Result:
    """Run one item on a worker."""
    settle()
    return function(item)
