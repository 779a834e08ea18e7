"""A progress bar of what Spark is doing: the tasks of all its stages so far."""

import os
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.2


def _terminal() -> TextIO:
    """Return standard error as it is now, since Spark's start redirects it."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w")
    except (OSError, ValueError):  # standard error is not a file
        return sys.stderr


class SparkProgress:
    """The bar of `with SparkProgress() as bar:`; shows `bar.step(text)`, and the tasks of a session that it watches."""

    def __init__(self) -> None:
        self._file = _terminal()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=self._file),
            transient=True,
        )
        self._task = self._bar.add_task("starting Spark", total=None)
        self._stages: dict[int, tuple[int, int]] = {}  # number of tasks, and how many are done
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "SparkProgress":
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def step(self, text: str) -> None:
        """Show what is being done now."""
        self._bar.update(self._task, description=text)

    def count(self, done: int, total: int) -> None:
        """Show a number of our own instead of tasks."""
        self._bar.update(self._task, completed=done, total=total)

    def watch(self, spark: "SparkSession") -> None:
        """Follow this session's tasks, if this is a terminal; a cluster behind Spark Connect does not report them."""
        if self._bar.console.is_terminal and self._thread is None:
            self._thread = threading.Thread(target=self._look, args=(spark,), name="spark-progress", daemon=True)
            self._thread.start()

    def unwatch(self) -> None:
        """Follow no tasks any more."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def end(self) -> None:
        """Remove the bar from the terminal."""
        self.unwatch()
        if self._bar.live.is_started:
            self._bar.stop()
        if self._file is not sys.stderr:
            self._file.close()

    def _look(self, spark: "SparkSession") -> None:
        tracker = spark.sparkContext.statusTracker()
        while not self._done.wait(_LOOK_S):
            active = set(tracker.getActiveStageIds())
            for stage in active:
                info = tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = (info.numTasks, info.numCompletedTasks)
            for stage in self._stages.keys() - active:
                tasks, _ = self._stages[stage]
                self._stages[stage] = (tasks, tasks)
            total = sum(tasks for tasks, _ in self._stages.values())
            if total:
                self.count(sum(done for _, done in self._stages.values()), total)
