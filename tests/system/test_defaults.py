"""A broker that nobody has configured: it keeps everything, within bounds, and says so; and what to set otherwise."""

import contextlib
import json
import select
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.raw_client import RawClient
from tests.system.serving import Served

from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Reason
from everlog.store import KeepRules, read_keep_rules


def connected(port: int, client_id: str = "", **options: object) -> RawClient:
    client = RawClient(port)
    assert not client.connect(client_id, **options).reason.is_error  # type: ignore[arg-type]
    return client


def once_it_answers(port: int) -> RawClient:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return connected(port)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def everlog(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "everlog", *words], capture_output=True, text=True, timeout=60)


def test_a_broker_keeps_every_message_by_default_and_says_for_how_long(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Served(data) as broker:
        lines = dict(line.split(maxsplit=1) for line in broker.start_lines[1:])
        assert lines["data"] == f"{data} (1 shard)\n"
        assert lines["keeps"].startswith("every message but everlog/p/#, response/#; and ")
        assert lines["retention"].startswith("7d, at most ")
        assert lines["retention"].endswith("iB (10% of the disk)\n")
        with connected(broker.port, "publisher") as client:
            client.publish("sensors/1", "21.5", 0)
            client.publish("response/c/1", "answer", 1)
        with connected(broker.port, "later") as client:
            client.subscribe("$replay/earliest/#")
            assert client.message().payload == b"21.5"
            client.expect_nothing()
        with connected(broker.port, "durable", expiry=1000) as client:
            assert client.subscribe("#", qos=1) == (Reason.GRANTED_QOS_1,)
        files = [data, *data.rglob("*")]
        assert {data / "sessions.db", data / "sessions.db-wal", data / "keep.json"} < set(files)
        assert not [path for path in files if path.stat().st_mode & 0o077]  # all of it is for its owner alone
        replayed = everlog("replay", "-p", str(broker.port), "sensors/#")
        assert (replayed.stdout, replayed.stderr) == ("21.5\n", "")
        hint = everlog("replay", "-p", str(broker.port), "response/#")
        assert (hint.stdout, hint.stderr[:32]) == ("", "everlog: no setting keeps respon")
        hint = everlog("sub", "-p", str(broker.port), "--from", "earliest", "-t", "response/#", "-E")
        assert hint.stderr.startswith("everlog: no setting keeps response/#")
    assert read_keep_rules(str(data)) == KeepRules(filters=("#",), never=("everlog/p/#", "response/#"))
    hint = everlog("replay", "--data", str(data), "response/#")
    assert hint.stderr.startswith("everlog: no setting keeps response/#")


@pytest.mark.parametrize("named", [False, True])
def test_client_ids_are_in_the_metrics_only_where_the_settings_allow_it(tmp_path: Path, named: bool) -> None:
    with Served(tmp_path / "data", **({"http__client_ids": "true"} if named else {})) as broker:
        with connected(broker.port, "whose-id", expiry=1000) as client:
            client.subscribe("t", qos=1)
        with connected(broker.port) as client:
            client.publish("t", "waits", 1)
        text = page(broker, "metrics")
        assert "\neverlog_sessions_behind 1.0\n" in text
        assert ("whose-id" in text) is named


def page(broker: Served, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/{name}", timeout=60) as answer:
        return str(answer.read().decode())


def test_a_broker_for_sessions_only_refuses_a_durable_subscription_to_everything(tmp_path: Path) -> None:
    with Served(tmp_path / "data", keep__filters="[]") as broker:
        assert "  keeps       only what durable sessions are subscribed to\n" in broker.start_lines
        with connected(broker.port, "durable", expiry=1000) as client:
            client.publish("sensors/1", "21.5", 1)
            assert client.subscribe("#", "sensors/#", qos=1) == (Reason.NOT_AUTHORIZED, Reason.GRANTED_QOS_1)
        with connected(broker.port) as client:
            client.subscribe("$replay/earliest/#")
            client.expect_nothing()


def test_an_unkept_message_waits_for_no_sync(tmp_path: Path) -> None:
    """While the PUBACK of a kept message waits for a slow disk, what is not kept comes and goes."""
    flags = ("--keep-min-qos", "1", "--set", "keep.never=fast/#")
    trips = 0
    with (
        BrokerProcess(tmp_path, *flags, sync_ms=400) as served,
        once_it_answers(served.port) as slow,
        once_it_answers(served.port) as fast,
    ):
        fast.subscribe("fast/#", "other")
        for number in range(1, 4):
            slow.send(Publish("kept", b"1", 1, packet_id=number), Pingreq())
            slow.expect(Pingresp)  # it was taken
            while not select.select([slow.socket], [], [], 0)[0]:
                assert fast.publish("fast/1", "2", 1) is Reason.SUCCESS
                assert fast.message().topic == "fast/1"
                fast.publish("other", "3", 0)
                assert fast.message().topic == "other"
                trips += 1
            assert slow.expect(Puback).packet_id == number
    assert trips >= 6, "one at most would do if they waited for the commit that is under way"


def test_a_broker_without_durable_sessions_ends_those_it_finds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Served(data) as broker, connected(broker.port, "c", expiry=1000) as client:
        client.subscribe("a", qos=1)
        client.disconnect()
    assert sessions_in(data) > 0
    with Served(data, sessions__durable="false") as broker, RawClient(broker.port) as client:
        answer = client.connect("c", clean_start=False, expiry=1000)
        assert (answer.session_present, answer.properties.session_expiry_interval) == (False, 0)
        assert client.subscribe("b", qos=1) == (Reason.GRANTED_QOS_1,)
        assert client.publish("b", "1", 2) is Reason.SUCCESS
    assert sessions_in(data) == 0
    assert "sessions_ended count=1" in (tmp_path / "broker.log").read_text()
    with Served(data) as broker, RawClient(broker.port) as client:
        assert not client.connect("c", clean_start=False).session_present


def sessions_in(data: Path) -> int:
    with sqlite3.connect(data / "sessions.db") as tables:
        return sum(tables.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sessions", "cursors"))


def test_the_settings_file_that_was_read_is_named_and_json_is_json_from_the_first_line(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as broker:
        assert "  settings    defaults, environment and flags: no everlog.toml here\n" in broker.start_lines
    config = tmp_path / "mine.toml"
    config.write_text('[logging]\nformat = "json"\n[http]\nhost = "0.0.0.0"\nport = "none"\n')
    words = ["serve", "--config", str(config), "--port", "0", "--data", str(tmp_path / "data"), "--http-port", "none"]
    command = [sys.executable, "-m", "everlog", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            found.append(json.loads(line))
            if found[-1]["event"] == "started":
                process.terminate()
    assert [line["event"] for line in found][-2:] == ["started", "stopped"]
    (started,) = [line for line in found if line["event"] == "started"]
    assert started["settings"] == str(config)
    assert started["listens"].startswith("mqtt://127.0.0.1:")
