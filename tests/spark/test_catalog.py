"""Tables of Spark's catalog, and tables that the sink writes: made, read back, replaced, kept."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from tests.spark.lake_data import fill, messages

from everlog.base import UsageError
from everlog.cli import main
from everlog.spark import write_batch
from everlog.spark.given_options import own_options
from everlog.spark.sink.sink_options import read_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT = messages(300)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("catalog") / "data"
    fill(place, SENT)
    return place


def count(spark: "SparkSession", table: str) -> int:
    return spark.table(table).count()


def test_a_store_is_a_table_of_sparks_catalog(spark: "SparkSession", data: Path) -> None:
    try:
        spark.sql(f"CREATE TABLE by_path USING everlog OPTIONS (path '{data}', columns 'topic,offset', to '0:200')")
        spark.sql(f"CREATE TABLE by_location USING everlog LOCATION '{data}' COMMENT 'x' TBLPROPERTIES ('a' = 'b')")
        spark.catalog.createTable("by_call", path=str(data), source="everlog", description="x", columns="offset")
        assert spark.table("by_path").columns == ["topic", "offset"]
        assert [count(spark, one) for one in ("by_path", "by_location", "by_call")] == [200, len(SENT), len(SENT)]
        with pytest.raises(AnalysisException, match="no option 'colour'"):
            spark.sql(f"CREATE TABLE wrong USING everlog OPTIONS (path '{data}', colour 'red')")
    finally:
        for name in ("by_path", "by_location", "by_call", "wrong"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_of_the_sink_is_made_read_back_replaced_and_kept(
    spark: "SparkSession", data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table")
    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", "100").load(str(data))
    query = stream.select("topic", "offset").writeStream.format("everlog").queryName("named")
    query = query.options(table=table, app="copy", checkpointLocation=str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.format("everlog").option("columns", "offset").load(table)
    assert found.columns == ["offset"]
    assert sorted(row.offset for row in found.collect()) == list(range(len(SENT)))

    assert len(DeltaTable(table).file_uris()) == 3
    assert main(["spark", "vacuum", "--table", table, "--merge", "--hours", "0", "--force"]) == 0
    assert "3 files merged" in capsys.readouterr().out
    assert len(list(Path(table).glob("*.parquet"))) == len(DeltaTable(table).file_uris()) == 1
    again = spark.read.format("everlog").load(table)
    assert again.count() == len(SENT)
    write_batch(again, "copy", 2, table=table)  # which the merged table has, as it knows
    assert spark.read.format("everlog").load(table).count() == len(SENT)

    try:
        spark.sql(f"CREATE TABLE copy USING everlog OPTIONS (path '{table}')")
        spark.sql("INSERT INTO copy SELECT 'more', 1000L")
        assert count(spark, "copy") == len(SENT) + 1
        spark.sql("INSERT OVERWRITE copy SELECT 'only', 1L")
        assert [tuple(row) for row in spark.table("copy").collect()] == [("only", 1)]
    finally:
        spark.sql("DROP TABLE IF EXISTS copy")
    frame = spark.range(5).selectExpr("'x' AS topic", "id AS offset")
    frame.write.format("everlog").mode("overwrite").save(table)
    assert spark.read.format("everlog").load(table).count() == 5


def test_complete_and_update_mode_reach_a_table(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    """Complete mode replaces the table at each batch; update mode goes by foreachBatch, as Spark has no other way."""
    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", "150").load(str(data))
    counts = stream.groupBy("topic").count()
    whole, changes = str(tmp_path / "whole"), str(tmp_path / "changes")
    query = counts.writeStream.format("everlog").outputMode("complete").option("table", whole)
    query.option("checkpointLocation", str(tmp_path / "c1")).trigger(availableNow=True).start().awaitTermination()
    topics = {message.topic for message in SENT}
    assert {row["topic"]: row["count"] for row in DeltaTable(whole).to_pyarrow_table().to_pylist()}.keys() == topics
    assert sum(row["count"] for row in DeltaTable(whole).to_pyarrow_table().to_pylist()) == len(SENT)

    def keep(frame: "DataFrame", number: int) -> None:
        write_batch(frame, "counts", number, table=changes)
        write_batch(frame, "counts", number, table=changes)  # computed again after a restart

    query = counts.writeStream.outputMode("update").foreachBatch(keep)
    query.option("checkpointLocation", str(tmp_path / "c2")).trigger(availableNow=True).start().awaitTermination()
    rows = DeltaTable(changes).to_pyarrow_table().to_pylist()
    last = {topic: max(row["count"] for row in rows if row["topic"] == topic) for topic in topics}
    assert sum(last.values()) == len(SENT)
    assert len({(row["topic"], row["count"]) for row in rows}) == len(rows)


def test_what_spark_passes_is_told_from_what_the_user_gave() -> None:
    assert own_options({"queryName": "x", "table": "t"}) == {"table": "t"}
    made = {"provider": "everlog", "location": "file:/d", "owner": "me", "x": "y", "topic": "a", "option.topic": "a"}
    assert own_options(made) == {"topic": "a", "path": "file:/d"}


def test_a_directory_of_something_else_is_not_taken_for_a_table(data: Path) -> None:
    with pytest.raises(UsageError, match="is no table"):
        read_sink_options({"path": str(data)})
