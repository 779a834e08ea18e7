"""What is demanded of streams is judged by the figures of each case, its own too."""

from everlog.bench.persist import CASES, DEMANDS, Measured, Outcome, Scale, judge
from everlog.bench.persist.backlog import BacklogWatch, Waiting


def test_every_demand_is_on_a_case_that_can_be_played() -> None:
    assert {demand.case for demand in DEMANDS} <= set(CASES)


def test_a_figure_of_one_case_alone_is_judged() -> None:
    fleet = Outcome(40_000, 1.0, 1.0, 1.0, resident_mb=400, more={"lost": 1, "pause_s": 3, "descriptors": 10.0})
    fleet.more["unfiled_rows"] = 5
    holds = {one.demand.figure: one.holds for one in judge([Measured("fleet", "everlog-two", fleet)])}
    assert holds == {
        "rate": True, "resident_mb": True, "descriptors": True, "unfiled_rows": True, "pause_s": True, "lost": False
    }  # fmt: skip


def test_a_start_is_judged_by_that_of_the_peer() -> None:
    found = [
        Measured("start", name, Outcome(1, seconds, 0.1, 0.0)) for name, seconds in (("everlog", 1), ("jetstream", 21))
    ]
    (verdict,) = judge(found)
    assert verdict.holds
    assert verdict.bound == 21 * 0.05


def test_many_streams_on_a_disk_are_opened_and_judged() -> None:
    case = CASES["many-streams"]
    assert case.own is not None
    with case.own.running() as running:
        found = case.play(case.own, running, Scale(kept=20))
    verdicts = judge([Measured(case.name, case.own.name, found)])
    assert [(one.demand.figure, one.bound) for one in verdicts] == [("ready_s", 0.5), ("open_p99_ms", 10)]
    assert all(one.figure > 0 for one in verdicts)


def test_a_backlog_that_grows_is_told_from_one_that_is_large() -> None:
    watch = BacklogWatch("nats://127.0.0.1:1")
    watch.seen = [Waiting(rows, 100 * rows) for rows in (1, 500, 900, 800, 900, 850, 800, 900)]
    assert watch.figures() == {"unfiled_rows": 900, "unfiled_mb": 0.1, "growth": 1.0}
    watch.seen = [Waiting(rows, 0) for rows in range(0, 800, 100)]
    assert watch.figures()["growth"] > 1.3
