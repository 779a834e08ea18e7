"""The session that `spark_session` begins: its cores are known to who plans tasks, and it may be one of a server."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from everlog.base import UsageError
from everlog.spark import pyspark_api, spark_session
from everlog.spark.cluster_cores import cores_of, task_count


@pytest.mark.parametrize(
    ("master", "settings", "cores"),
    [
        ("local", {}, 1),
        ("local[7]", {}, 7),
        ("local[4, 2]", {}, 4),
        ("spark://host:7077", {"spark.cores.max": "40"}, 40),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.instances": "6"}, 24),
        ("yarn", {"spark.executor.cores": "4"}, None),
    ],
)
def test_the_cores_of_a_session(master: str, settings: dict[str, str], cores: int | None) -> None:
    assert cores_of(master, settings) == cores


def test_tasks_are_three_for_each_core_of_the_session() -> None:
    assert task_count({"EVERLOG_CORES": "40"}) == 120
    assert task_count({}) == task_count({"EVERLOG_CORES": "x"}) > 0


class Builder:
    """Takes what a session is begun with."""

    def __init__(self, error: ImportError | None = None) -> None:
        self.error = error
        self.given: dict[str, str] = {}

    def appName(self, name: str) -> "Builder":
        return self.config("name", name)

    def remote(self, url: str) -> "Builder":
        return self.config("remote", url)

    def config(self, name: str, value: str) -> "Builder":
        self.given[name] = value
        return self

    def getOrCreate(self) -> Any:
        if self.error is not None:
            raise self.error
        return "a session without a sparkContext"


def test_a_session_may_be_one_of_a_server_behind_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no Java here and has no context, and only the settings of queries are made."""
    builder = Builder()
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found: Any = spark_session("mine", master="sc://host:15002", settings={"spark.sql.ansi.enabled": "true"})
    assert found == "a session without a sparkContext"
    assert builder.given["remote"] == "sc://host:15002"
    assert {name for name in builder.given if name.startswith("spark.")} == {
        "spark.sql.ansi.enabled",
        "spark.sql.session.timeZone",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
    }
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    other = Builder()
    monkeypatch.setattr(SparkSession, "builder", other)
    spark_session()
    assert "remote" not in other.given  # Spark takes it from the environment
    monkeypatch.setattr(SparkSession, "builder", Builder(ImportError("No module named 'google.rpc'")))
    with pytest.raises(UsageError, match="Spark Connect is not installed"):
        spark_session(master="sc://host")


def test_the_version_that_runs_is_one_that_is_said_to_be_tested() -> None:
    from pyspark import __version__

    assert __version__ in pyspark_api.TESTED
