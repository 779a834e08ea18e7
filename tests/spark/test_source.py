"""The log as a table of Spark: `spark.read.format("everlog")` with each of its options."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType
from tests.spark.lake_data import NOON_US, damage, fill, messages, told

from everlog.mqtt import Publish
from everlog.store import LogStore
from everlog.topics import matches, parse_filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT = messages(2000)
STEP_US = 1_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two shards and several segments; 50 messages a second."""
    where = tmp_path_factory.mktemp("store")
    fill(where, SENT, shards=2, step_us=STEP_US)
    return where


def load(spark: "SparkSession", where: Path, **options: str) -> "DataFrame":
    return spark.read.format("everlog").options(**options).load(str(where))


def payloads(frame: "DataFrame") -> list[bytes]:
    """The payloads, by the number that each begins with."""
    found = [bytes(row["payload"]) for row in frame.select("payload").collect()]
    return sorted(found, key=lambda payload: int(payload.split(b":")[0]))


def test_the_log_is_a_table_with_all_its_columns(spark: "SparkSession", data: Path) -> None:
    rows = sorted(load(spark, data).collect(), key=lambda row: int(bytes(row["payload"]).split(b":")[0]))
    names = list(told(SENT[:1])[0])
    plain = []
    for row in rows:
        values = {name: row[name] for name in names}
        for name in ("payload", "correlation_data"):
            values[name] = bytes(values[name]) if values[name] is not None else None
        values["user_properties"] = list(values["user_properties"].items()) if values["user_properties"] else None
        plain.append(values)
    assert plain == told(SENT)
    assert [row["timestamp"].replace(tzinfo=UTC) for row in rows[::50]] == [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOON_US + STEP_US * n) for n in range(40)
    ]
    assert {(row["shard"], row["offset"]) for row in rows} == {
        (shard, n) for shard in (0, 1) for n in range(sum(row["shard"] == shard for row in rows))
    }


def test_a_query_of_it_is_a_query_of_spark(spark: "SparkSession", data: Path) -> None:
    counted = load(spark, data).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in counted} == {
        topic: sum(one.topic == topic for one in SENT) for topic in {one.topic for one in SENT}
    }
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING everlog OPTIONS (path '{data}')")
    ((found,),) = spark.sql("SELECT count(*) FROM messages WHERE qos = 2 AND levels[1] = '3'").collect()
    assert found == sum(one.qos == 2 and one.topic.split("/")[1] == "3" for one in SENT)


def test_topic_takes_one_filter_or_several(spark: "SparkSession", data: Path) -> None:
    for option, texts in (
        ("site/1/#", ["site/1/#"]),
        ("site/1/#\n+/+/temp/s0", ["site/1/#", "+/+/temp/s0"]),
        ('["site/3/+/s3", "site/2/#"]', ["site/3/+/s3", "site/2/#"]),
    ):
        filters = [parse_filter(text) for text in texts]
        expected = [one.payload for one in SENT if any(matches(flt, one.topic) for flt in filters)]
        assert payloads(load(spark, data, topic=option)) == expected


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"from": "2024-10-04T12:00:10Z"}, 500, 2000),
        ({"to": "2024-10-04T12:00:10Z"}, 0, 500),
        ({"from": "2024-10-04T12:00:10Z", "to": "2024-10-04T12:00:30.5Z"}, 500, 1550),
        ({"from": "-5w"}, 2000, 2000),
        ({"from": "-5000w", "to": "latest"}, 0, 2000),
        ({"to": "2020-01-01T00:00:00Z"}, 0, 0),
    ],
)
def test_from_and_to_are_times(
    spark: "SparkSession", data: Path, options: dict[str, str], first: int, last: int
) -> None:
    assert payloads(load(spark, data, **options)) == [one.payload for one in SENT[first:last]]


def test_from_and_to_are_positions_too(spark: "SparkSession", data: Path) -> None:
    frame = load(spark, data, **{"from": "0:10,1:20", "to": "0:15,1:21"}, columns="shard,offset")
    assert sorted(map(tuple, frame.collect())) == [(0, n) for n in range(10, 15)] + [(1, 20)]
    frame = load(spark, data, **{"from": "1:20", "to": "1:22"}, columns="shard,offset", shards="1")
    assert sorted(map(tuple, frame.collect())) == [(1, 20), (1, 21)]


