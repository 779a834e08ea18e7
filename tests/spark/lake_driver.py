"""A driver of a compaction in a process of its own, to which something happens at a chosen moment.

Run as `python -m tests.spark.lake_driver MODE DATA MASTER`. What happens is really done: the process, or the executor
that runs a task, is killed by a signal that nothing can catch.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from everlog.spark import Compaction, CompactionOptions, CompactionSummary, OnSpark, locate, spark_session
from everlog.spark.lake import compaction
from everlog.spark.lake.lake_table import Lake
from everlog.spark.lake.parquet_writer import Writer
from everlog.spark.lake.slice_writer import WriteTask, Written, write_slice

GROUP_BYTES = 60_000


def once(place: str, what: str) -> bool:
    """Whether this is the first of all attempts of all tasks to ask."""
    try:
        os.close(os.open(f"{place}.{what}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _halfway(task: WriteTask, then: Callable[[], None]) -> Written:
    """Write a slice, and do something when half of its first file is written."""
    really = Writer._encode

    def half(self: Writer, groups: Iterable[pa.Table], sink: pa.NativeFile) -> None:
        really(self, (rows.slice(0, rows.num_rows // 2) for rows in groups), sink)
        then()

    Writer._encode = half  # type: ignore[method-assign]
    try:
        return write_slice(task)
    finally:
        Writer._encode = really  # type: ignore[method-assign]


def write_or_fail(task: WriteTask) -> Written:
    """Fail in the middle of the first file, once."""

    def fail() -> None:
        raise RuntimeError("this attempt was to fail")

    return _halfway(task, fail) if once(task.location.uri, "failed") else write_slice(task)


def write_or_lose_executor(task: WriteTask) -> Written:
    """Kill the executor that runs this in the middle of the first file, once."""
    place = task.location.uri
    return _halfway(task, partial(lose_executor, place)) if once(place, "losing") else write_slice(task)


def lose_executor(place: str) -> None:
    """Kill the executor that runs this task, and say so."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    command = Path(f"/proc/{executor}/cmdline").read_bytes()
    if b"CoarseGrainedExecutorBackend" not in command:
        raise RuntimeError(f"process {executor} is no executor: {command!r}")
    Path(f"{place}.lost").write_text(str(executor))
    os.kill(executor, signal.SIGKILL)
    time.sleep(600)  # until Spark ends this process too


def die() -> None:
    """End this process at once, leaving everything as it is."""
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(mode: str, data: Path) -> None:
    """Have something happen."""
    really: Any = Lake._commit

    def before(self: Lake, *values: Any) -> int:
        die()
        return 0

    def after(self: Lake, *values: Any) -> int:
        really(self, *values)
        die()
        return 0

    def together(self: Lake, *values: Any) -> int:
        (data / f"ready-{os.getpid()}").touch()
        while len(list(data.glob("ready-*"))) < 2:
            time.sleep(0.01)
        return int(really(self, *values))

    match mode:
        case "dies-before-commit":
            Lake._commit = before  # type: ignore[assignment, method-assign]
        case "dies-after-commit":
            Lake._commit = after  # type: ignore[assignment, method-assign]
        case "commits-with-another":
            Lake._commit = together  # type: ignore[assignment, method-assign]
        case "task-fails":
            compaction.write_slice = write_or_fail  # type: ignore[attr-defined]
        case "executor-lost":
            compaction.write_slice = write_or_lose_executor  # type: ignore[attr-defined]


def on_cluster(where: Path) -> dict[str, str]:
    """The settings of a session whose executors, if it has any, are small and find these tests."""
    return {
        "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
        "spark.local.dir": str(where / f"spark-{os.getpid()}"),
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
    }


def main(mode: str, data: Path, master: str) -> None:
    """Compact all that is sealed; says what was done."""
    prepare(mode, data)
    spark = spark_session("lake test", master=master, settings=on_cluster(data.parent))
    made = Compaction(str(data), locate(str(data / "lake")), OnSpark(spark), CompactionOptions(group_bytes=GROUP_BYTES))
    summary: CompactionSummary = made.run()
    print(f"rows={summary.rows} overtaken={summary.overtaken}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
