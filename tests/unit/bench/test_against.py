"""Rounds of two checkouts become medians, extremes and ratios of runs of the same round."""

import pytest

from everlog.bench.load import CASES, CPU, P50, RATE, Broker, Report, between_cases, lines
from everlog.bench.load.against import AGAINST, THIS, Rounds, Spread

BROKERS = [Broker(name, keeps=keeps) for keeps in (True, False) for name in (THIS, AGAINST)]
BROKERS.append(Broker("mosquitto", "mosquitto"))
IN_Q1, SHARDS, SLOW = [case for case in CASES if case.name in ("in-q1", "shards-4", "slow-shard")]


def report(rate: float, cpu: float = 1.0, p50: float | None = None, status: str = "ok") -> Report:
    return {"status": status, "msgs_per_s": rate, "broker": {"cpu_us_per_msg": cpu}, "latency_us": {"p50": p50}}


def rounds_of(*runs: list[Report], case: str = "in-q1") -> Rounds:
    return {(case, broker): reports for broker, reports in zip(BROKERS, runs, strict=False)}


def test_ratios_are_of_runs_of_the_same_round() -> None:
    rounds = rounds_of([report(100), report(30), report(60)], [report(50), report(10), report(60)])
    (rate, cpu) = lines(rounds, BROKERS, [IN_Q1])
    assert (rate.case, rate.keeps, rate.figure, cpu.figure) == ("in-q1", True, RATE, CPU)
    assert rate.brokers == {THIS: Spread(60, 30, 100), AGAINST: Spread(50, 10, 60), "mosquitto": None}
    assert rate.ratio == Spread(2, 1, 3)


def test_a_run_that_failed_has_no_figures() -> None:
    broken = [report(9, status="stalled"), report(100)]
    rate, _ = lines(rounds_of(broken, [report(50), report(50)]), BROKERS, [IN_Q1])
    assert rate.brokers[THIS] == Spread(100, 100, 100)
    assert rate.ratio == Spread(2, 2, 2)


def test_peers_stand_beside_both_ways_of_keeping() -> None:
    rounds = rounds_of(*([report(number)] for number in range(1, 6)))
    found = [(line.keeps, line.brokers["mosquitto"]) for line in lines(rounds, BROKERS, [IN_Q1]) if line.figure == RATE]
    assert found == [(True, Spread(5, 5, 5)), (False, Spread(5, 5, 5))]


@pytest.mark.parametrize(
    ("this", "against", "worse"),
    [
        ([report(1), report(2)], [report(2), report(3)], (True, None)),
        ([report(3), report(4)], [report(2), report(3)], (False, None)),
        ([report(1), report(3)], [report(2), report(2)], (None, None)),
        ([report(1, cpu=3)], [report(1, cpu=2)], (None, True)),
        ([report(1, cpu=1)], [report(1, cpu=2)], (None, False)),
    ],
)
def test_worse_is_what_was_worse_in_every_round(
    this: list[Report], against: list[Report], worse: tuple[bool | None, ...]
) -> None:
    assert tuple(line.is_worse for line in lines(rounds_of(this, against), BROKERS, [IN_Q1])) == worse


def test_a_slow_shard_is_compared_with_none() -> None:
    rounds = rounds_of([report(1, p50=10)], [report(1, p50=10)], case="shards-4")
    rounds |= rounds_of([report(1, p50=11)], [report(1, p50=500)], case="slow-shard")
    cases = [SHARDS, SLOW]
    found = lines(rounds, BROKERS, cases)
    assert {(line.case, line.figure) for line in found} > {("shards-4", P50), ("slow-shard", P50)}
    assert between_cases(found, cases) == [("slow-shard", "p50 at most 2x shards-4", {THIS: 1.1, AGAINST: 50.0})]
