"""When things of absent clients are due: never forgotten, never too late, and no entry for each disconnect."""

from hypothesis import given
from hypothesis import strategies as st
from tests.stages import Stage

from everlog.broker.registry import expiry
from everlog.broker.registry.expiry import Expiry
from everlog.mqtt import Will

S = 1_000_000


def test_a_client_that_comes_and_goes_has_one_entry() -> None:
    found = Expiry()
    for second in range(1000):
        found.schedule("c", second * S, 3600, Will("t", b""))
    assert len(found) == 2
    assert list(found.due_ends(3599 * S)) == []
    assert list(found.due_ends(3600 * S)) == ["c"]  # of its first time; it is looked at, and scheduled anew
    found.schedule("c", 999 * S, 3600, None)
    assert list(found.due_ends(4598 * S)) == []
    assert list(found.due_ends(4599 * S)) == ["c"]


def test_a_shorter_time_counts_at_once() -> None:
    found = Expiry()
    found.schedule("c", 0, 3600, None)
    found.schedule("c", 0, 10, None)
    assert list(found.due_ends(10 * S)) == ["c"]
    assert list(found.due_ends(9999 * S)) == []


def test_sessions_that_are_over_leave_few_entries(monkeypatch) -> None:
    monkeypatch.setattr(expiry, "_SLACK", 10)
    found = Expiry()
    found.schedule("stays", 0, 3600, None)
    for number in range(1000):
        found.schedule(f"c{number}", 0, 3600, None)
        found.forget(f"c{number}")
        assert len(found) <= 13
    assert list(found.due_ends(3600 * S)) == ["stays"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.booleans())))
def test_nothing_is_told_late_or_lost(steps: list[tuple[str, int, bool]]) -> None:
    found, due = Expiry(), {}
    for name, seconds, ends in steps:
        if ends:
            found.forget(name)
            due.pop(name, None)
        else:
            found.schedule(name, 0, seconds, None)
            due[name] = seconds
    for second in range(21):
        for name in found.due_ends(second * S):
            if due[name] > second:
                found.schedule(name, 0, due[name], None)
            else:
                del due[name]
        assert all(seconds > second for seconds in due.values())


def test_a_broker_forgets_reconnects_and_still_ends_the_session() -> None:
    stage = Stage()
    for _ in range(20):
        stage.connected("a", clean_start=False, expiry=100).close()
        stage.offline("a")
    assert stage.call(lambda: len(stage.broker.registry.expiry)) == 1
    stage.later(200)
    assert stage.inside.session_count == 0
    assert stage.broker.metrics.sessions_expired == 1
    stage.close()
