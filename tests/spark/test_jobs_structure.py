"""The structure of a real store's topics, against what was published."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.history import T0_US, Sent, write_store

from everlog.spark.jobs import structure_of
from everlog.spark.jobs.level_masks import mask, masked_levels

PLACES = ("berlin", "paris", "rome", "oslo")
STRAYS = (
    "plant/berlin/sensor/7/tmp",
    "plant/oslo/sensor/x/temp",
    "/plant/oslo/sensor/7/temp",
    "plant/Oslo/sensor/1/temp",
)


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    topics = [f"plant/{place}/sensor/{n}/{what}" for place in PLACES for n in range(30) for what in ("temp", "hum")]
    topics += [f"v1/press-{n}/state" for n in range(20)]
    made = [Sent(T0_US + n * 1_000_000, topic, b"x" * (n % 50)) for n, topic in enumerate(topics * 5)]
    made += [Sent(made[-1].us + 1 + n, topic, b"y") for n, topic in enumerate(STRAYS)]
    return made


@pytest.fixture(scope="module")
def store(sent: list[Sent], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("structure") / "data", sent, shards=2)


def test_spark_masks_levels_as_python_does(spark: SparkSession) -> None:
    levels = [
        "",
        "42",
        "-3.5",
        "a1b22",
        "deadbeef01",
        "2026-01-05",
        "10.0.0.1",
        "00:1b:44:11:3a:b7",
        "Zürich",
        "9$",
        "a b",
    ]
    levels += ["3f2504e0-4f89-11d3-9a0c-0305e82c3301", "7fGh2kLm9Qw3Xy5Zab", "1.2.3", "٣", "{number}", "x" * 40, "12\n"]
    frame = spark.createDataFrame([("/".join(levels),)], "topic STRING").select(masked_levels(F.col("topic")))
    assert frame.first()[0] == [mask(level) for level in levels]


def test_the_structure_of_a_store_agrees_with_what_was_published(
    spark: SparkSession, store: Path, sent: Sequence[Sent]
) -> None:
    found = structure_of(spark.read.format("everlog").load(str(store)))
    shapes = {shape.text: shape for shape in found.shapes}
    assert set(shapes) == {
        "plant/{5 values}/sensor/{number}/temp",
        "plant/{4 values}/sensor/{number}/hum",
        "v1/press-{number}/state",
    }
    assert (found.messages, found.topics) == (len(sent), len({message.topic for message in sent}))

    humid = shapes["plant/{4 values}/sensor/{number}/hum"]
    own = [message for message in sent if message.topic.endswith("/hum")]
    assert (humid.topics, humid.messages) == (len({m.topic for m in own}), len(own))
    assert humid.bytes == sum(len(message.payload) for message in own)
    assert humid.first.timestamp() * 1e6 == own[0].us
    assert humid.last.timestamp() * 1e6 == own[-1].us
    assert [level.values for level in humid.levels] == [1, 4, 1, 30, 1]
    assert [level.kind for level in humid.levels] == ["fixed", "name", "fixed", "number", "fixed"]
    assert set(humid.levels[3].examples) >= {"0", "29"}
    assert humid.filter == "plant/+/sensor/+/hum"
    assert humid.order == (1, 3)
    assert shapes["v1/press-{number}/state"].levels[0].kind == "fixed"  # a number in it that never was another

    notes = Counter((note.kind, note.where) for note in found.anomalies)
    assert notes == {
        ("fits no shape", "plant/berlin/sensor/7/tmp"): 1,
        ("fits no shape", "plant/oslo/sensor/x/temp"): 1,
        ("fits no shape", "/plant/oslo/sensor/7/temp"): 1,
        ("spelling", "plant/{5 values}/sensor/{number}/temp"): 1,
        ("odd name", "/plant/oslo/sensor/7/temp"): 1,
    }
    spelling = next(note for note in found.anomalies if note.kind == "spelling")
    assert spelling.why == "level 2 is spelled 'oslo' and 'Oslo'"


def test_too_many_masked_topics_are_blurred_where_they_differ_most(spark: SparkSession) -> None:
    names = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    rows = [(f"users/{name}/{what}",) for name in names for what in ("up", "down")]
    frame = spark.createDataFrame(rows, "topic STRING")
    frame = frame.withColumn("timestamp", F.timestamp_micros(F.lit(T0_US))).withColumn("payload", F.lit(b""))
    found = structure_of(frame, max_patterns=20)
    assert {shape.text for shape in found.shapes} == {"users/{64 values}/up", "users/{64 values}/down"}


def test_an_empty_store_has_no_structure(spark: SparkSession, tmp_path: Path) -> None:
    store = write_store(tmp_path / "data", [])
    found = structure_of(spark.read.format("everlog").load(str(store)))
    assert (found.topics, found.messages, found.shapes, found.anomalies) == (0, 0, (), ())