def test_shards_and_columns_are_chosen(spark: "SparkSession", data: Path) -> None:
    frame = load(spark, data, shards="1", columns="topic,shard,properties")
    assert frame.columns == ["topic", "shard", "properties"]
    assert {row["shard"] for row in frame.collect()} == {1}
    frame = spark.read.format("everlog").schema("payload BINARY NOT NULL, qos TINYINT NOT NULL").load(str(data))
    assert sorted((bytes(row["payload"]), row["qos"]) for row in frame.collect()) == sorted(
        (one.payload, one.qos) for one in SENT
    )


def test_payloads_are_text(spark: "SparkSession", tmp_path: Path) -> None:
    sent = [b"caf\xc3\xa9", b"\xff\x00", b""]
    fill(tmp_path, [Publish("a", payload) for payload in sent])
    rows = load(spark, tmp_path, payload="string", columns="payload").collect()
    assert [row["payload"] for row in rows] == ["café", "\ufffd\x00", ""]


def test_payloads_are_json_of_a_type_and_null_where_they_are_not(spark: "SparkSession", tmp_path: Path) -> None:
    sent = [
        b'{"t": 21.5, "ok": true, "tags": ["a", "b"], "other": 1}',
        b'{\n "ok": null\n}',
        b"no json",
        b'{"t": "warm"}',
        b'{"t": 1}{"t": 2}',
        b"",
        b'{"t": 2}',
        b"[1]",
        b'1}\n{"v": {"t": 5}',
        b'{"t": -1e3, "at": {"x": 1}}',
    ]
    fill(tmp_path, [Publish("a", payload) for payload in sent])
    schema = "t DOUBLE, ok BOOLEAN, tags ARRAY<STRING>, at STRUCT<x: INT>"
    rows = load(spark, tmp_path, payload="json", payloadSchema=schema, columns="payload").collect()
    found = [None if row["payload"] is None else row["payload"].asDict(recursive=True) for row in rows]
    empty = {"t": None, "ok": None, "tags": None, "at": None}
    assert found == [
        {**empty, "t": 21.5, "ok": True, "tags": ["a", "b"]},
        empty,
        None,
        None,
        None,
        None,
        {**empty, "t": 2.0},
        None,
        None,
        {**empty, "t": -1000.0, "at": {"x": 1}},
    ]


def test_payloads_are_what_a_decoder_makes_of_them(spark: "SparkSession", data: Path) -> None:
    options = {"payload": "tests.spark.decoders:number_and_level", "payloadSchema": "number BIGINT, level STRING"}
    rows = load(spark, data, **options, columns="payload").collect()
    assert sorted(row["payload"]["number"] for row in rows) == list(range(len(SENT)))
    assert {row["payload"]["level"] for row in rows} == {"site"}
    bad = load(spark, data, payload="tests.spark.decoders:too_few", payloadSchema="BIGINT")
    with pytest.raises(PythonException, match="a value for each payload"):
        bad.collect()


def test_a_frame_is_pinned_when_it_is_loaded(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path, SENT[:500])
    frame = load(spark, tmp_path)
    assert frame.count() == 500
    fill(tmp_path, SENT[500:1000], first_us=NOON_US * 2)
    assert frame.count() == 500
    assert payloads(frame) == [one.payload for one in SENT[:500]]
    assert load(spark, tmp_path).count() == 1000


def test_one_frame_in_two_filters_gives_both(spark: "SparkSession", data: Path) -> None:
    frame = load(spark, data, columns="topic,qos")
    both = frame.filter("qos = 1").union(frame.filter("qos = 2"))
    counted = {row["qos"]: row["count"] for row in both.groupBy("qos").count().collect()}
    assert counted == {qos: sum(one.qos == qos for one in SENT) for qos in (1, 2)}


def test_an_empty_store_is_an_empty_table(spark: "SparkSession", tmp_path: Path) -> None:
    LogStore.open(str(tmp_path), shards=3, background=False).close()
    frame = load(spark, tmp_path)
    assert frame.count() == 0
    assert frame.collect() == []


