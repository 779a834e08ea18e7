"""Shared groups: how rows are dealt out."""

import pytest
from tests.twins import batch_of

from everlog.base import NOT_KEPT
from everlog.broker.groups.shared_group import SharedGroup
from everlog.mqtt import Publish
from everlog.sessions import Session, Subscribed


class Stage:
    """A group, and what it has pushed to whom."""

    def __init__(self, *sessions):
        self.group = SharedGroup("g", "t", lambda out, shard, now_us: self.pushed.append((out.merged.session, out)))
        for session in sessions:
            session.set_ready(True)
            self.group.join(session, Subscribed("$share/g/t", 1))

    def split(self, start, stop):
        self.pushed = []
        records = batch_of([Publish("t", b"")] * stop)
        self.group.take(records, None, start, stop, NOT_KEPT, 0)
        return self.pushed

    def receivers(self, start, stop):
        return [session for session, _ in self.split(start, stop)]


def test_nobody_gets_the_messages_of_an_empty_group():
    assert Stage().split(0, 5) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_every_row_goes_to_one_member(members, count):
    sessions = [Session(str(number)) for number in range(members)]
    dealt = Stage(*sessions).split(10, 10 + count)
    assert [row for _, out in dealt for row in out.row_numbers()] == list(range(10, 10 + count))
    if count >= 3 * members:
        assert {session for session, _ in dealt} == set(sessions)


def test_single_messages_go_round():
    a, b = Session("a"), Session("b")
    stage = Stage(a, b)
    got = [session for number in range(6) for session in stage.receivers(number, number + 1)]
    assert got.count(a) == got.count(b) == 3


def test_members_with_room_come_first():
    a, b = Session("a"), Session("b")
    stage = Stage(a, b)
    a.set_ready(False)
    assert set(stage.receivers(0, 10)) == {b}
    b.read_on(0, 5)
    assert set(stage.receivers(0, 10)) == {a, b}


def test_a_member_that_leaves_is_dealt_nothing():
    a, b = Session("a"), Session("b")
    stage = Stage(a, b)
    assert not stage.group.leave(a)
    assert not stage.group.leave(a)
    assert set(stage.receivers(0, 10)) == {b}
    assert stage.group.leave(b)
    assert len(stage.group) == 0


def test_a_member_may_change_its_options():
    a = Session("a")
    group = Stage(a).group
    group.join(a, Subscribed("$share/g/t", 2, identifier=5))
    assert len(group) == 1
    merged = group.merged(a)
    assert (merged.qos, merged.identifiers, merged.group) == (2, b"\x0b\x05", ("g", "t"))
