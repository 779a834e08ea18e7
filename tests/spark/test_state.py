"""Streams and key-value stores as frames, beside the server that has them and without it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.brokers import RunningBroker
from tests.persist_process import PersistProcess

import everlog
from everlog.base import UsageError
from everlog.cli import main
from everlog.client import connect_blocking
from everlog.spark.pyspark_api import from_arrow_schema
from everlog.spark.state.state_columns import schema_of
from everlog.spark.state.state_options import read_state_options
from everlog.spark.state.state_reader import StateReader, plan_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in three shards, without a server."""
    place = tmp_path_factory.mktemp("state")
    with everlog.open(str(place), shards=3) as client:
        for n in range(20):
            stream = client.stream(f"team/{n}")
            stream.append_all([b"%d" % k for k in range(n + 1)])
            stream.append(None, headers={"h": "x"}, timestamp=2.5, ttl=3600)
        client.stream("team/3").delete(1, 2)
        store = client.kv("settings")
        store.put("colour", "red")
        store.put("colour", "blue")
        store.put("size", "11")
    return place


def frame(spark: "SparkSession", place: Path, **options: str) -> "DataFrame":
    return spark.read.format("everlog").options(**options).load(str(place))


def test_streams_are_a_frame_with_all_that_messages_have(spark: "SparkSession", data: Path) -> None:
    found = frame(spark, data, streams="team/#", value="string")
    assert found.columns == ["stream", "seq", "shard", "position", "time", "value", "headers", "timestamp", "expires"]
    counts = {row["stream"]: row["count"] for row in found.groupBy("stream").count().collect()}
    assert counts == {f"team/{n}": n + 2 - 2 * (n == 3) for n in range(20)}
    rows = found.where("stream = 'team/3'").orderBy("seq").collect()
    assert [(row.seq, row.value) for row in rows] == [(3, "2"), (4, "3"), (5, None)]
    assert (rows[2].headers, rows[2].timestamp) == ({"h": "x"}, 2.5)
    assert (rows[2].expires - rows[2].time).total_seconds() == pytest.approx(3600, abs=1)
    assert found.select("shard").distinct().count() == 3
    assert found.rdd.getNumPartitions() >= 1


def test_a_key_value_store_is_a_frame_of_its_last_values(spark: "SparkSession", data: Path) -> None:
    found = frame(spark, data, kv="settings").orderBy("key").collect()
    assert [(row.kv, row.key, bytes(row.value)) for row in found] == [
        ("settings", "colour", b"blue"),
        ("settings", "size", b"11"),
    ]
    assert found[0].revision < found[1].revision


def test_messages_that_share_a_row_are_rows_of_a_frame(spark: "SparkSession", tmp_path: Path) -> None:
    with everlog.open(str(tmp_path)) as client:
        stream = client.stream("log")
        for n in range(400):
            stream.append(b"%d" % n)
        stream.delete(300)
    (file,) = (path for path in tmp_path.rglob("*.db") if messages_in_blocks(path))
    assert messages_in_blocks(file) > 200
    found = frame(spark, tmp_path, streams="log", value="string").orderBy("seq").collect()
    assert [(row.seq, row.value) for row in found] == [(n + 1, str(n)) for n in range(400) if n != 299]


def messages_in_blocks(path: Path) -> int:
    """Return how many messages of a stream's file stand in rows of several."""
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'blocks'").fetchone():
            return 0
        return sum(last - first + 1 for first, last in connection.execute("SELECT first, last FROM blocks"))


def test_a_frame_stays_as_of_its_position_while_the_server_goes_on(spark: "SparkSession", tmp_path: Path) -> None:
    with everlog.open(str(tmp_path)) as client:
        store = client.kv("kv")
        store.put("a", "1")
        before = frame(spark, tmp_path, kv="kv", value="string")
        position = before.first().position + 1  # type: ignore[union-attr]
        for n in range(200):  # more than gathers before a file has it
            store.put("a", str(n))
        now = frame(spark, tmp_path, kv="kv", value="string")
        then = frame(spark, tmp_path, kv="kv", value="string", to=f"0:{position}")
        for one, value in ((before, "1"), (now, "199"), (then, "1")):
            assert [row.value for row in one.collect()] == [value]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streams": "#", "kv": "#"}, "of streams or of key-value stores"),
        ({"streams": ""}, "names no filter"),
        ({"streams": "#", "to": "-1h"}, "as of a position"),
        ({"streams": "#", "topic": "a"}, "no option 'topic'"),
        ({"kv": "#", "value": "json"}, "value is binary or string"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_state_options({"path": "/somewhere", **options})


def test_jobs_take_streams_and_key_value_stores(
    spark: "SparkSession", data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "stats.json"
    assert main(["spark", "stats", str(data), "--streams", "team/1", "--streams", "team/2", "--json", str(found)]) == 0
    assert {one["key"]: one["messages"] for one in json.loads(found.read_bytes())["keys"]} == {"team/1": 3, "team/2": 4}
    assert main(["spark", "structure", str(data), "--kv", "#"]) == 0
    assert "settings" in capsys.readouterr().out
    assert not (data / "structure.json").exists()
    for words, said in (
        (["stats", str(data), "--kv", "#", "--topic", "a"], "--topic and --from are for messages"),
        (["audit", str(data), "--streams", "#"], "an audit is of messages"),
        (["stats", str(tmp_path), "--streams", "#"], "has no streams"),
    ):
        assert main(["spark", *words]) == 2
        assert said in capsys.readouterr().err


def test_what_servers_share_is_read_without_them(tmp_path: Path) -> None:
    """A server with its shards on shared storage and nothing but a cache of its own; tasks are run in this process."""
    shared = tmp_path / "shared"
    with RunningBroker() as broker:
        bus = f"mqtt://127.0.0.1:{broker.port}"
        with PersistProcess(tmp_path, bus, "--storage", str(shared), "--shards", "2"), connect_blocking(bus) as client:
            for n in range(6):
                client.stream(f"team/{n}").append_all([b"%d" % k for k in range(n + 1)])
            client.stream("team/5").delete(2)
            options = read_state_options({"path": str(shared), "streams": "team/#", "tasks": "3"})
            plan = plan_state(options)
            client.stream("team/0").append("later")
    reader = StateReader(options, plan, from_arrow_schema(schema_of("streams", is_text=False)))
    found = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    assert sorted((row["stream"], row["seq"], row["value"]) for row in found) == [
        (f"team/{n}", k + 1, b"%d" % k) for n in range(6) for k in range(n + 1) if (n, k) != (5, 1)
    ]
