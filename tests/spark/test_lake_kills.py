"""Compaction on Spark with drivers, executors and tasks that die: every row is in the table once."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.cluster import standalone
from tests.spark.in_process import InProcess
from tests.spark.lake_data import cold_rows, fill, log_rows, messages

from everlog.spark import Compaction, CompactionOptions, LakeStore, locate
from everlog.store import read_lake_record

pytestmark = pytest.mark.soak
ROWS = 4_000
LOCAL = "local[2,4]"  # a task is tried four times


@pytest.fixture
def data(tmp_path: Path) -> Path:
    where = tmp_path / "data"
    fill(where, messages(ROWS), shards=2)
    return where


def start(mode: str, data: Path, master: str = LOCAL) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.lake_driver", mode, str(data), master],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None,
    )


def finish(process: "subprocess.Popen[str]", status: int = 0) -> dict[str, int]:
    """Wait for a driver's end; the numbers that it said."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == status, err[-3_000:]
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", out)}


def files_on_disk(data: Path) -> int:
    return len(list((data / "lake").glob("day=*/*.parquet")))


def check_every_row_once(data: Path) -> None:
    """The table has each sealed row of the log once, and both ways to read it agree."""
    cold = LakeStore(locate(str(data / "lake")))
    for shard in (0, 1):
        end = cold.end(shard)
        assert end > 500
        assert cold_rows(cold, shard) == log_rows(data, shard, end)
    table = cold._lake.load()
    keys = table.to_pyarrow_table(columns=["shard", "offset"]).to_pylist()
    wanted = [{"shard": shard, "offset": offset} for shard in (0, 1) for offset in range(cold.end(shard))]
    assert sorted(keys, key=lambda row: (row["shard"], row["offset"])) == wanted


def compact_here(data: Path) -> int:
    """Compact what is left in this process; how many rows that were."""
    made = Compaction(str(data), locate(str(data / "lake")), InProcess(), CompactionOptions(group_bytes=60_000))
    return made.run().rows


def test_a_driver_killed_before_the_commit_leaves_nothing_in_the_table(data: Path) -> None:
    finish(start("dies-before-commit", data), -signal.SIGKILL)
    left = files_on_disk(data)
    assert left > 0
    assert LakeStore(locate(str(data / "lake"))).end(0) == 0
    assert read_lake_record(str(data)) is None
    assert compact_here(data) > 0
    check_every_row_once(data)
    assert files_on_disk(data) == 2 * left


def test_a_driver_killed_after_the_commit_has_done_its_work(data: Path) -> None:
    finish(start("dies-after-commit", data), -signal.SIGKILL)
    assert read_lake_record(str(data)) is None
    check_every_row_once(data)
    assert compact_here(data) == 0
    check_every_row_once(data)
    record = read_lake_record(str(data))
    assert record is not None
    assert record.ends[0] == LakeStore(locate(str(data / "lake"))).end(0)


def test_of_two_compactions_at_once_one_adds_each_row(data: Path) -> None:
    both = [start("commits-with-another", data) for _ in range(2)]
    said = [finish(process) for process in both]
    assert sorted(one["overtaken"] for one in said) == [0, 1]
    assert sorted(one["rows"] > 0 for one in said) == [False, True]
    check_every_row_once(data)


def test_a_task_that_fails_in_the_middle_is_tried_again(data: Path) -> None:
    said = finish(start("task-fails", data))
    assert (data / "lake.failed").exists()
    assert said["overtaken"] == 0
    check_every_row_once(data)
    assert files_on_disk(data) == 1 + len(LakeStore(locate(str(data / "lake")))._lake.files())


def test_an_executor_killed_in_the_middle_of_a_write_on_a_cluster(data: Path, tmp_path: Path) -> None:
    with standalone(tmp_path / "cluster") as cluster:
        finish(start("executor-lost", data, cluster.master))
        assert (data / "lake.lost").exists()
    check_every_row_once(data)
    assert files_on_disk(data) == 1 + len(LakeStore(locate(str(data / "lake")))._lake.files())
