"""Every scenario of the load generator runs against a real `everlog serve` and finds nothing wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.listening import eventually

from everlog.bench.load import ALL_CASES, SCENARIOS, started
from everlog.bench.load.brokers import EVERLOG, Running
from everlog.bench.load.cases import figure_of
from everlog.bench.load.peers import play_case
from everlog.cli import main

ROOT = Path(__file__).parents[2]
SHORT = {
    "ingest": ["--seconds", "0.2", "--window", "50", "--publishers", "3"],
    "fanout": ["--seconds", "0.2", "--subscribers", "3", "--publishers", "2", "--topics", "3"],
    "many": ["--seconds", "0.2", "--connections", "20"],
    "echo": ["--seconds", "0.2", "--connections", "20"],
    "bystander": ["--seconds", "0.2", "--rate", "500"],
    "idle": ["--connections", "50", "--hold", "0.1"],
    "churn": ["--seconds", "0.2", "--connections", "30"],
    "burst": ["--connections", "50"],
    "filters": ["--connections", "5", "--topics", "20"],
    "durable": ["--connections", "20", "--burst", "10"],
    "comeback": ["--connections", "20"],
    "stall": ["--seconds", "0.2"],
    "resume": ["--subscribers", "3", "--messages", "500"],
    "recall": ["--connections", "10", "--stored", "1000"],
    "retained": ["--messages", "100", "--subscribers", "2"],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with started(EVERLOG) as running:
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


SMALL = {  # cases that need more of the broker than `bench load` has: a clock, metrics, a start in between
    "burst-10k": ({"connections": 50, "settle": 0.1}, "ends.turn.cpu_ms"),
    "back-50k": ({"connections": 200, "burst": 50}, "back_s"),
    "same-1k": ({"subscribers": 5, "messages": 500}, "log_cpu_ms"),
    "stall-q1-off": ({}, "ack_latency_us.max"),
}


@pytest.mark.parametrize("name", SMALL)
def test_demands_on_fleets_find_their_figures(name: str) -> None:
    options, figure = SMALL[name]
    case = next(one for one in ALL_CASES if one.name == name)
    found = play_case(replace(case, options={**case.options, **options}), EVERLOG, 0.5, None)
    assert (found["status"], found["lost"]) == ("ok", 0), found
    assert figure_of(found, figure)
    assert found["grown_mb"] < 100


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


def test_two_checkouts_are_compared_with_everything_and_with_nothing_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "against.json"
    words = ["--against", str(ROOT), "--scenarios", "in-q1,slow-shard", "--rounds", "1"]
    assert main(["bench", "peers", "--only", "everlog", "--seconds", "0.2", "--json", str(file), *words]) == 0
    assert "this/against" in capsys.readouterr().out
    content = json.loads(file.read_text())
    played = [(run["case"], run["peer"], run["keeps"], run["status"]) for run in content["runs"]]
    assert played == [
        ("in-q1", "this", True, "ok"),
        ("in-q1", "against", True, "ok"),
        ("in-q1", "this", False, "ok"),
        ("in-q1", "against", False, "ok"),
        ("slow-shard", "this", True, "ok"),
        ("slow-shard", "against", True, "ok"),
    ]
    assert all(line["ratio"] is not None for line in content["figures"])


def test_a_directory_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers", "--against", str(tmp_path)]) == 2
    assert "has no .venv" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)])
def test_a_comparison_that_is_ended_leaves_no_broker_behind(tmp_path: Path, number: int, status: int) -> None:
    command = [sys.executable, "-m", "everlog", "bench", "peers", "--only", "everlog", "--scenarios", "held-10k"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet, env={**os.environ, "TMPDIR": str(tmp_path)}) as running:
        children = eventually(lambda: children_of(running.pid), "a broker was started", 60)
        running.send_signal(number)
        assert running.wait(60) == status
    eventually(lambda: not any(os.path.exists(f"/proc/{child}") for child in children), "it has ended", 60)


def test_a_signal_in_the_moment_of_a_start_stops_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    try:
        with pytest.raises(SystemExit), started(EVERLOG):
            raise AssertionError("the signal was lost")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert made[0].returncode is not None


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scenarios"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SCENARIOS)
