"""From end to end: clients, a real broker, Spark, the table and who reads it, and a client that goes back in time."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from tests import raw_client
from tests.listening import eventually
from tests.raw_client import RawClient
from tests.system.serving import Served

from everlog.mqtt import Properties, Publish, Suback, Subscribe, Subscription
from everlog.spark import Compaction, OnSpark, locate, take_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
PRESSES = [f"plant/{plant}/press/{n}" for plant in ("berlin", "oslo") for n in (1, 2)]
SECONDS = 60  # of the presses' own clock
WINDOW_S = 10
EPOCH = 1_767_571_200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker with small segments, which drops what the table has beyond 10 kB."""
    settings = {"log__segment_bytes": 8_000, "log__retention_bytes": 10_000, "retention__await_table": "true"}
    with Served(tmp_path / "data", "--keep", "plant/#", "--keep", "windows/#", **settings) as broker:
        yield broker


def send_readings(port: int, first: int, last: int) -> None:
    """Each press tells its temperature at each second of its clock."""
    clients = [RawClient(port) for _ in PRESSES]
    for number, client in enumerate(clients):
        client.connect(f"press-{number}")
    for second in range(first, last):
        for number, (client, topic) in enumerate(zip(clients, PRESSES, strict=True)):
            reading = {"at": EPOCH + second, "celsius": 20 + number + second % 7, "text": "x" * 60}
            client.publish(topic, json.dumps(reading), qos=1 + number % 2)
    for client in clients:
        client.disconnect()


def windows(readings: "DataFrame") -> "DataFrame":
    """Messages that tell the highest temperature of each press in each ten seconds."""
    at = F.col("payload.at").cast("timestamp")
    by_window = (
        readings.withColumn("at", at)
        .withWatermark("at", "0 seconds")
        .groupBy(F.window("at", f"{WINDOW_S} seconds"), "topic")
        .agg(F.max("payload.celsius").alias("hottest"), F.count("*").alias("count"))
    )
    return by_window.select(
        F.concat(F.lit("windows/"), "topic").alias("topic"),
        F.to_json(F.struct(F.unix_timestamp("window.start").alias("start"), "hottest", "count")).alias("payload"),
    )


def expected_windows(seconds: int) -> set[tuple[str, int, int]]:
    return {
        (f"windows/{topic}", EPOCH + start, max(20 + number + second % 7 for second in range(start, start + WINDOW_S)))
        for number, topic in enumerate(PRESSES)
        for start in range(0, seconds, WINDOW_S)
    }


def run_streams(spark: "SparkSession", data: Path, where: Path, port: int) -> None:
    """All that is there: windows to topics, and every row to a table."""
    source = spark.readStream.format("everlog").option("topic", "plant/#")
    readings = source.option("payload", "json").option("payloadSchema", "at BIGINT, celsius INT").load(str(data))
    published = windows(readings).writeStream.format("everlog").option("broker", f"127.0.0.1:{port}")
    copied = readings.select("offset", "topic", "payload.celsius").writeStream.format("everlog")
    copied = copied.option("table", str(where / "readings"))
    for name, writer in (("windows", published), ("copy", copied)):
        query = writer.option("checkpointLocation", str(where / name)).trigger(availableNow=True).start()
        query.awaitTermination()


def replay(client: RawClient, *filters: str) -> list[Publish]:
    """All of history, in order."""
    pairs = (("everlog-from", "earliest"), ("everlog-live", "yes"), ("everlog-position", "yes"))
    asked = Properties(user_properties=pairs)
    client.send(Subscribe(1, tuple(Subscription(text, 1) for text in filters), asked))
    assert not client.answer(Suback).reasons[0].is_error
    found = []
    while (message := client.message()).topic != "$replay/live":
        found.append(message)
    return found


def position(message: Publish) -> int:
    return int(dict(message.properties.user_properties)["everlog-position"].split(":")[1])


def test_from_end_to_end(
    spark: "SparkSession", served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_client, "DEADLINE_S", 60.0)  # Spark leaves others little of the machine
    data = tmp_path / "data"
    send_readings(served.port, 0, SECONDS // 2)
    run_streams(spark, data, tmp_path, served.port)
    send_readings(served.port, SECONDS // 2, SECONDS + 1)  # the last second closes the windows before it
    run_streams(spark, data, tmp_path, served.port)
    sent = len(PRESSES) * (SECONDS + 1)

    # the copy has every reading once, whoever reads it
    files = DeltaTable(str(tmp_path / "readings")).file_uris()
    by_topic = duckdb.sql(f'SELECT topic, count(*), count(DISTINCT "offset") FROM read_parquet({files}) GROUP BY 1')
    assert sorted(by_topic.fetchall()) == [(topic, SECONDS + 1, SECONDS + 1) for topic in sorted(PRESSES)]
    assert polars.read_delta(str(tmp_path / "readings")).height == sent

    # all of it becomes a table, and what the table has leaves the log
    before = take_snapshot(str(data)).records
    Compaction(str(data), locate(str(data / "lake")), OnSpark(spark)).run()
    eventually(lambda: take_snapshot(str(data)).shards[0].start > 50, "the broker drops segments", 60)
    lake = polars.read_delta(str(data / "lake"))
    assert lake["offset"].to_list() != []
    assert sorted(lake["offset"].to_list()) == list(range(lake.height))
    ((counted,),) = duckdb.sql(
        f"SELECT count(*) FROM read_parquet({DeltaTable(str(data / 'lake')).file_uris()})"
    ).fetchall()
    assert counted == lake.height < before
    assert spark.read.format("everlog").load(str(data)).count() == before

    # a client gets what only the table has, then what the log has, then what comes
    with RawClient(served.port) as client:
        client.connect("late")
        history = replay(client, "plant/#", "windows/#")
        assert [position(message) for message in history] == list(range(before))
        assert Counter(message.topic for message in history if message.topic in PRESSES) == dict.fromkeys(
            PRESSES, SECONDS + 1
        )
        told = [message for message in history if message.topic.startswith("windows/")]
        found = [(message.topic, json.loads(message.payload)) for message in told]
        assert {(topic, one["start"], one["hottest"]) for topic, one in found} == expected_windows(SECONDS)
        assert len(found) == len(expected_windows(SECONDS))
        assert {one["count"] for _, one in found} == {WINDOW_S}
        with RawClient(served.port) as press:
            press.connect("press")
            press.publish(PRESSES[0], "now", 1)
        live = client.message()
        assert (live.topic, live.payload, position(live)) == (PRESSES[0], b"now", before)
