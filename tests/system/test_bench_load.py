"""Every scenario of the load generator runs against a real `everlog serve` and finds nothing wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.bench.load import SCENARIOS, started
from everlog.bench.load.brokers import Running
from everlog.cli import main

SHORT = {
    "ingest": ["--seconds", "0.2", "--window", "50", "--publishers", "3"],
    "fanout": ["--seconds", "0.2", "--subscribers", "3", "--publishers", "2", "--topics", "3"],
    "many": ["--seconds", "0.2", "--connections", "20"],
    "echo": ["--seconds", "0.2", "--connections", "20"],
    "idle": ["--connections", "50", "--hold", "0.1"],
    "churn": ["--seconds", "0.2", "--connections", "30"],
    "resume": ["--subscribers", "3", "--messages", "500"],
    "recall": ["--connections", "10", "--stored", "1000"],
    "retained": ["--messages", "100", "--subscribers", "2"],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with started("everlog") as running:
        yield running


def report(broker: Running, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    code = main(["bench", "load", *arguments, "--port", str(broker.port), "--pid", str(broker.pid), "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert (code, found["status"], found["lost"]) == (0, "ok", 0), found
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_loses_nothing(broker: Running, capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    found = report(broker, capsys, scenario, *SHORT[scenario])
    assert found["broker"]
    assert found["duplicates"] == found["out_of_order"] == 0


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@pytest.mark.parametrize("how", [[], ["--rate", "500"], ["--outstanding", "200"], ["--own"], ["--slow", "1"]])
def test_fanout_works_at_every_qos_and_pace(
    broker: Running, capsys: pytest.CaptureFixture[str], qos: str, how: list[str]
) -> None:
    arguments = ["--qos", qos, "--seconds", "0.2", "--subscribers", "2", "--publishers", "2", "--window", "20", *how]
    found = report(broker, capsys, "fanout", *arguments)
    assert found["received"] == (found["sent"] if how == ["--own"] else 2 * int(str(found["sent"])))


def test_run_without_a_broker_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "ingest", "--port", "1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], "can't connect" in found["error"]) == ("error", True)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "nonsense"]) == 2
    assert main(["bench", "peers", "--only", "nonsense"]) == 2
    assert "there are" in capsys.readouterr().err


def test_comparison_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    code = main(
        [
            "bench",
            "peers",
            "--only",
            "everlog",
            "--scenarios",
            "in-q1,p50-1k/s",
            "--seconds",
            "0.2",
            "--json",
            str(file),
        ]
    )
    assert code == 0
    assert "nothing to compare" in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert [run["case"] for run in content["runs"]] == ["in-q1", "p50-1k/s"]
    assert all(run["status"] == "ok" for run in content["runs"])


def test_a_comparison_that_is_ended_leaves_no_broker_behind() -> None:
    command = [sys.executable, "-m", "everlog", "bench", "peers", "--only", "everlog", "--scenarios", "held-10k"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        deadline = time.monotonic() + 60
        while not (children := children_of(running.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scenarios"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SCENARIOS)
