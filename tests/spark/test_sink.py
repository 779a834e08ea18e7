"""`write` and `writeStream` of the format everlog: rows to topics and tables, each once."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as F
from tests.brokers import RunningBroker
from tests.spark.lake_data import fill, messages

from everlog.base import UsageError
from everlog.mqtt import Publish, PublishWriter, decode, read_fixed_header
from everlog.spark import append_batch
from everlog.spark.sink.sink_options import read_sink_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SENT = messages(600)


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(keep=[("#", 0)]) as running:
        yield running


def published(broker: RunningBroker) -> list[Publish]:
    """What was published, in order."""
    found = []
    for records in broker.log.shards[0].batches:
        data = PublishWriter(5, retain_as_published=True).write(records, None, 0, records.count, 2, 1, 0)
        while data:
            head = read_fixed_header(data, 5)
            assert head is not None
            first, size, before = head
            packet = decode(first, data[before : before + size], 5, from_client=False)
            assert isinstance(packet, Publish)
            found.append(packet)
            data = data[before + size :]
    return found


def own_properties(packet: Publish) -> dict[str, str]:
    return {key: value for key, value in packet.properties.user_properties if not key.startswith("everlog-")}


def row_number(packet: Publish) -> tuple[str, str]:
    marks = dict(packet.properties.user_properties)
    return marks["everlog-batch"], marks["everlog-row"]


def test_a_frame_becomes_messages_with_all_that_they_have(
    spark: "SparkSession", broker: RunningBroker, tmp_path: Path
) -> None:
    schema = (
        "topic STRING, payload STRING, qos INT, retain BOOLEAN, expiry BIGINT, content_type STRING, "
        "response_topic STRING, correlation_data BINARY, user_properties MAP<STRING, STRING>"
    )
    rows: list[tuple[Any, ...]] = [
        ("a/é", "ünï", 1, True, 60, "text/plain", "answers/here", bytearray(b"\x00\x01"), {"k": "v"}),
        ("b", None, None, None, None, None, None, None, None),
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    writer = frame.write.format("everlog").mode("append").option("staging", str(tmp_path))
    writer.option("broker", f"127.0.0.1:{broker.port}").save()
    assert list(tmp_path.iterdir()) == []
    full, bare = published(broker)
    assert (full.topic, full.payload.decode(), full.qos, full.retain) == ("a/é", "ünï", 1, True)
    said = full.properties
    assert (said.content_type, said.response_topic, said.correlation_data) == ("text/plain", "answers/here", b"\0\1")
    assert 0 < (said.message_expiry_interval or 0) <= 60
    assert own_properties(full) == {"k": "v"}
    assert (bare.topic, bare.payload, bare.qos, bare.retain) == ("b", b"", 2, False)


def test_a_numbered_batch_is_published_once(spark: "SparkSession", broker: RunningBroker, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(f"t/{n}", str(n)) for n in range(50)], "topic STRING, payload STRING")
    writer = frame.write.format("everlog").mode("append")
    writer = writer.options(broker=f"127.0.0.1:{broker.port}", app="nightly", batch="7", staging=str(tmp_path))
    writer.save()
    writer.save()
    assert sorted(int(packet.payload) for packet in published(broker)) == list(range(50))


def test_a_task_that_fails_in_the_middle_publishes_nothing_of_its_own(
    spark: "SparkSession", broker: RunningBroker, tmp_path: Path
) -> None:
    names = spark.range(100, numPartitions=2).select(
        "id", F.concat(F.lit("t/"), F.col("id").cast("string")).alias("topic")
    )
    bad = F.when(F.col("id") == 70, F.raise_error(F.lit("row 70 was to fail"))).otherwise(F.lit("x"))

    def write(payload: "Column") -> None:
        names.select("topic", payload.alias("payload")).write.format("everlog").mode("append").options(
            broker=f"127.0.0.1:{broker.port}", app="a", batch="0", staging=str(tmp_path)
        ).save()

    with pytest.raises(Exception, match="row 70 was to fail"):
        write(bad)
    assert published(broker) == []
    write(F.lit("y"))
    assert [packet.payload for packet in published(broker)] == [b"y"] * 100
    assert not list(tmp_path.glob("*/*.arrow"))  # nothing is left of the attempt that failed


def test_a_stream_is_published_once_though_its_batches_are_computed_again(
    spark: "SparkSession", broker: RunningBroker, tmp_path: Path
) -> None:
    fill(tmp_path / "data", SENT, shards=2)

    def run() -> None:
        stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", "250").load(str(tmp_path / "data"))
        rows = stream.select(F.concat(F.lit("copy/"), "topic").alias("topic"), "payload", "retain", "user_properties")
        writer = rows.writeStream.format("everlog").option("broker", f"127.0.0.1:{broker.port}")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    assert sorted(packet.payload for packet in published(broker)) == sorted(one.payload for one in SENT)
    # as if the driver had died between publishing the last batch and noting it
    for commit in (tmp_path / "checkpoint/commits").glob("*2*"):
        commit.unlink()
    run()
    found = published(broker)
    assert sorted(packet.payload for packet in found) == sorted(one.payload for one in SENT)
    assert len({row_number(packet) for packet in found}) == len(SENT)
    by_number = {int(packet.payload.split(b":")[0]): packet for packet in found}
    for number, one in enumerate(SENT):
        assert (by_number[number].topic, by_number[number].retain) == (f"copy/{one.topic}", one.retain)
        assert own_properties(by_number[number]) == dict(one.properties.user_properties)


def test_a_stream_is_appended_to_a_table_once(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path / "data", SENT, shards=2)
    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", "250").load(str(tmp_path / "data"))
    table = str(tmp_path / "table")

    def run() -> None:
        writer = stream.writeStream.format("everlog").option("table", table).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    for commit in (tmp_path / "checkpoint/commits").glob("*2*"):
        commit.unlink()
    run()
    found = DeltaTable(table).to_pyarrow_table()
    assert sorted(found["payload"].to_pylist()) == sorted(one.payload for one in SENT)
    assert found.schema.names == stream.columns
    assert DeltaTable(table).version() == 3


def test_for_each_batch_appends_once(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path / "data", SENT)
    table = str(tmp_path / "table")
    seen: list[int] = []

    def append(frame: "DataFrame", number: int) -> None:
        append_batch(frame.select("topic", "offset"), table, "mine", number)
        append_batch(frame.select("topic", "offset"), table, "mine", number)
        seen.append(number)

    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", "300").load(str(tmp_path / "data"))
    stream.writeStream.foreachBatch(append).trigger(availableNow=True).start().awaitTermination()
    assert seen == [0, 1]
    assert sorted(DeltaTable(table).to_pyarrow_table()["offset"].to_pylist()) == list(range(len(SENT)))
    with pytest.raises(AnalysisException, match="columns topic string, offset long, and the rows have a integer"):
        append_batch(spark.createDataFrame([(1,)], "a INT"), table, "mine", 2)


def test_what_can_not_be_is_said(spark: "SparkSession", tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a", "b")], "topic STRING, payload STRING")
    for options, words in (
        ({}, "no destination: Spark does not say"),
        ({"checkpointLocation": "/c"}, "no destination, or two"),
        ({"broker": "x", "table": "y"}, "no destination, or two"),
        ({"streams": "s", "kv": "s", "path": "p"}, "no destination, or two"),
        ({"streams": "s"}, "which streams are these"),
        ({"kv": "s", "bus": "mqtt://a", "path": "p"}, "which streams are these"),
        ({"broker": "x", "bus": "mqtt://a"}, "the option bus is for streams"),
        ({"broker": "x", "batch": "3"}, "the option"),
        ({"broker": "x:y"}, "the option broker"),
        ({"broker": "x", "colour": "red"}, "no option 'colour'"),
        ({"broker": "x", "qos": "3"}, "qos is 0, 1 or 2"),
        ({"broker": "x", "checkpointLocation": "s3://b/c"}, "not a directory"),
    ):
        with pytest.raises(UsageError, match=words):
            read_sink_options(options)
    with pytest.raises((PythonException, AnalysisException), match="can't be taken back"):
        frame.write.format("everlog").mode("overwrite").option("broker", "127.0.0.1:1").save()
    stream = spark.readStream.format("rate").load()
    query = stream.writeStream.format("everlog").option("broker", "127.0.0.1:1")
    with pytest.raises((StreamingQueryException, PythonException), match="need a column topic"):
        query.option("checkpointLocation", str(tmp_path)).start().processAllAvailable()
