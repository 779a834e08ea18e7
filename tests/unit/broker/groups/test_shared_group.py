"""Shared groups: how rows are dealt out."""

import pytest

from everlog.broker.groups.shared_group import Group
from everlog.sessions import Session, Subscribed


def group_of(*sessions):
    group = Group("g", "t")
    for session in sessions:
        session.ready = True
        group.join(session, Subscribed("$share/g/t", 1))
    return group


def test_nobody_gets_the_messages_of_an_empty_group():
    assert group_of().split(0, 5) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_every_row_goes_to_one_member(members, count):
    sessions = [Session(str(number)) for number in range(members)]
    dealt = group_of(*sessions).split(10, 10 + count)
    assert [row for _, start, stop in dealt for row in range(start, stop)] == list(range(10, 10 + count))
    if count >= 3 * members:
        assert {delivery.session for delivery, _, _ in dealt} == set(sessions)


def test_single_messages_go_round():
    a, b = Session("a"), Session("b")
    group = group_of(a, b)
    got = [delivery.session for number in range(6) for delivery, _, _ in group.split(number, number + 1)]
    assert got.count(a) == got.count(b) == 3


def test_members_with_room_come_first():
    a, b = Session("a"), Session("b")
    group = group_of(a, b)
    a.ready = False
    assert {delivery.session for delivery, _, _ in group.split(0, 10)} == {b}
    b.lag[0] = 5
    assert {delivery.session for delivery, _, _ in group.split(0, 10)} == {a, b}


def test_a_member_that_leaves_is_dealt_nothing():
    a, b = Session("a"), Session("b")
    group = group_of(a, b)
    assert not group.leave(a)
    assert not group.leave(a)
    assert {delivery.session for delivery, _, _ in group.split(0, 10)} == {b}
    assert group.leave(b)
    assert len(group) == 0


def test_a_member_may_change_its_options():
    a = Session("a")
    group = group_of(a)
    group.join(a, Subscribed("$share/g/t", 2, identifier=5))
    assert len(group) == 1
    assert (group.delivery(a).qos, group.delivery(a).identifiers, group.delivery(a).group) == (2, b"\x0b\x05", group)
