"""Who gets a topic's messages."""

import sys

import pytest
from tests.parts import make_audiences
from tests.twins import batch_of

from everlog.base import TopicTable
from everlog.broker.delivery.overlaps import combine
from everlog.broker.groups.shared_group import SharedGroup
from everlog.mqtt import TELL_PLACE, Publish
from everlog.sessions import Session, Subscribed
from everlog.topics import parse_filter


class Stage:
    def __init__(self, max_topics=100, known_topics=100, max_bytes=1 << 20):
        self.table = TopicTable(0, known_topics)
        self.groups = {}
        self.audiences = make_audiences(self.table, self, max_topics, max_bytes)

    def target(self, name, pattern):
        return self.groups[name, pattern]

    def subscribe(self, session, text, **options):
        options.setdefault("qos", 1)
        flt, one = parse_filter(text), Subscribed(text, **options)
        if flt.group is not None:
            key = flt.group, flt.pattern
            if key not in self.groups:
                self.groups[key] = SharedGroup(*key, lambda *rows: None)
            self.groups[key].join(session, one)
        self.audiences.subscribe(session, flt, one)

    def unsubscribe(self, session, text):
        flt = parse_filter(text)
        if flt.group is not None and self.groups[flt.group, flt.pattern].leave(session):
            del self.groups[flt.group, flt.pattern]
        return self.audiences.unsubscribe(session, flt)

    def number(self, topic):
        records = batch_of([Publish(topic, b"")])
        (parts,) = self.audiences.split(records, 0)
        return parts[0][0] if parts else 0

    def audience(self, topic):
        number = self.number(topic)
        return self.audiences.by_number[number]

    def sessions(self, topic):
        return {merged.session for merged in self.audience(topic).subscriptions}


def test_topics_with_the_same_subscribers_share_an_audience():
    stage = Stage()
    a, b = Session("a"), Session("b")
    stage.subscribe(a, "t/#")
    stage.subscribe(b, "t/1")
    assert stage.number("t/2") == stage.number("t/3") != stage.number("t/1")
    assert stage.number("nobody") == 0
    assert stage.sessions("t/1") == {a, b}


def test_a_change_is_seen_by_the_topics_that_it_matches_and_no_others():
    stage = Stage()
    a, b = Session("a"), Session("b")
    stage.subscribe(a, "#")
    before = stage.number("x"), stage.number("t/1")
    stage.subscribe(b, "t/+")
    assert stage.number("x") == before[0]
    assert stage.sessions("t/1") == {a, b}
    assert stage.unsubscribe(b, "t/+")
    assert not stage.unsubscribe(b, "t/+")
    assert stage.number("t/1") == before[1]


def test_a_group_that_was_empty_for_a_while_is_another_group():
    stage = Stage()
    for _ in range(3):
        session = Session("a")
        stage.subscribe(session, "$share/g/t")
        assert stage.audience("t").subscriptions == ()
        (group,) = stage.audience("t").targets
        assert list(group.members) == [session]
        stage.unsubscribe(session, "$share/g/t")
        assert stage.number("t") == 0


def test_overlapping_subscriptions_are_merged_to_one():
    found = combine(
        [
            Subscribed("a", 0, identifier=300),
            Subscribed("+", 2, identifier=1, retain_as_published=True),
            Subscribed("#", 1, identifier=1, no_local=True),
        ]
    )
    assert found == (2, b"\x0b\x01\x0b\xac\x02", True, True, (), False, (), ())


def test_subscriptions_that_begin_at_different_places_are_kept_apart_below_the_last():
    early, late = Subscribed("a", 0, since=(5, 20)), Subscribed("#", 2, since=(10, 10), tells=TELL_PLACE)
    assert combine([early, late]) == (2, b"", False, False, (5, 10), True, (10, 20), (early, late))
    assert combine([late, late])[4:] == ((10, 10), True, (10, 10), ())
    always = Subscribed("+", 1)
    assert combine([always, late])[4:] == ((), True, (10, 10), (always, late))


def test_own_messages_go_by_the_subscriptions_without_no_local():
    stage = Stage()
    session = Session("a")
    stage.subscribe(session, "a/#", qos=2, no_local=True, identifier=1)
    (hidden,) = stage.audience("a/c").subscriptions
    assert (hidden.no_local, hidden.own) == (True, None)
    stage.subscribe(session, "a/b", qos=0)
    (mixed,) = stage.audience("a/b").subscriptions
    assert (mixed.qos, mixed.identifiers, mixed.no_local) == (2, b"\x0b\x01", True)
    assert (mixed.own.qos, mixed.own.identifiers) == (0, b"")
    stage.subscribe(session, "a/b", qos=1)
    (mixed,) = stage.audience("a/b").subscriptions
    assert mixed.own.qos == 1


