"""`spark.readStream.format("everlog")`: micro-batches, checkpoints, and what a stream is told when it can't go on."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.frames import compact, drop_log
from tests.spark.lake_data import fill, messages
from tests.spark.streams import Gathered, Row

from everlog.mqtt import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = messages(1500)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    where = tmp_path / "data"
    fill(where, SENT, shards=2)
    return where


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(payload.split(b":")[0]) for _, _, payload in rows)


def test_a_stream_has_every_row_once_across_restarts(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    gathered = Gathered(spark, tmp_path, data, maxRecordsPerTrigger="600")
    rows = gathered.run()
    assert [len(batch) for _, batch in gathered.batches] == [600, 600, 300]
    assert numbers(rows) == list(range(1500))
    assert gathered.run() == []
    fill(data, messages(700, seed=2), shards=2)
    gathered.fail_at = 4
    with pytest.raises(StreamingQueryException, match="this batch was to fail"):
        gathered.run()
    done = gathered.batches[3:]
    gathered.fail_at = None
    again = gathered.run()
    assert [number for number, _ in gathered.batches] == [0, 1, 2, 3, 4]
    assert numbers([row for _, batch in done for row in batch] + again) == list(range(700))
    compact(data)
    drop_log(data)
    assert gathered.run() == []


def test_a_stream_selects_topics_columns_and_payloads_as_a_frame_does(spark: "SparkSession", tmp_path: Path) -> None:
    sent = [Publish(f"a/{n % 2}", b'{"n": %d}' % n, 1, packet_id=1) for n in range(20)]
    fill(tmp_path / "data", sent)
    options = {"topic": "a/1", "payload": "json", "payloadSchema": "n INT", "columns": "topic,payload"}
    stream = spark.readStream.format("everlog").options(**options).load(str(tmp_path / "data"))
    assert stream.columns == ["topic", "payload"]
    query = stream.writeStream.format("memory").queryName("chosen").trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.sql("SELECT topic, payload.n FROM chosen").collect()
    assert sorted((row[0], row[1]) for row in found) == [("a/1", n) for n in range(1, 20, 2)]


def test_lost_history_ends_the_stream_and_is_named(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    gathered = Gathered(spark, tmp_path, data, maxRecordsPerTrigger="100")
    gathered.fail_at = 1
    with pytest.raises(StreamingQueryException):
        gathered.run()
    drop_log(data)
    gathered.fail_at = None
    with pytest.raises(StreamingQueryException, match="retention removed offsets that the stream has not read"):
        gathered.run()
    skipping = Gathered(spark, tmp_path, data, onLost="skip")
    rows = skipping.run()
    first = {shard: int(min(data.glob(f"shard-{shard}/*.log")).stem) for shard in (0, 1)}
    assert rows
    assert all(offset >= first[shard] for shard, offset, _ in rows)


def test_a_checkpoint_of_another_store_is_refused(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    Gathered(spark, tmp_path, data).run()
    fill(tmp_path / "other", SENT[:10], shards=2)
    with pytest.raises(StreamingQueryException, match="the checkpoint is of the store"):
        Gathered(spark, tmp_path, tmp_path / "other").run()
