"""A selection of history is published again: all of it, in order, with what belonged to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from pyspark.sql import SparkSession
from tests.brokers import RunningBroker
from tests.spark.history import T0_US, Sent, write_store

from everlog.base import UsageError
from everlog.cli import main
from everlog.cli.client.pace import parse_speed
from everlog.cli.spark.replay import check_prefix
from everlog.spark.jobs import in_order, kept_in
from everlog.spark.jobs import replay_rows as module
from everlog.store import parse_begin

CONTENT_TYPE = b"\x03\x00\x04json"


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    return [
        Sent(T0_US + n * 1000, f"line/{n % 5}", b"%d" % n, n % 3, n % 4 == 0, CONTENT_TYPE if n % 2 else b"")
        for n in range(300)
    ]


@pytest.fixture(scope="module")
def store(sent: list[Sent], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("replay") / "data", sent, shards=3, segment_bytes=5_000)


@contextmanager
def listening(port: int, count: int) -> Iterator[list[paho.MQTTMessage]]:
    """A subscriber to everything; the block's end waits for so many messages."""
    got: list[paho.MQTTMessage] = []
    ready, done = threading.Event(), threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_connect = lambda *_: client.subscribe("#", 2)
    client.on_subscribe = lambda *_: ready.set()

    def take(client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        got.append(message)
        if len(got) == count:
            done.set()

    client.on_message = take
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert ready.wait(30)
        yield got
        assert done.wait(30)
    finally:
        client.disconnect()
        client.loop_stop()


def test_messages_come_in_the_order_of_time_and_offset(
    spark: SparkSession, store: Path, sent: list[Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_ROWS", 70)
    messages = spark.read.format("everlog").option("columns", ",".join(module.COLUMNS)).load(str(store))
    chunks = list(kept_in(in_order(messages, 300), chunk=40))
    assert max(len(chunk) for chunk in chunks) == 40
    kept = [one for chunk in chunks for one in chunk]
    assert [(k.time_us, k.topic, k.payload, k.qos, k.retain) for k in kept] == [
        (s.us, s.topic, s.payload, s.qos, s.retain) for s in sent
    ]
    assert [k.properties for k in kept] == [s.properties for s in sent]


def test_a_selection_is_published_again_in_order(
    spark: SparkSession, store: Path, sent: list[Sent], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [message for message in sent if message.topic in ("line/1", "line/3")]
    with RunningBroker() as broker, listening(broker.port, len(wanted)) as got:
        words = ["-t", "line/1", "-t", "line/3", "--prefix", "again/", "--mark", "-p", str(broker.port)]
        assert main(["spark", "replay", str(store), *words, "--host", "127.0.0.1"]) == 0
    assert "120 messages published again" in capsys.readouterr().out
    assert [(m.topic, m.payload) for m in got] == [(f"again/{s.topic}", s.payload) for s in wanted]
    assert all(message.qos == 1 and not message.retain for message in got)
    types = [getattr(message.properties, "ContentType", None) for message in got]
    assert types == ["json" if message.properties else None for message in wanted]
    marks = [dict(message.properties.UserProperty) for message in got]
    assert [parse_begin(mark["everlog-origin-time"], 0).time_us for mark in marks] == [m.us for m in wanted]


def test_a_broker_that_is_not_there_is_an_error(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "replay", str(store), "-p", "1", "--host", "127.0.0.1"]) == 1
    assert "can't connect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "speed"), [("max", None), ("original", 1.0), ("1.0", 1.0), ("10x", 10.0), ("0.5", 0.5)]
)
def test_speeds(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "inf", "nan", "x"])
def test_no_speeds(text: str) -> None:
    with pytest.raises(UsageError, match="is not a speed"):
        parse_speed(text)


def test_a_prefix_makes_topics() -> None:
    check_prefix("replay/")
    with pytest.raises(UsageError, match="wildcard"):
        check_prefix("a/#/")
