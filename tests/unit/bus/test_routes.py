"""Which handlers get a subject, on both twins."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

twins = pytest.mark.parametrize("twin", TWINS, ids=repr)

PATTERNS = ["a/#", "a/b", "a/b/#", "c", "c/#"]
SUBJECTS = ["a", "a/b", "a/b/c", "a/x", "c", "c/d", "e"]


def matches(pattern: str, subject: str) -> bool:
    return pattern == subject or (pattern.endswith("/#") and subject.startswith(pattern[:-1]))


def payloads(into: list[bytes], deliveries: list[Any]) -> None:
    into.extend(one.payload for one in deliveries)
    deliveries.clear()  # the list is the handler's own


@twins
@given(
    st.lists(st.sampled_from(PATTERNS), max_size=6),
    st.lists(st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=8), max_size=4),
)
def test_every_handler_gets_what_its_pattern_matches_in_order(
    twin: Twin, patterns: list[str], reads: list[list[str]]
) -> None:
    routes = twin.Routes()
    heard: list[list[bytes]] = [[] for _ in patterns]
    for pattern, into in zip(patterns, heard, strict=True):
        routes.add(pattern, partial(payloads, into))
    sent = []
    for number, subjects in enumerate(reads):
        read = [(subject, b"%d %d" % (number, place)) for place, subject in enumerate(subjects)]
        routes.dispatch([twin.Delivery(*one) for one in read])
        sent += read
    assert heard == [[payload for subject, payload in sent if matches(pattern, subject)] for pattern in patterns]


@twins
def test_what_arrived_together_for_one_handler_comes_in_one_call(twin: Twin) -> None:
    routes = twin.Routes()
    calls: list[int] = []
    handler = lambda deliveries: calls.append(len(deliveries))  # noqa: E731
    assert routes.add("r/#", handler)
    assert routes.add("w/#", handler)
    assert not routes.add("w/#", print)
    assert not routes.remove("w/#", print)
    routes.dispatch([twin.Delivery(f"{right}/{number}", b"") for right in "rw" for number in range(5)])
    assert calls == [10]
    assert routes.remove("w/#", handler)
    routes.dispatch([twin.Delivery(f"{right}/{number}", b"") for right in "rw" for number in range(5)])
    assert calls == [10, 5]
    assert list(routes) == ["r/#"]
