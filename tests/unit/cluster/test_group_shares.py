"""How groups are shared among brokers."""

from hypothesis import given
from hypothesis import strategies as st

from everlog.cluster.group_shares import plan_moves


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 1000), max_size=8))
def test_all_have_as_many_or_one_more_and_no_group_moves_in_vain(counts: dict[int, int]) -> None:
    after = dict(counts)
    givers, takers = set(), set()
    for (giver, taker), count in plan_moves(counts).items():
        assert count > 0
        after[giver] -= count
        after[taker] += count
        givers.add(giver)
        takers.add(taker)
    assert not givers & takers
    if counts:
        assert max(after.values()) - min(after.values()) <= 1
        assert sum(after.values()) == sum(counts.values())
        assert all(after[one] >= sum(counts.values()) // len(counts) for one in givers)


def test_one_group_stays_where_it_is() -> None:
    assert plan_moves({7: 0, 3: 1, 9: 0}) == {}
    assert plan_moves({7: 0, 3: 2}) == {(3, 7): 1}
