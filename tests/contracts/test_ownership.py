"""Who owns what, wherever that is stored: one body over every implementation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.buckets import BUCKETS
from tests.postgres_server import new_schema, shared_server

from everlog.ownership import (
    COORDINATOR,
    NOBODY,
    LedgerOwnership,
    MemoryOwnership,
    Overruled,
    Ownership,
    PostgresOwnership,
    make_ownership_tables,
)

Opener = Callable[[], Ownership]  # another process's view of the same place


def in_memory(tmp_path: Path) -> Iterator[Opener]:
    shared = MemoryOwnership()
    yield lambda: shared


def in_bucket(kind: str) -> Callable[[Path], Iterator[Opener]]:
    def opened(tmp_path: Path) -> Iterator[Opener]:
        with BUCKETS[kind](tmp_path) as opener:
            yield lambda: LedgerOwnership(opener(), "cluster/ownership")

    return opened


def in_postgres(tmp_path: Path) -> Iterator[Opener]:
    url, schema = shared_server().url, new_schema()
    make_ownership_tables(url, schema)
    make_ownership_tables(url, schema)  # what is there stays
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(PostgresOwnership(url, schema)))


IMPLEMENTATIONS = {"memory": in_memory, "postgres": in_postgres} | {kind: in_bucket(kind) for kind in BUCKETS}


@pytest.fixture(params=IMPLEMENTATIONS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    yield from IMPLEMENTATIONS[request.param](tmp_path)


@pytest.fixture
def two(opener: Opener) -> tuple[Ownership, Ownership]:
    return opener(), opener()


def claimed(ownership: Ownership, thing: str, incarnation: int) -> int:
    """Claim a thing that is free, and return its epoch."""
    return ownership.claim([thing], incarnation)[thing]


def test_an_incarnation_is_never_given_again(two: tuple[Ownership, Ownership], opener: Opener) -> None:
    one, other = two
    first, second = one.join("a", "a:1"), other.join("b", "b:1")
    one.leave(first)
    third = one.join("c", "c:1")
    assert first < second < third
    assert opener().join("d", "d:1") > third
    members = opener().read().members
    assert [member.name for member in members.values()] == ["b", "c", "d"]
    assert members[second].address == "b:1"


def test_a_server_that_joins_again_replaces_itself(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    first = one.join("a", "a:1")
    assert claimed(one, "shard-0", first) == 1
    second = other.join("a", "a:2")
    assert set(other.read().members) == {second}
    with pytest.raises(Overruled, match="join again"):
        one.beat(first)
    assert claimed(other, "shard-0", second) == 2


def test_what_is_owned_is_taken(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    assert claimed(one, "shard-3", a) == 1
    assert other.claim(["shard-3", "shard-4"], b) == {"shard-4": 1}
    assert other.claim(["shard-3"], b) == {}
    assert other.read().owned_by(a) == {"shard-3": 1}
    owner = other.read().owner_of("shard-3")
    assert owner is not None
    assert owner.name == "a"
    assert other.read().owner_of("shard-5") is None


def test_a_claim_may_be_made_again(two: tuple[Ownership, Ownership]) -> None:
    one, _ = two
    a = one.join("a", "a:1")
    assert [claimed(one, "shard-0", a) for _ in range(3)] == [1, 1, 1]


def test_an_epoch_only_grows_and_outlives_release_and_death(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    epochs = []
    for ownership, incarnation in ((one, a), (other, b), (one, a)):
        epochs.append(claimed(ownership, "shard-0", incarnation))
        ownership.release(["shard-0"], incarnation)
    epochs.append(claimed(one, "shard-0", a))
    assert other.declare_dead(a, 0)
    epochs.append(claimed(other, "shard-0", b))
    assert epochs == [1, 2, 3, 4, 5]
    assert other.read().claims["shard-0"].owner == b


def test_many_things_are_claimed_and_released_at_once(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    things = [f"shard-{number}" for number in range(100)]
    assert one.claim(things, a) == dict.fromkeys(things, 1)
    assert other.claim(things, b) == {}
    one.release(things[:60], a)
    assert other.claim(things[50:70], b) == dict.fromkeys(things[50:60], 2)
    assert one.claim([], a) == {}
    assert len(one.read().owned_by(a)) == 40


def test_only_the_owner_can_release(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    claimed(one, "shard-0", a)
    other.release(["shard-0"], b)
    other.release(["shard-1"], b)
    assert other.read().owned_by(a) == {"shard-0": 1}


def test_beats_are_seen_by_others(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    other.read()
    before = other.beats()
    assert set(before) == {a, b}
    one.beat(a)
    after = other.beats()
    assert after[a] > before[a]
    assert after[b] == before[b]


def test_who_has_beaten_since_is_not_dead(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a = one.join("a", "a:1")
    other.join("b", "b:1")
    other.read()
    seen = other.beats()[a]
    one.beat(a)
    assert not other.declare_dead(a, seen)
    assert a in one.read().members
    assert other.declare_dead(a, other.beats()[a])
    assert a not in other.read().members


def test_the_dead_lose_all_they_own_and_their_voice(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    for number in range(3):
        claimed(one, f"shard-{number}", a)
    one.beat(a)
    assert other.declare_dead(a, 1)
    assert other.declare_dead(a, 1)  # as it is already
    assert {claim.owner for claim in other.read().claims.values()} == {NOBODY}
    for act in (lambda: one.beat(a), lambda: claimed(one, "shard-9", a), lambda: one.drain(a)):
        with pytest.raises(Overruled):
            act()
    one.release(["shard-0"], a)
    assert claimed(other, "shard-0", b) == 2
    one.release(["shard-0"], a)
    assert other.read().owned_by(b) == {"shard-0": 2}


def test_only_the_present_coordinator_places(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a, b = one.join("a", "a:1"), other.join("b", "b:1")
    first = claimed(one, COORDINATOR, a)
    one.place({"shard-0": "a", "shard-1": "b"}, first)
    assert other.read().placement == {"shard-0": "a", "shard-1": "b"}
    one.declare_dead(a, 0)
    with pytest.raises(Overruled):
        one.place({"shard-0": "a"}, first)
    second = claimed(other, COORDINATOR, b)
    other.place({"shard-0": "b"}, second)
    with pytest.raises(Overruled):
        one.place({"shard-0": "a"}, first)
    assert one.read().placement == {"shard-0": "b"}
    other.place({}, second)
    assert one.read().placement == {}


def test_draining_is_seen(two: tuple[Ownership, Ownership]) -> None:
    one, other = two
    a = one.join("a", "a:1")
    one.drain(a)
    one.drain(a)
    assert other.read().members[a].draining


def test_a_newcomer_finds_what_is_stored_after_many_changes(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    monkeypatch.setattr("everlog.ownership.ledger._KEPT", 5)
    one = opener()
    sleeper = opener()
    a = one.join("a", "a:1")
    sleeper.read()
    for _ in range(40):
        claimed(one, "shard-0", a)
        one.release(["shard-0"], a)
    epoch = claimed(one, "shard-0", a)
    assert epoch == 41
    assert opener().read() == one.read()
    assert sleeper.join("b", "b:1") == a + 1
    assert sleeper.read().owned_by(a) == {"shard-0": 41}
