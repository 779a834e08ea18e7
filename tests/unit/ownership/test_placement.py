from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from everlog.ownership import (
    Board,
    Claim,
    Member,
    plan_placement,
    servers_of,
    things_to_claim,
    things_to_release,
)

SHARDS = [f"shard-{number}" for number in range(16)]
NAMES = st.sets(st.sampled_from("abcdefg"))


def test_a_newcomer_gets_its_share_and_no_more_moves() -> None:
    before = plan_placement(SHARDS, ["a", "b"], {})
    after = plan_placement(SHARDS, ["a", "b", "c"], before)
    assert sorted(Counter(after.values()).values()) == [5, 5, 6]
    assert sum(before[shard] != after[shard] for shard in SHARDS) == 5


def test_only_what_was_on_the_lost_server_moves() -> None:
    before = plan_placement(SHARDS, ["a", "b", "c", "d"], {})
    after = plan_placement(SHARDS, ["a", "b", "d"], before)
    assert {shard for shard in SHARDS if before[shard] != after[shard]} == {s for s in SHARDS if before[s] == "c"}


def test_nothing_is_placed_without_servers() -> None:
    assert plan_placement(SHARDS, [], {"shard-0": "a"}) == {}


@given(servers=NAMES, current=st.dictionaries(st.sampled_from(SHARDS), st.sampled_from("abcdefg")))
def test_a_plan_is_even_complete_and_moves_the_fewest(servers: set[str], current: dict[str, str]) -> None:
    plan = plan_placement(SHARDS, servers, current)
    if not servers:
        assert plan == {}
        return
    counts = [list(plan.values()).count(name) for name in servers]
    assert sorted(plan) == sorted(SHARDS)
    assert set(plan.values()) <= servers
    assert max(counts) - min(counts) <= 1
    kept = sum(plan[shard] == current.get(shard) for shard in SHARDS)
    held = sorted((sum(current.get(shard) == name for shard in SHARDS) for name in servers), reverse=True)
    least, more = divmod(len(SHARDS), len(servers))
    assert kept == sum(min(size, least + (rank < more)) for rank, size in enumerate(held))
    assert plan_placement(SHARDS, servers, plan) == plan


def test_what_a_server_has_to_do() -> None:
    board = Board(
        members={1: Member(1, "a", "", ""), 2: Member(2, "b", "", ""), 3: Member(3, "c", "", "", draining=True)},
        claims={"x": Claim(1, 3), "y": Claim(0, 2), "z": Claim(1, 1), "gone": Claim(1, 1)},
        placement={"x": "b", "y": "a", "z": "a", "new": "a", "gone": "dead"},
    )
    assert servers_of(board) == ["a", "b"]
    assert things_to_claim(board, 1) == ["new", "y"]
    assert things_to_release(board, 1) == ["x"]
    assert things_to_claim(board, 2) == []
