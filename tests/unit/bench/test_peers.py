"""Demands are judged against the peer, another case or a number; unknown figures are not judged."""

import pytest

from everlog.base import UsageError
from everlog.bench.load import ALL_CASES, SCENARIOS, Options, judge
from everlog.bench.load.bare_disk import measure_disk
from everlog.bench.load.brokers import EVERLOG, Broker
from everlog.bench.load.cases import figure_of


def test_ratios_are_to_the_peer() -> None:
    reports = {
        ("in-q1", "everlog"): {"status": "ok", "msgs_per_s": 400.0, "broker": {"cpu_us_per_msg": 2.0}},
        ("in-q1", "mosquitto"): {"status": "ok", "msgs_per_s": 100.0, "broker": {"cpu_us_per_msg": 5.0}},
    }
    assert [(verdict.found, verdict.met) for verdict in judge(reports)] == [(4.0, True), (0.4, False)]


def test_case_can_be_compared_with_another_of_ours() -> None:
    reports = {
        ("fan-1:100-q1", "everlog"): {"status": "ok", "msgs_per_s": 100.0},
        ("slow-acker", "everlog"): {"status": "ok", "msgs_per_s": 96.0},
    }
    (verdict,) = judge(reports)
    assert (verdict.found, verdict.met) == (0.96, True)


def test_what_the_disk_takes_is_allowed_on_top() -> None:
    reports = {
        ("lone-1k/s", "everlog"): {"status": "ok", "broker": {"cpu_us_per_msg": 100.0}, "latency_us": {"p50": 300.0}},
        ("lone-1k/s", "mosquitto"): {"status": "ok", "broker": {"cpu_us_per_msg": 40.0}, "latency_us": {"p50": 100.0}},
        ("lone-1k/s", "bare disk"): {"status": "ok", "sync": {"cpu_us": 50.0, "p50_us": 150.0}},
    }
    cpu, p50, _ = judge(reports)
    assert [(verdict.bound, verdict.met) for verdict in (cpu, p50)] == [(105.0, True), (280.0, False)]


def test_a_demand_on_the_disk_is_capped() -> None:
    def verdict(disk: float, ours: float) -> tuple[float | None, bool | None]:
        reports = {
            ("in-16K", "everlog"): {"status": "ok", "mb_per_s": ours},
            ("in-16K", "bare disk"): {"status": "ok", "write": {"1M": disk}},
        }
        return judge(reports)[0].bound, judge(reports)[0].met

    assert verdict(disk=1000, ours=650) == (600.0, True)
    assert verdict(disk=9000, ours=899) == (900.0, False)


def test_without_the_disk_a_demand_on_it_stays_open() -> None:
    assert [one.met for one in judge({("in-16K", "everlog"): {"status": "ok", "mb_per_s": 1e9}})] == [None, None, None]


def test_the_bare_disk_is_measured() -> None:
    found = measure_disk()
    assert all(value > 0 for part in (found["sync"], found["write"]) for value in part.values())


def test_missing_peer_leaves_the_verdict_open() -> None:
    assert [verdict.met for verdict in judge({("in-q1", "everlog"): {"status": "ok", "msgs_per_s": 1.0}})] == [
        None,
        None,
    ]


def test_a_slow_disk_is_for_ours_alone() -> None:
    mosquitto = Broker("mosquitto", "mosquitto")
    stalls = [case for case in ALL_CASES if case.slow_disk_ms]
    assert stalls
    assert all(case.is_for(EVERLOG) and not case.is_for(mosquitto) for case in stalls)


def test_a_verdict_shows_the_peer_too() -> None:
    reports = {
        ("connect-1k", "everlog"): {"status": "ok", "kb_per_connection": 2.9},
        ("connect-1k", "mosquitto"): {"status": "ok", "kb_per_connection": 1.5},
    }
    memory = judge(reports)[1]
    assert (memory.ours, memory.bound, memory.peer, memory.met) == (2.9, 3.0, 1.5, True)


def test_figures_are_found_by_dotted_name() -> None:
    assert figure_of({"broker": {"cpu_s": 3}}, "broker.cpu_s") == 3.0
    assert figure_of({"latency_us": None}, "latency_us.p50") is None


def test_every_case_is_a_possible_run() -> None:
    for case in ALL_CASES:
        for changes in ({}, *case.others.values()):
            SCENARIOS[case.scenario].fix(Options(case.scenario, 1883, **{**case.options, **changes}))
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)


@pytest.mark.parametrize(
    "wrong",
    [{"port": 0}, {"qos": 3}, {"size": 5}, {"window": 0}, {"publishers": 0}, {"messages": -1}, {"seconds": 0.0}],
)
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Options("ingest", **{"port": 1883, **wrong})  # type: ignore[arg-type]
