from collections.abc import Mapping

import pytest

from everlog.base import Unavailable
from everlog.ownership import (
    COORDINATOR,
    Membership,
    MemoryOwnership,
    Overruled,
    Replaced,
    things_to_claim,
    things_to_release,
)

SHARDS = ["shard-0", "shard-1", "shard-2", "shard-3"]


class Servers:
    """Servers on one storage and one clock; each tick is a second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ownership = MemoryOwnership()
        self.is_well = True
        self.refused: set[str] = set()

    def join(self, name: str) -> Membership:
        membership = Membership(
            self.ownership,
            name,
            f"{name}:1",
            SHARDS,
            is_well=lambda: self.is_well or name != "a",
            refuses=lambda address: address in self.refused,
            clock=lambda: self.now_s,
        )
        membership.join()
        return membership

    def tick(self, *members: Membership, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 1
            for member in members:
                member.tick()
                self.ownership.release(things_to_release(member.board, member.incarnation), member.incarnation)
                self.ownership.claim(things_to_claim(member.board, member.incarnation), member.incarnation)

    def owned(self, *members: Membership) -> list[int]:
        return [len([t for t in self.ownership.read().owned_by(m.incarnation) if t in SHARDS]) for m in members]


@pytest.fixture
def servers() -> Servers:
    return Servers()


def test_a_lone_server_owns_everything(servers: Servers) -> None:
    a = servers.join("a")
    servers.tick(a)
    assert servers.owned(a) == [4]
    assert a.board.claims[COORDINATOR].owner == a.incarnation


def test_shards_move_politely_to_a_newcomer(servers: Servers) -> None:
    a = servers.join("a")
    servers.tick(a)
    b = servers.join("b")
    servers.tick(a, b, times=2)
    assert servers.owned(a, b) == [2, 2]
    assert sorted(claim.epoch for thing, claim in b.board.claims.items() if thing in SHARDS) == [1, 1, 2, 2]


def test_a_silent_server_is_dead_after_five_seconds_and_its_shards_go_on(servers: Servers) -> None:
    a, b = servers.join("a"), servers.join("b")
    servers.tick(a, b, times=3)
    servers.tick(b, times=4)
    assert servers.owned(a, b) == [2, 2]
    servers.tick(b, times=2)
    assert servers.owned(a, b) == [0, 4]
    assert b.board.claims[COORDINATOR].owner == b.incarnation
    with pytest.raises(Overruled):
        a.tick()


def test_a_server_whose_machine_refuses_connections_is_dead_after_one(servers: Servers) -> None:
    a, b = servers.join("a"), servers.join("b")
    servers.tick(a, b, times=3)
    servers.refused.add("a:1")
    servers.tick(a, b, times=10)  # it beats, whatever the network says
    assert servers.owned(a, b) == [2, 2]
    servers.tick(b, times=4)
    assert servers.owned(a, b) == [0, 4]


def test_who_is_not_well_does_not_beat(servers: Servers) -> None:
    a, b = servers.join("a"), servers.join("b")
    servers.tick(a, b, times=3)
    servers.is_well = False
    with pytest.raises(Overruled):
        servers.tick(a, b, times=10)
    assert set(servers.ownership.read().members) == {b.incarnation}


def test_nobody_is_declared_dead_for_what_a_server_did_not_see(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = servers.join("a"), servers.join("b")
    servers.tick(a, b, times=3)

    def cut(*_: object) -> None:
        raise Unavailable("no storage")

    for method in ("beat", "beats"):
        monkeypatch.setattr(servers.ownership, method, cut)
        for _ in range(3):
            with pytest.raises(Unavailable):
                servers.tick(b)
        monkeypatch.undo()
        servers.tick(b, times=3)
    servers.tick(a, b, times=3)
    assert servers.owned(a, b) == [2, 2]


def test_a_draining_server_gives_its_shards_away_and_is_no_coordinator(servers: Servers) -> None:
    a, b = servers.join("a"), servers.join("b")
    servers.tick(a, b, times=3)
    servers.ownership.drain(a.incarnation)
    servers.tick(a, b, times=4)
    assert servers.owned(a, b) == [0, 4]
    assert b.board.claims[COORDINATOR].owner == b.incarnation
    a.leave()
    servers.tick(b)
    assert set(b.board.members) == {b.incarnation}


def test_who_is_declared_dead_while_it_coordinates_is_told_so(servers: Servers) -> None:
    a = servers.join("a")
    place = servers.ownership.place

    def place_and_die(placement: Mapping[str, str], epoch: int) -> None:
        place(placement, epoch)
        assert servers.ownership.declare_dead(a.incarnation, servers.ownership.beats()[a.incarnation])

    servers.ownership.place = place_and_die  # type: ignore[method-assign]
    with pytest.raises(Overruled):
        a.tick()


def test_the_last_server_keeps_its_shards_while_it_drains(servers: Servers) -> None:
    a = servers.join("a")
    servers.tick(a)
    servers.ownership.drain(a.incarnation)
    servers.tick(a, times=3)
    assert servers.owned(a) == [4]


def test_of_two_servers_with_one_name_the_first_is_told_to_stop(servers: Servers) -> None:
    a = servers.join("a")
    servers.tick(a)
    other = servers.join("a")
    with pytest.raises(Replaced, match="a name of its own"):
        servers.tick(a)
    servers.tick(other)
    assert servers.owned(a, other) == [0, 4]


def test_a_join_that_was_stored_though_its_answer_was_lost_is_nobody_elses(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = servers.join("a")
    servers.ownership.declare_dead(a.incarnation, 0)
    really = servers.ownership.join

    def lost(name: str, address: str) -> int:
        really(name, address)
        raise Unavailable("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(servers.ownership, "join", lost)
        with pytest.raises(Unavailable):
            a.join()
    with pytest.raises(Overruled) as told:
        a.tick()
    assert type(told.value) is Overruled, "it may join again"
    a.join()
    servers.tick(a)
    assert servers.owned(a) == [4]
    servers.join("a")
    with pytest.raises(Replaced):
        a.tick()