def test_a_session_gets_a_message_by_itself_or_in_a_group():
    stage = Stage()
    a, b, c = Session("a"), Session("b"), Session("c")
    stage.subscribe(a, "t")
    stage.subscribe(b, "$share/g/t", qos=2)
    records = batch_of([Publish("t", b"")])
    assert stage.audiences.merged_of(records, 0, a).qos == 1
    assert stage.audiences.merged_of(records, 0, b).qos == 2
    assert stage.audiences.merged_of(records, 0, c) is None
    assert stage.audiences.merged(stage.number("t"), b) is None


def test_sessions_that_left_are_let_go_of():
    stage = Stage()
    stays = Session("stays")
    stage.subscribe(stays, "#")
    stage.number("t")
    before = stage.audiences.size_bytes
    for number in range(100):
        session = Session(str(number))
        stage.subscribe(session, "t")
        assert stage.sessions("t") == {stays, session}
        stage.unsubscribe(session, "t")
        stage.audiences.detach(session)
        assert sys.getrefcount(session) == 2
    stage.number("t")
    assert stage.audiences.size_bytes == before
    assert len(stage.audiences.by_number) <= 3


def test_audiences_of_the_same_subscribers_share_them():
    stage = Stage(max_topics=1000, known_topics=1000)
    everything = [Session(f"all{number}") for number in range(100)]
    for session in everything:
        stage.subscribe(session, "#")
    for number in range(100):
        stage.subscribe(Session(str(number)), f"t/{number}")
        stage.number(f"t/{number}")
    merged = {id(merged) for one in stage.audiences.by_number for merged in one.subscriptions}
    assert len(merged) == 200
    assert stage.audiences.size_bytes < 100 * 100 * 12 + 200 * 1000


def test_audiences_that_take_too_much_are_made_anew():
    stage = Stage(max_bytes=8000)
    sessions = [Session(str(number)) for number in range(30)]
    for number, session in enumerate(sessions):
        stage.subscribe(session, f"t/{number}")
        assert stage.sessions(f"t/{number}") == {session}
        assert stage.audiences.size_bytes < 9000
    assert stage.audiences.resets > 0
    assert stage.sessions("t/3") == {sessions[3]}


@pytest.mark.parametrize("known_topics", [1, 1000])
def test_a_batch_whose_audiences_take_too_much_is_split_in_stretches(known_topics):
    stage = Stage(max_topics=1000, known_topics=known_topics, max_bytes=20_000)
    for number in range(50):
        stage.subscribe(Session(f"all{number}"), "#")
    for number in range(100):
        stage.subscribe(Session(str(number)), f"t/{number}")
    topics = [f"t/{number * 37 % 100}" for number in range(200)]
    records = batch_of([Publish(topic, b"") for topic in topics])
    rows_of = {}
    before = -1
    stretches = 0
    for parts in stage.audiences.split(records, 0):
        stretches += 1
        assert stage.audiences.size_bytes < 40_000
        rows = []
        for number, column, start, stop in parts:
            for row in range(start, stop) if column is None else memoryview(column).cast("I")[start:stop]:
                rows.append(row)
                for merged in stage.audiences.by_number[number].subscriptions:
                    rows_of.setdefault(merged.session.client_id, []).append(row)
        assert min(rows) == before + 1  # one stretch after the other, none missing
        before = max(rows)
    assert stretches > 1
    assert before == 199
    assert sorted(rows_of["all7"]) == list(range(200))
    assert rows_of["37"] == [row for row, topic in enumerate(topics) if topic == "t/37"]


def test_a_table_that_begins_anew_is_followed():
    stage = Stage()
    session = Session("a")
    stage.subscribe(session, "b")
    assert stage.sessions("a") == set()
    stage.table.reset()
    assert stage.sessions("b") == {session}


def test_a_topic_without_an_id_has_an_audience_too():
    stage = Stage(known_topics=1)
    session = Session("a")
    stage.subscribe(session, "t/+")
    known = stage.number("t/y")
    records = batch_of([Publish(topic, b"") for topic in ("other", "t/x", "t/y", "other", "t/x")])
    (((number, rows, start, stop),),) = stage.audiences.split(records, 0)
    assert stage.table.lookup(b"t/x") < 0
    assert (number, list(memoryview(rows).cast("I")[start:stop])) == (known, [1, 2, 4])
    (((number, rows, start, stop),),) = stage.audiences.split(records, 2, 4)
    assert (number, list(memoryview(rows).cast("I")[start:stop])) == (known, [2])
    assert stage.audiences.merged_of(records, 1, session) is None
