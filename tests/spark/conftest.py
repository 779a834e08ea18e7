"""One Spark session for all of these tests: starting one takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from everlog.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    from everlog.spark.opened import close_stores

    close_stores()
