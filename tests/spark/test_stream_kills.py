"""Streams that lose their driver, with Spark and all its workers, or an executor: every row arrives once."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.brokers import RunningBroker
from tests.spark.cluster import standalone
from tests.spark.lake_data import fill, messages
from tests.spark.stream_driver import copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
SENT = messages(1000)


def run(mode: str, where: Path, port: int = 0, master: str = "local[2]", status: int = 0) -> None:
    """Run a driver until its end."""
    words = [mode, str(where / "data"), str(where), str(port), master]
    with (where / f"{mode}.out").open("w") as out:  # no pipe: what Spark started may outlive the driver for a while
        command = [sys.executable, "-m", "tests.spark.stream_driver", *words]
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=400, check=False)
    assert done.returncode == status, (where / f"{mode}.out").read_text()[-3000:]


def lose(mode: str, where: Path, port: int = 0) -> None:
    """Run a driver until it is killed."""
    run(mode, where, port, status=-signal.SIGKILL)


def test_a_table_has_every_row_once_though_an_executor_dies_in_the_midst_of_a_write(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "data", SENT, shards=2)
    table = tmp_path / "table"
    with standalone(tmp_path / "cluster") as cluster:
        run("executor-lost", tmp_path, master=cluster.master)
    assert (tmp_path / "table.lost").exists()
    found = DeltaTable(str(table))
    left = {path.name for path in table.glob("*.parquet")} - {Path(uri).name for uri in found.file_uris()}
    assert left, "the file that the executor was writing"
    assert sorted(found.to_pyarrow_table()["payload"].to_pylist()) == sorted(one.payload for one in SENT)


def test_a_table_has_every_row_once_though_drivers_die_before_and_after_the_commit(
    spark: "SparkSession", tmp_path: Path
) -> None:
    fill(tmp_path / "data", SENT, shards=2)
    table = str(tmp_path / "table")
    lose("dies-before-commit", tmp_path)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 400
    assert len(list(tmp_path.glob("table/*.parquet"))) > len(DeltaTable(table).file_uris())
    lose("dies-after-commit", tmp_path)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 800
    copy(spark, "lives", tmp_path / "data", tmp_path)
    found = DeltaTable(table).to_pyarrow_table()["payload"].to_pylist()
    assert sorted(found) == sorted(one.payload for one in SENT)


def test_topics_have_every_row_once_though_drivers_die_in_the_midst_of_a_batch(
    spark: "SparkSession", tmp_path: Path
) -> None:
    fill(tmp_path / "data", SENT, shards=2)
    with RunningBroker(keep=[("#", 0)]) as broker:
        for mode in ("dies-with-a-window-sent", "dies-with-a-window-noted"):
            lose(mode, tmp_path, broker.port)
            assert 400 < broker.log.shards[0].committed < 800
        copy(spark, "lives", tmp_path / "data", tmp_path, broker.port)
        found = [payload for records in broker.log.shards[0].batches for *_, payload in records.rows()]
    assert sorted(found) == sorted(one.payload for one in SENT)
