"""Log and table read as one: every row once, wherever it lies, and the same whatever was compacted or dropped."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from tests.spark.frames import batches, compact, drop_log, kinds, planned, rows
from tests.spark.lake_data import DAY_US, NOON_US, fill, messages, table_rows

from everlog.base import StorageError, Unavailable, UsageError
from everlog.spark import COLUMNS, Slice
from everlog.spark.lake_slices import LakeSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = messages(3000)
SHARDS = pytest.mark.parametrize("shards", [1, 4])


@SHARDS
def test_all_of_history_is_there_once(tmp_path: Path, shards: int) -> None:
    fill(tmp_path, SENT, shards=shards)
    before = table_rows(rows(planned(tmp_path)))
    assert len(before) == len(SENT)
    made = compact(tmp_path)
    both = planned(tmp_path)
    assert kinds(both) == {Slice, LakeSlice}
    assert table_rows(rows(both)) == before
    drop_log(tmp_path)
    assert min(shard.start for shard in planned(tmp_path, tier="log").snapshot.shards) > 0
    assert table_rows(rows(planned(tmp_path))) == before
    made.run()
    fill(tmp_path, messages(500, seed=2), shards=shards, first_us=NOON_US + DAY_US)
    assert len(table_rows(rows(planned(tmp_path)))) == len(SENT) + 500


@SHARDS
def test_a_tier_can_be_read_alone(tmp_path: Path, shards: int) -> None:
    fill(tmp_path, SENT, shards=shards)
    before = table_rows(rows(planned(tmp_path)))
    compact(tmp_path)
    assert kinds(planned(tmp_path, tier="log")) == {Slice}
    assert table_rows(rows(planned(tmp_path, tier="log"))) == before
    cold = planned(tmp_path, tier="table")
    assert kinds(cold) == {LakeSlice}
    ends = cold.lake.ends if cold.lake else ()
    assert table_rows(rows(cold)) == [row for row in before if row[1] < ends[row[0]]]


@SHARDS
def test_a_table_can_be_read_without_its_log(tmp_path: Path, shards: int) -> None:
    data, place = tmp_path / "data", tmp_path / "table"
    fill(data, SENT, shards=shards)
    compact(data).run()
    shutil.move(data / "lake", place)
    alone = planned(place)
    ends = alone.lake.ends if alone.lake else ()
    assert len(ends) == shards
    want = [row for row in table_rows(rows(planned(data, tier="log"))) if row[1] < ends[row[0]]]
    assert want
    assert table_rows(rows(alone)) == want
    topics = sorted(row["topic"] for row in rows(alone, ("topic",)).to_pylist())
    some = sorted(row["topic"] for row in rows(alone, ("topic",), ["site/1/#"]).to_pylist())
    assert some == [topic for topic in topics if topic.startswith("site/1/")]
    half = rows(planned(place, begin=f"0:{ends[0] // 2}", shards=(0,)), ("offset",)).to_pylist()
    assert sorted(row["offset"] for row in half) == list(range(ends[0] // 2, ends[0]))
    with pytest.raises(UsageError, match="is a table"):
        planned(place, tier="log")


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("topics", [["site/1/#"], ["+/+/temp/+"], ["site/2/Strömung/s10"], ["nope"]])
def test_a_filter_finds_the_same_in_both(tmp_path: Path, topics: list[str], drop: bool) -> None:
    fill(tmp_path, SENT, shards=2)
    columns = ("shard", "offset", "payload")
    log = rows(planned(tmp_path, tier="log"), columns, topics) if topics != ["nope"] else None
    compact(tmp_path)
    if drop:
        drop_log(tmp_path)
    if log is None:
        assert not list(batches(planned(tmp_path), columns, topics))
        return
    found = rows(planned(tmp_path), columns, topics)
    assert found.schema.names == list(columns)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, log.to_pylist()))


@pytest.mark.parametrize("drop", [False, True])
def test_from_and_to_lie_in_either(tmp_path: Path, drop: bool) -> None:
    fill(tmp_path, SENT, shards=2, step_us=1_000_000)
    before = rows(planned(tmp_path))
    compact(tmp_path)
    if drop:
        drop_log(tmp_path)
    begin, end = "2024-10-04T12:00:0", "2024-10-04T12:00:"
    for first, last in ((f"{begin}5Z", f"{end}20Z"), (f"{begin}5Z", f"{end}59.5Z"), (f"{end}58Z", f"{end}59.5Z")):
        found = table_rows(rows(planned(tmp_path, begin=first, end=last)))
        times = before["timestamp"].cast(pa.int64()).to_pylist()
        low, high = ((pa.scalar(text[:-1]).cast(pa.timestamp("us")).value) for text in (first, last))
        kept = [n for n, time_us in enumerate(times) if low <= time_us < high]
        assert found == table_rows(before.take(kept))
    found = rows(planned(tmp_path, begin="0:100,1:7", end="0:900,1:9"), ("shard", "offset"))
    places = sorted((row["shard"], row["offset"]) for row in found.to_pylist())
    assert places == [(0, n) for n in range(100, 900)] + [(1, 7), (1, 8)]


def test_a_frame_reads_the_version_that_it_was_loaded_with(tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    compact(tmp_path)
    found = planned(tmp_path)
    before = table_rows(rows(found))
    fill(tmp_path, messages(500, seed=2), first_us=NOON_US + DAY_US)
    compact(tmp_path, merge=True, everything=True)
    assert table_rows(rows(found)) == before


def test_a_file_that_was_vacuumed_is_a_clear_error(tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    compact(tmp_path)
    found = planned(tmp_path)
    for path in (tmp_path / "lake").glob("day=*"):
        shutil.rmtree(path)
    with pytest.raises(Unavailable, match="is no longer in the table"):
        rows(found)


def test_a_table_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name, SENT[:500])
        compact(tmp_path / name)
    shutil.rmtree(tmp_path / "b/lake")
    shutil.copytree(tmp_path / "a/lake", tmp_path / "b/lake")
    with pytest.raises(StorageError, match="is the table of another store"):
        planned(tmp_path / "b")


def test_a_file_from_before_a_column_has_null_there(tmp_path: Path) -> None:
    fill(tmp_path, SENT[:1000])
    compact(tmp_path)
    found = planned(tmp_path, tier="table")
    for piece in found.slices(4):
        assert isinstance(piece, LakeSlice)
        path = tmp_path / "lake" / piece.path
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["client_id", "response_topic"]), path)
    table = rows(found)
    assert table.schema.names == list(COLUMNS)
    assert table["response_topic"].null_count == table.num_rows > 0


def test_spark_reads_both_as_one_table(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2)
    whole = spark.read.format("everlog").load(str(tmp_path))
    counted = {row["topic"]: row["count"] for row in whole.groupBy("topic").count().collect()}
    compact(tmp_path)
    drop_log(tmp_path)
    both = spark.read.format("everlog").load(str(tmp_path))
    assert both.count() == len(SENT)
    assert {row["topic"]: row["count"] for row in both.groupBy("topic").count().collect()} == counted
    assert sorted(bytes(row["payload"]) for row in both.collect()) == sorted(one.payload for one in SENT)
    alone = spark.read.format("everlog").load(str(tmp_path / "lake"))
    assert alone.count() == spark.read.format("everlog").option("tier", "table").load(str(tmp_path)).count() > 0
    some = spark.read.format("everlog").options(topic="site/1/#", columns="topic,levels").load(str(tmp_path))
    assert some.count() == sum(one.topic.startswith("site/1/") for one in SENT)


def test_spark_says_what_retention_took_from_a_frame(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    frame = spark.read.format("everlog").load(str(tmp_path))  # which no worker has open yet
    drop_log(tmp_path)
    with pytest.raises(PythonException, match="retention removed"):
        frame.count()
