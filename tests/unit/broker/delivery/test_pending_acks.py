"""Acks that wait for the log: in the order of each connection, and for no other connection's shards."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

both = pytest.mark.parametrize("twin", TWINS, ids=str)


class Client:
    """A sink with a queue of acks that wait, and what it was answered."""

    def __init__(self, twin: Twin) -> None:
        self.answered: list[tuple[bytes, int]] = []
        self.queue = twin.AckQueue(self)

    def write(self, data: bytes) -> None:
        raise AssertionError("acks are answers")

    def answer(self, acks: bytes, pubacks: int) -> None:
        self.answered.append((acks, pubacks))

    @property
    def acks(self) -> list[bytes]:
        return [acks for acks, _ in self.answered]


def made(twin: Twin, clients: int, shards: int = 4) -> tuple[Any, ...]:
    return twin.PendingAcks(shards), *(Client(twin) for _ in range(clients))


@both
def test_acks_wait_for_the_offset_behind_their_messages(twin: Twin) -> None:
    pending, client = made(twin, 1)
    pending.wait(client.queue, b"12", 2, [(0, 7)])
    assert (pending.waiting_bytes, pending.is_empty) == (2, False)
    pending.committed(0, 6)
    pending.committed(1, 99)
    assert client.answered == []
    pending.committed(0, 7)
    assert client.answered == [(b"12", 2)]
    assert (pending.waiting_bytes, pending.is_empty) == (0, True)
    pending.committed(0, 8)
    assert len(client.answered) == 1


@both
def test_a_run_in_several_shards_waits_for_all_of_them(twin: Twin) -> None:
    pending, client = made(twin, 1)
    pending.wait(client.queue, b"1", 1, [(0, 1), (2, 5), (3, 2)])
    for shard, end in ((3, 2), (0, 1), (2, 4)):
        pending.committed(shard, end)
        assert client.answered == []
    pending.committed(2, 5)
    assert client.acks == [b"1"]


@both
def test_acks_of_one_connection_leave_in_the_order_of_its_publishes(twin: Twin) -> None:
    pending, client = made(twin, 1)
    pending.wait(client.queue, b"1", 1, [(0, 1)])
    pending.wait(client.queue, b"22", 2, [(1, 1)])
    pending.wait(client.queue, b"3", 1, [(2, 1)])
    pending.wait(client.queue, b"4", 1, [(1, 2)])
    pending.committed(2, 1)
    pending.committed(1, 1)
    assert client.answered == []
    assert pending.waiting_bytes == 5
    pending.committed(0, 1)
    assert client.answered == [(b"1", 1), (b"22", 2), (b"3", 1)]
    assert pending.waiting_bytes == 1
    pending.committed(1, 2)
    assert client.acks == [b"1", b"22", b"3", b"4"]
    assert pending.waiting_bytes == 0


@both
def test_a_slow_shard_holds_back_nobody_else(twin: Twin) -> None:
    pending, slow, fast, both_shards = made(twin, 3)
    pending.wait(slow.queue, b"s", 1, [(0, 1)])
    pending.wait(both_shards.queue, b"x", 1, [(0, 2)])
    pending.wait(both_shards.queue, b"y", 1, [(1, 1)])
    for number in range(2, 12):
        pending.wait(fast.queue, b"%d" % number, 1, [(1, number)])
        pending.committed(1, number)
        assert fast.acks[-1] == b"%d" % number
    assert len(fast.acks) == 10
    assert (slow.acks, both_shards.acks, pending.waiting_bytes) == ([], [], 3)
    pending.committed(0, 1)
    assert (slow.acks, both_shards.acks) == ([b"s"], [])
    pending.committed(0, 2)
    assert both_shards.acks == [b"x", b"y"]


@both
def test_what_was_kept_nowhere_is_answered_at_once_but_not_before_older_acks(twin: Twin) -> None:
    pending, client, other = made(twin, 2)
    pending.wait(client.queue, b"0", 1, [])
    assert client.answered == [(b"0", 1)]
    pending.wait(client.queue, b"1", 1, [(0, 1)])
    pending.wait(client.queue, b"2", 1, [])
    pending.wait(other.queue, b"3", 1, [])
    assert (client.acks, other.acks, pending.waiting_bytes) == ([b"0"], [b"3"], 2)
    pending.committed(0, 1)
    assert client.acks == [b"0", b"1", b"2"]
    pending.wait(client.queue, b"4", 1, [])
    assert client.acks[-1] == b"4"
    assert (pending.waiting_bytes, pending.is_empty) == (0, True)


@both
def test_a_shard_that_fails_ends_who_waits_for_it_and_nobody_else(twin: Twin) -> None:
    pending, hit, hit_later, mixed, spared = made(twin, 4)
    pending.wait(hit.queue, b"1", 1, [(0, 1)])
    pending.wait(hit_later.queue, b"22", 1, [(1, 1)])
    pending.wait(hit_later.queue, b"3", 1, [(0, 2)])
    pending.wait(mixed.queue, b"4", 1, [(0, 3), (1, 2)])
    pending.wait(spared.queue, b"5", 1, [(1, 3)])
    pending.wait(spared.queue, b"6", 1, [(2, 1)])
    ended = pending.fail(0)
    assert {id(one) for one in ended} == {id(one) for one in (hit, hit_later, mixed)}
    assert len(ended) == 3
    assert pending.waiting_bytes == 2  # of `spared`
    assert pending.fail(0) == []
    for shard in (1, 2, 3):
        pending.committed(shard, 99)
    assert (hit.acks, hit_later.acks, mixed.acks, spared.acks) == ([], [], [], [b"5", b"6"])
    assert (pending.waiting_bytes, pending.is_empty) == (0, True)


@both
def test_a_shard_that_fails_and_that_nobody_waits_for_ends_nobody(twin: Twin) -> None:
    pending, client = made(twin, 1)
    pending.wait(client.queue, b"1", 1, [(0, 1), (1, 1)])
    pending.committed(1, 1)
    assert pending.fail(1) == []
    assert pending.fail(2) == []
    pending.committed(0, 1)
    assert client.acks == [b"1"]


@both
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(0, 2), st.sets(st.integers(0, 3), max_size=3)),
            st.tuples(st.just("commit"), st.integers(0, 3), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_acks_leave_as_soon_as_they_may_and_in_order(twin: Twin, steps: list[Any]) -> None:
    pending, *clients = made(twin, 3)
    ends, committed = [0] * 4, [0] * 4
    sent: list[list[tuple[bytes, list[tuple[int, int]]]]] = [[], [], []]
    for number, (what, which, more) in enumerate(steps):
        if what == "wait":
            for shard in more:
                ends[shard] += 1
            positions = [(shard, ends[shard]) for shard in sorted(more)]
            sent[which].append((b"%d" % number, positions))
            pending.wait(clients[which].queue, b"%d" % number, 1, positions)
        else:
            committed[which] = max(committed[which], ends[which] - more)
            pending.committed(which, committed[which])
        waiting = 0
        for client, runs in zip(clients, sent, strict=True):
            done = [all(committed[shard] >= end for shard, end in positions) for _, positions in runs]
            free = done.index(False) if False in done else len(done)
            assert client.acks == [acks for acks, _ in runs[:free]]
            waiting += sum(len(acks) for acks, _ in runs[free:])
        assert pending.waiting_bytes == waiting
