"""A client id that two clients throw out each other of is let go ever more slowly; who only moves waits for nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from everlog.cluster import session_leaving
from everlog.cluster.session_leaving import FIRST_PACE_S, MOST_PACE_S, MOVES, QUICK_S, SessionLeaving


class Clock:
    """The loop's time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


def leaving(*connected: str) -> tuple[SessionLeaving, Clock, dict[str, Any]]:
    """What is let go of at a broker where these client ids are connected."""
    sessions: dict[str, Any] = {name: SimpleNamespace(client_id=name) for name in connected}
    clients = {id(one): one for one in sessions.values()}
    registry: Any = SimpleNamespace(find=sessions.get, clients=Clients(clients))
    made = SessionLeaving(None, None, None, None)  # type: ignore[arg-type]
    made._registry, made._loop = registry, Clock()  # type: ignore[assignment]
    return made, made._loop, sessions  # type: ignore[return-value]


class Clients:
    """The sessions that are connected."""

    def __init__(self, of: dict[int, Any]) -> None:
        self.of = of

    def __contains__(self, session: object) -> bool:
        return id(session) in self.of


def test_who_throws_out_another_again_and_again_waits_twice_as_long_each_time() -> None:
    one, clock, _ = leaving("me")
    waits = []
    for _ in range(8):
        waits.append(one._pace("me"))
        clock.now += 1.0
    assert waits[:4] == [0.0, FIRST_PACE_S, 2 * FIRST_PACE_S, 4 * FIRST_PACE_S]
    assert waits[-1] == MOST_PACE_S
    clock.now += QUICK_S + MOST_PACE_S
    assert one._pace("me") == 0.0, "after a while it is forgotten"


def test_a_client_that_has_closed_its_connection_may_move_as_often_as_it_likes() -> None:
    one, clock, sessions = leaving("me")
    one._registry.clients.of.clear()  # type: ignore[attr-defined]
    for _ in range(5):
        assert one._pace("me") == 0.0
        clock.now += 0.1
    sessions.clear()
    assert one._pace("me") == 0.0
    assert one._moves == {}


def test_so_many_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOVES >= 1000
    monkeypatch.setattr(session_leaving, "MOVES", 3)
    one, _, _ = leaving(*"abcdef")
    for name in "abcdef":
        one._pace(name)
    assert list(one._moves) == ["d", "e", "f"]