def test_tasks_are_about_as_many_as_asked_for(spark: "SparkSession", tmp_path: Path, data: Path) -> None:
    assert load(spark, data).rdd.getNumPartitions() == 1  # too little to be worth more
    fill(tmp_path, [Publish("a/b", bytes(100_000)) for _ in range(500)], segment_bytes=5_000_000, run=5)
    assert load(spark, tmp_path, tasks="3").rdd.getNumPartitions() in (3, 4)
    assert load(spark, tmp_path, tasks="1").rdd.getNumPartitions() == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tpoic": "a"}, "there is no option 'tpoic'"),
        ({"topic": "a/#/b"}, "#"),
        ({"topic": " "}, "names no filter"),
        ({"from": "yesterday"}, "is not a place in history"),
        ({"shards": "7"}, "there is no shard 7"),
        ({"shards": "x"}, "write numbers"),
        ({"columns": "time"}, "no column is called time"),
        ({"columns": ""}, "names no column"),
        ({"topic": "a/#, b/#"}, "a JSON list"),
        ({"payload": "protobuf", "payloadSchema": "a INT"}, "module:function"),
        ({"payload": "no.such:decoder", "payloadSchema": "a INT"}, "can't be loaded"),
        ({"payload": "json"}, "needs a type"),
        ({"payload": "string", "payloadSchema": "a INT"}, "says nothing"),
        ({"onDamage": "cry"}, "onDamage is fail or skip"),
        ({"tier": "warm"}, "tier is all, log or table"),
        ({"tier": "table"}, "has no table"),
        ({"tasks": "0"}, "above 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_when_the_frame_is_loaded(
    spark: "SparkSession", data: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=says):
        load(spark, data, **options)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("MAP<STRING, STRING>", "use Spark's from_json"),
        ("a VARIANT", "use Spark's from_json"),
        ("a INT NOT NULL", "leave NOT NULL out"),
        ("a INT, b STRUCT<c INT, c INT>", "names the field c twice"),
    ],
)
def test_a_type_that_json_can_not_be_read_as_is_refused(
    spark: "SparkSession", data: Path, schema: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        load(spark, data, payload="json", payloadSchema=schema).count()


def test_nothing_lies_before_the_earliest(spark: "SparkSession", data: Path) -> None:
    assert load(spark, data, to="earliest").count() == 0
    assert load(spark, data, to="latest").count() == load(spark, data).count() > 0


def test_no_store_is_an_error_when_the_frame_is_loaded(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="holds no store"):
        load(spark, tmp_path)
    with pytest.raises(AnalysisException, match="where is the log"):
        spark.read.format("everlog").load()
    with pytest.raises(AnalysisException, match="is not a directory"):
        spark.read.format("everlog").load("ftp://host/x")


def test_a_schema_that_is_not_the_tables_is_refused(spark: "SparkSession", data: Path) -> None:
    frame = spark.read.format("everlog").schema("topic BINARY").load(str(data))
    with pytest.raises(Exception, match="the column topic is string, not binary"):
        frame.count()


def test_damage_fails_a_query_unless_it_is_to_skip_it(spark: "SparkSession", tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    damage(sorted((tmp_path / "shard-0").glob("*.log"))[1], 9_000)
    with pytest.raises(PythonException, match=r"at byte \d+: .*are not readable"):
        load(spark, tmp_path).count()
    lost = len(SENT) - load(spark, tmp_path, onDamage="skip").count()
    assert 0 < lost <= 200


def test_retention_while_reading_is_a_clear_error(spark: "SparkSession", tmp_path: Path) -> None:
    from everlog.commitlog import LogSettings

    fill(tmp_path, SENT)
    frame = load(spark, tmp_path)
    store = LogStore.open(str(tmp_path), LogSettings(retention_bytes=40_000), background=False)
    store.run_retention(NOON_US)
    store.close()
    with pytest.raises(PythonException, match=r"retention removed offsets 0 to \d+ of shard 0"):
        frame.count()


class LeakyReader(DataSourceReader):
    def __init__(self) -> None:
        self.wanted: Any = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for flt in filters:
            if isinstance(flt, EqualTo):
                self.wanted = flt.value
            else:
                yield flt

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(n,) for n in range(3) if self.wanted is None or n == self.wanted])


class LeakySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "leaky"

    def schema(self) -> str:
        return "n INT"

    def reader(self, schema: StructType) -> LeakyReader:
        return LeakyReader()


@pytest.mark.xfail(strict=True, reason="pyspark mixes up pushed filters of two scans of one frame")
def test_pyspark_keeps_pushed_filters_of_two_scans_apart(spark: "SparkSession") -> None:
    """Once this passes, the source can push filters down and the options topic, from and to need not be used."""
    spark.dataSource.register(LeakySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("leaky").load()
        both = frame.filter(F.col("n") == 1).union(frame.filter(F.col("n") == 2))
        assert sorted(row["n"] for row in both.collect()) == [1, 2]
        assert frame.count() == 3
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
