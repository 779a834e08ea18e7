"""What filters and wills of sessions count for, awake, asleep and stored."""

from everlog.mqtt import Properties, Will, pack_pairs, unpack_pairs
from everlog.sessions import (
    Session,
    SessionMemory,
    Subscribed,
    Terms,
    pack_session,
    restored,
    stored,
    stored_bytes,
    unpack_session,
)

WILL = pack_pairs(Will("w", bytes(5000), properties=Properties(user_properties=(("a", "b"),) * 100)))


def test_a_session_counts_the_same_when_it_is_stored_and_restored():
    session = Session("c")
    session.connected(Terms(version=5, expiry_s=100, will=WILL))
    for text in ("a", "b/+/#", "$share/g/c", "ü" * 100):
        session.subscribe(Subscribed(text, 1))
    found = stored(session, [])
    assert session.held_bytes == session.take_growth() == stored_bytes(found) > 7000
    again = restored(unpack_session(pack_session(found)), 99)
    assert (again.held_bytes, again.take_growth()) == (session.held_bytes, 0)
    assert again.will == WILL


def test_what_is_given_up_counts_no_more():
    session = Session("c")
    session.connected(Terms(version=5, will=WILL))
    empty = Session("d").held_bytes
    session.subscribe(Subscribed("a/+", 1))
    session.subscribe(Subscribed("a/+", 2))
    session.take_growth()
    session.take_will()
    session.unsubscribe("a/+")
    session.unsubscribe("a/+")
    assert session.held_bytes == empty
    assert session.take_growth() < -5000


def test_the_last_eighth_is_for_those_who_have_little():
    memory = SessionMemory(8 << 20)
    memory.total_bytes = (7 << 20) - 1000
    assert memory.has_room(1 << 20, 1000)
    assert not memory.has_room(1 << 20, 1001)
    assert memory.has_room(1000, 1001)
    memory.total_bytes = 8 << 20
    assert not memory.has_room(0, 1)


def test_user_properties_of_a_will_are_held_as_bytes_and_come_back_as_they_were():
    pairs = (("a", "1"), ("a", "2"), ("ü", ""))
    will = Will("t", b"x", 1, True, Properties(user_properties=pairs, will_delay_interval=5))
    packed = pack_pairs(will)
    assert packed.properties == Properties(will_delay_interval=5)
    assert unpack_pairs(packed) == will
    plain = Will("t", b"x")
    assert pack_pairs(plain) is unpack_pairs(plain) is plain
