"""The table of plain writes under way, on both twins, against a dictionary."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

IDS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1]))


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@given(steps=st.lists(st.tuples(st.booleans(), IDS)), many=st.integers(0, 3000))
def test_what_is_under_way_is_found_until_it_is_removed(twin: Twin, steps: list[tuple[bool, int]], many: int) -> None:
    table: Any = twin.UnderWay()
    known: dict[int, str] = {}
    for number, (is_new, id) in enumerate([*((True, 1000 + k) for k in range(many)), *steps]):
        if not is_new:
            table.remove(id)
            known.pop(id, None)
        elif id not in known:
            known[id] = f"response/{number}"
            table.add(table.place(id), twin.new_asked(known[id], b"", id))
    assert len(table) == len(known)
    for id in {*known, *(id for _, id in steps), 1, 2**64 - 2}:
        assert table.has(known.get(id, "response/0"), id) == (id in known)
        assert not table.has("response/other", id)
    for id in list(known):
        table.remove(id)
        assert not table.has(known.pop(id), id)
        if len(known) % 50 == 0:
            assert all(table.has(reply, one) for one, reply in known.items())
    assert len(table) == 0
