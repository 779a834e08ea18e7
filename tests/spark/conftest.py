"""One Spark session for all of these tests: starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.in_process import close_stores

from everlog.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

# One of each kind, for every `make test`; all of them are `make test-spark` and `make soak`.
CORE = {
    "test_end_to_end.py",
    "test_hot_and_cold.py",
    "test_lake_store.py",
    "test_lake_holes.py",
    "test_lake_moved.py",
    "test_lake_compaction_plan.py",
    "test_lake_maintenance.py",
    "test_lake_table.py",
    "test_payload.py",
    "test_replay_from_lake.py",
    "test_sink_batch_publisher.py",
    "test_log_slices.py",
    "test_session_factory.py",
    "test_stream_planning.py",
    "test_thinned.py",
    "test_worker_process.py",
    "test_sink.py::test_a_stream_is_appended_to_a_table_once",
    "test_sink.py::test_a_stream_is_published_once_though_its_batches_are_computed_again",
    "test_sink_state.py::test_a_batch_is_written_once_wherever_its_writer_stops",
    "test_sink_state.py::test_a_writer_that_can_not_know_says_so",
    "test_sink_state.py::test_rows_go_over_a_bus_with_all_that_they_have",
    "test_state.py::test_a_frame_stays_as_of_its_position_while_the_server_goes_on",
    "test_source.py::test_one_frame_in_two_filters_gives_both",
    "test_source.py::test_pyspark_keeps_pushed_filters_of_two_scans_apart",
    "test_source.py::test_retention_while_reading_is_a_clear_error",
    "test_source.py::test_tasks_are_about_as_many_as_asked_for",
    "test_source.py::test_the_log_is_a_table_with_all_its_columns",
    "test_stream.py::test_a_stream_has_every_row_once_across_restarts",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            name = item.name.partition("[")[0]
            if item.path.name in CORE or f"{item.path.name}::{name}" in CORE:
                item.add_marker("core")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on two cores, with its files in a directory of the run."""
    scratch = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "everlog tests",
        master="local[2]",
        settings={
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """Stores that a test read in this process are closed behind it."""
    yield
    close_stores()
