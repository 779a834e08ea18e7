"""Runs tasks on Spark: each item is a task of its own, only what the function returns comes back.

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
    """Where tasks are run."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result for each item, in their order; raises what a task failed with."""


class InProcess:
    """One after the other in this process, with no Spark."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result for each item."""
        return [function(item) for item in items]


class OnSpark:
    """On the executors of a session."""

    def __init__(self, session: "SparkSession") -> None:
        self._context = session.sparkContext

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result for each item."""
        if not items:
            return []
        from py4j.protocol import Py4JJavaError

        try:
            return list(self._context.parallelize(items, len(items)).map(partial(_task, function)).collect())
        except Py4JJavaError as error:
            raise task_error("a task failed", str(error), "see the output of Spark") from error


def _task(function: Callable[[Item], Result], item: Item) -> Result:
    """What a worker does."""
    settle()
    return function(item)
