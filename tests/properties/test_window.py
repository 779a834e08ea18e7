"""The window of messages under way against a plain list: whatever is sent and acknowledged, in whatever order."""

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, batch_of, needs_compiled

from everlog.base import PeerError
from everlog.mqtt import Publish

PUBACK, PUBREC, PUBCOMP = 4, 5, 7
IDS = 65_535
TAG = 0xFFFF_FFFF
FITS = {PUBACK: (1,), PUBREC: (2, 3), PUBCOMP: (3,)}  # the states that an ack with success is for


@cache
def batch(twin: Twin):
    """Messages of all three QoS."""
    return batch_of([Publish("t", b"", k * 7 % 3, packet_id=k + 1 if k * 7 % 3 else 0) for k in range(64)], twin)


def _column(ids: list[int]) -> bytes:
    return b"".join(one.to_bytes(2, "little") for one in ids)


class Pair:
    """A window and what it should be: the messages under way in the order of sending."""

    def __init__(self, twin: Twin, limit: int, next_id: int = 1) -> None:
        self.twin = twin
        self.window = twin.Window(limit)
        self.writer = twin.PublishWriter(4)
        self.window.restore([], next_id)
        self.limit = limit
        self.plain: dict[int, tuple[int, int]] = {}
        self.tags: dict[int, int] = {}
        self.finished: dict[int, list[int]] = {}
        self.last = (next_id - 2) % IDS + 1

    def send(self, count: int, qos: int, shard: int, tag: int = 0) -> None:
        """Messages at this QoS, as many as there is room for, perhaps of a shared group."""
        records = batch(self.twin)
        stop = min(count, records.count)
        start = 0
        while start < stop:
            room = self.window.room()
            free = self.limit - len(self.plain)
            assert room <= max(free, 0)
            assert (room > 0) == (free > 0), "there is always an id when the limit allows a message"
            first = self.window.next_id
            self.writer.write(records, None, start, stop, qos, first, 0, False, room)
            self.window.sent(self.writer, records, None, start, shard, tag)
            packet_id = first
            newest = []
            for row in range(start, self.writer.stopped_at):
                level = min(records.row(row)[3] >> 1 & 3, qos)
                if level:
                    assert 1 <= packet_id <= IDS
                    assert packet_id not in self.plain
                    self.plain[packet_id] = (level, shard << 56 | row)
                    self.tags[packet_id] = tag
                    newest.append(shard << 56 | row)
                    packet_id = packet_id % IDS + 1
            assert packet_id == self.writer.next_id or not self.writer.ids_used
            assert self.window.newest(len(newest)) == newest
            if self.writer.stopped_at == start:
                break
            start = self.writer.stopped_at
        self.check()

    def ack(self, kind: int, ids: list[int], reason: int = 0) -> None:
        """A run of acks, known or not; one that is not of the kind its message waits for is refused."""
        right: list[int] = []
        expected: list[int] = []
        for one in ids:
            state, position = self.plain.get(one, (0, 0))
            if state and reason < 0x80 and state not in FITS[kind]:
                self._acked(kind, right, reason, expected)
                right, expected = [], []
                with pytest.raises(PeerError):
                    self._acked(kind, [one], reason, [])
                continue
            right.append(one)
            if kind == PUBREC and reason < 0x80:
                expected.append(one)
                if state:
                    self.plain[one] = (3, position)
            elif (kind, state) in ((PUBACK, 1), (PUBCOMP, 3)) or (kind == PUBREC and state == 2):
                del self.plain[one]
                if self.tags.get(one):
                    self.finished.setdefault(self.tags[one], []).append(position)
        self._acked(kind, right, reason, expected)
        self.check()

    def _acked(self, kind: int, ids: list[int], reason: int, expected: list[int]) -> None:
        released = self.window.acked(self.twin.AckRun(kind, _column(ids), bytes([reason]) * len(ids)))
        assert released == _column(expected)

    def check(self) -> None:
        assert self.window.inflight == len(self.plain)
        pending = [(one, state, position) for one, (state, position) in self.plain.items()]
        assert self.window.pending() == pending
        packed = b"".join(
            one.to_bytes(2, "little") + bytes((state,)) + position.to_bytes(8, "little")
            for one, state, position in pending
            if state != 1 or not self.tags.get(one)
        )
        assert self.window.finished == self.finished
        assert all(self.window.tag(one) == self.tags.get(one, 0) for one in self.plain)
        for tag in (7, TAG):
            assert self.window.tagged(tag) == [entry for entry in pending if self.tags.get(entry[0]) == tag]
        assert self.window.packed() == packed
        assert all(self.window.state(one) == state for one, state, _ in pending)


