"""The queue of logins: bounded, fair by address and by name, nobody waits for ever, and the dead are gone."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.broker.auth import Attempt, KnownLogins, LoginQueue, source_of

MOST, MOST_BYTES = 6, 60

logins = st.tuples(st.sampled_from("ABC"), st.sampled_from("xyz"), st.booleans(), st.integers(1, 30))
steps = st.lists(st.one_of(st.tuples(st.just("add"), logins), st.tuples(st.sampled_from(["take", "leave"]), st.none())))


class Model:
    """What waits, as a list for each lane in the order of coming, and what was refused."""

    def __init__(self) -> None:
        self.queue: LoginQueue[int] = LoginQueue(MOST, MOST_BYTES)
        self.waiting: dict[int, tuple[bool, Attempt[int]]] = {}
        self.passed: Counter[int] = Counter()  # by client, how many of other addresses in its lane were taken meanwhile

    def lane(self, known: bool) -> list[Attempt[int]]:
        return [one for lane, one in self.waiting.values() if lane is known]

    def add(self, client: int, source: str, name: str, known: bool, size: int) -> None:
        one = Attempt(client, source, name, size)
        before = [*self.lane(known), one]
        refused = self.queue.add(one, known)
        self.waiting[client] = known, one
        for gone in refused:
            victim = self.waiting.pop(gone)[1]
            of_source = [other for other in before if other.source == victim.source]
            by_bytes = sum(other.size_bytes for other in before) > MOST_BYTES
            for other in {other.source for other in before}:
                theirs = [each for each in before if each.source == other]
                assert _load(theirs, by_bytes) <= _load(of_source, by_bytes), "someone else had more"
            names = Counter(each.name for each in of_source)
            assert names[victim.name] == max(names.values())
            assert victim is [each for each in of_source if each.name == victim.name][-1]
            before.remove(victim)
        assert len(before) <= MOST
        assert sum(one.size_bytes for one in before) <= MOST_BYTES

    def take(self) -> None:
        taken = self.queue.take()
        if taken is None:
            assert not self.waiting
            return
        known, _ = self.waiting.pop(taken.client)
        assert not [one for one in self.lane(known) if _same(one, taken) and one.client < taken.client], "out of order"
        for one in self.lane(known):
            if one.source != taken.source:
                self.passed[one.client] += 1
                first = not [
                    each for each in self.lane(known) if each.source == one.source and each.client < one.client
                ]
                others = len({each.source for each in self.lane(known)} - {one.source} | {taken.source})
                assert not first or self.passed[one.client] <= others + 3, "an address waits while others go twice"


def _same(one: Attempt[int], other: Attempt[int]) -> bool:
    return (one.source, one.name) == (other.source, other.name)


def _load(attempts: list[Attempt[int]], by_bytes: bool) -> int:
    return sum(one.size_bytes for one in attempts) if by_bytes else len(attempts)


@settings(max_examples=400, deadline=None)
@given(steps, st.randoms(use_true_random=False))
def test_any_course_keeps_bounds_and_order(course, random):
    model = Model()
    for client, (step, login) in enumerate(course):
        if step == "add":
            model.add(client, *login)
        elif step == "take":
            model.take()
        elif model.waiting:
            gone = random.choice(sorted(model.waiting))
            model.queue.remove(gone)
            del model.waiting[gone]
            assert gone not in model.queue
        assert len(model.queue) == len(model.waiting)
    for _ in range(len(model.waiting) + 1):
        model.take()
    assert not len(model.queue)


@given(st.integers(1, 200), st.integers(0, 200))
def test_a_newcomer_waits_for_one_of_each_other_address(flood, known):
    queue: LoginQueue[str] = LoginQueue(1000, 1 << 20)
    for number in range(flood):
        queue.add(Attempt(f"flood {number}", "bad", f"name {number}", 1), False)
    for number in range(known):
        queue.add(Attempt(f"known {number}", "office", "ann", 1), True)
    queue.add(Attempt("newcomer", "good", "bob", 1), False)
    order = [one.client for _ in range(len(queue)) if (one := queue.take()) is not None]
    assert order.index("newcomer") <= 4
    if known:
        assert order.index("known 0") <= 1


@given(st.integers(1, 50))
def test_one_name_tried_many_times_holds_up_no_other_name_of_its_address(flood):
    queue: LoginQueue[str] = LoginQueue(1000, 1 << 20)
    for number in range(flood):
        queue.add(Attempt(f"flood {number}", "office", "admin", 1), False)
    queue.add(Attempt("newcomer", "office", "bob", 1), False)
    order = [one.client for _ in range(len(queue)) if (one := queue.take()) is not None]
    assert order.index("newcomer") == 1


def test_a_full_queue_refuses_whoever_has_most_and_not_the_newcomer():
    queue: LoginQueue[str] = LoginQueue(3, 1 << 20)
    for number in range(3):
        assert queue.add(Attempt(f"flood {number}", "bad", "x", 1), False) == []
    assert queue.add(Attempt("flood 3", "bad", "x", 1), False) == ["flood 3"]
    assert queue.add(Attempt("newcomer", "good", "x", 1), False) == ["flood 2"]
    assert queue.add(Attempt("known", "bad", "y", 1), True) == []
    assert queue.add(Attempt("large", "bad", "x", 2 << 20), False) == ["large"]


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("192.0.2.7:5000", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6:5000", "20010db800010002/64"),
        ("2001:db8:1:2::9:1", "20010db800010002/64"),
        ("fe80::1%eth0:77", "fe80000000000000/64"),
        ("::ffff:192.0.2.7:5000", "192.0.2.7"),
        ("local", "local"),
    ],
)
def test_an_address_is_one_place_and_of_ipv6_its_first_half(peer, source):
    assert source_of(peer) == source


def test_the_least_recent_of_the_known_is_forgotten():
    known = KnownLogins(2)
    known.add("a", "x")
    known.add("b", "x")
    known.add("a", "x")
    known.add("c", "x")
    assert [("a", "x") in known, ("b", "x") in known, ("c", "x") in known] == [True, False, True]
