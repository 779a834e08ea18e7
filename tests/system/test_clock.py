"""A real broker whose wall clock jumps a year ahead, is restarted meanwhile, and is told that the clock is right."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.jumping_clock import JumpingClock
from tests.raw_client import RawClient
from tests.system.serving import Served

YEAR_S = 365 * 86_400


def everlog_clock(data: Path, *words: str) -> int:
    command = [sys.executable, "-m", "everlog", "clock", str(data), *words]
    return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode


def away(broker: Served, client_id: str) -> None:
    with RawClient(broker.port) as client:
        client.connect(client_id, clean_start=False, expiry=3600)
        client.subscribe("a", qos=1)
        client.disconnect()


def test_a_jump_of_the_wall_clock_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, clock = tmp_path / "data", JumpingClock(tmp_path)
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    with Served(data) as broker:
        away(broker, "back")
        away(broker, "gone")
        with RawClient(broker.port) as client:
            client.connect("publisher")
            client.publish("a", "owed", 1, message_expiry_interval=600)
            client.publish("r", "retained", 1, retain=True, message_expiry_interval=600)
        clock.jump(YEAR_S)
        seen = broker.until("clock_doubted", 1)
        broker.until("uptime_seconds", seen["uptime_seconds"] + 3)  # sessions are swept every second
        assert everlog_clock(data) == 1
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/healthz") as page:
            assert page.read().decode().startswith("ok\nthe wall clock has jumped")
        assert (tmp_path / "broker.log").read_text().count("clock_jumped") == 1
    with Served(data) as broker:  # sweeps at its start
        assert broker.metrics()["clock_doubted"] == 1
        with RawClient(broker.port) as client:
            assert client.connect("back", clean_start=False, expiry=3600).session_present
            assert client.message().payload == b"owed"
            client.subscribe("r")
            assert client.message().payload == b"retained"
        assert everlog_clock(data, "--accept") == 0
        broker.down_to("clock_doubted", 0)
        broker.down_to("sessions", 1)  # "gone" is gone
    assert everlog_clock(data) == 0