steps = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(1, 64),
        st.integers(1, 2),
        st.sampled_from([0, 3, 255]),
        st.sampled_from([0, 7, TAG]),
    ),
    st.tuples(st.just("untag"), st.integers(0, 100)),
    st.tuples(st.just("take back"), st.integers(1, 40), st.sampled_from([0, 7, TAG])),
    st.tuples(
        st.just("ack"), st.sampled_from([PUBACK, PUBREC, PUBCOMP]), st.integers(1, 40), st.sampled_from([0, 0x10, 0x80])
    ),
    st.tuples(st.just("finish"), st.integers(0, 100)),
    st.tuples(st.just("limit"), st.integers(1, 60)),
    st.tuples(st.just("restore"), st.booleans()),
    st.tuples(st.just("forget"), st.integers(0, 100)),
)


@pytest.mark.parametrize("twin", TWINS, ids=str)
@given(
    limit=st.integers(1, 40),
    next_id=st.sampled_from([1, 2, 65_500, 65_534, 65_535]),
    plan=st.lists(steps, max_size=40),
    chance=st.randoms(use_true_random=False),
)
def test_a_window_is_a_list_of_what_is_under_way(twin: Twin, limit, next_id, plan, chance):
    pair = Pair(twin, limit, next_id)
    for name, *arguments in plan:
        known = list(pair.plain)
        if name == "send":
            pair.send(*arguments)
        elif name == "ack":
            kind, count, reason = arguments
            others = [chance.randint(1, IDS) for _ in range(2)]
            pair.ack(kind, [chance.choice(known + others) for _ in range(count)], reason)
        elif name == "finish":
            done = [one for one in known if chance.randrange(100) >= arguments[0] // 2]
            chance.shuffle(done)
            for kind in (PUBACK, PUBREC, PUBCOMP):
                pair.ack(kind, [one for one in done if kind != PUBREC or pair.plain.get(one, (1, 0))[0] != 1])
        elif name == "limit":
            pair.limit = pair.window.limit = arguments[0]
        elif name == "restore":
            again = twin.Window(pair.limit)
            again.restore(pair.window.pending(), pair.window.next_id)
            pair.window = again
            pair.tags, pair.finished = {}, {}
            pair.check()
        elif name == "untag" and known:
            one = known[arguments[0] % len(known)]
            pair.window.untag(one)
            pair.tags.pop(one, None)
            pair.check()
        elif name == "take back":
            one, tag = arguments
            if one not in pair.plain and len(pair.plain) < pair.limit:
                pair.window.take_back(one, 1, 77, tag)
                parked = dict(pair.window.parked)
                pair.plain = {**parked, **{key: value for key, value in pair.plain.items() if key not in parked}}
                pair.tags[one] = tag
                pair.check()
        elif name == "forget" and known:
            one = known[arguments[0] % len(known)]
            pair.window.forget(one)
            del pair.plain[one]
            pair.check()


@pytest.mark.parametrize("twin", TWINS, ids=str)
@given(st.sets(st.integers(1, 60), max_size=40), st.integers(1, 60), st.integers(41, 80))
def test_ids_that_were_under_way_before_are_passed_over(twin: Twin, before, next_id, limit):
    pair = Pair(twin, limit, next_id)
    pending = [(one, 1 + one % 3, 1000 + one) for one in sorted(before)]
    pair.window.restore(pending, next_id)
    pair.plain = {one: (state, position) for one, state, position in pending}
    pair.check()
    for _ in range(4):
        pair.send(64, 2, 0)
        for kind in (PUBACK, PUBREC, PUBCOMP):
            pair.ack(kind, [one for one in list(pair.plain) if one not in before])


@needs_compiled
@pytest.mark.parametrize("limit", [3, 100, 40_000, 65_535])
def test_stuck_messages_do_not_stop_a_window_in_many_rounds(limit):
    twin = TWINS[0]
    chance = random.Random(limit)
    window, writer = twin.Window(limit), twin.PublishWriter(4)
    records = batch_of([Publish("t", b"", 1, packet_id=1)] * 5000, twin)
    under_way: dict[int, None] = {}
    stuck: set[int] = set()
    sent = 0
    while sent < 300_000:
        room = window.room()
        assert (room > 0) == (len(under_way) < limit)
        first = window.next_id
        writer.write(records, None, 0, min(5000, room), 1, first, 0, False, room)
        window.sent(writer, records, None, 0, 0)
        ids = [(first - 1 + k) % IDS + 1 for k in range(writer.ids_used)]
        assert not under_way.keys() & set(ids)
        under_way.update(dict.fromkeys(ids))
        sent += len(ids)
        if len(stuck) < min(limit - 1, 5000) and ids and chance.random() < 0.2:
            stuck.update(chance.sample(ids, min(len(ids), 3)))
            while len(stuck) >= limit:
                stuck.pop()
        done = [one for one in under_way if one not in stuck]
        chance.shuffle(done)
        done = done[: chance.randrange(1, len(done) + 1)]
        window.acked(twin.AckRun(PUBACK, b"".join(one.to_bytes(2, "little") for one in done), bytes(len(done))))
        for one in done:
            del under_way[one]
        assert window.inflight == len(under_way)
        assert window.span <= max(2 * limit, 32)
    assert [one for one, _, _ in window.pending()] == list(under_way)
