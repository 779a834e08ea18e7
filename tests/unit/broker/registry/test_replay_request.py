"""Replay: what a SUBSCRIBE asks of history, what the session gets, and that nothing else changes."""

import pytest
from tests.memory_log import SteppingLog
from tests.parts import numbers
from tests.replays import KEEP, KEEP_ALL, filled, replay
from tests.stages import Stage

from everlog.base import PeerError
from everlog.broker import Security
from everlog.broker.registry.replay_request import filter_of, first_begins, split_filter, wishes_of
from everlog.mqtt import Properties, Publish, Reason, Suback, Subscribe, Subscription
from everlog.sessions import Session, Subscribed
from everlog.store import say_unkept


@pytest.fixture
def made():
    stages = []

    def make(log=None, **settings):
        stages.append(Stage(log or SteppingLog(), keep=KEEP_ALL, **settings))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def session_of(stage, client_id):
    return stage.inside.sessions[client_id]


# The pure parts


def test_a_replay_filter_has_two_parts():
    assert split_filter("a/b") == (None, "a/b")
    assert split_filter("$replay/-1h/a/+/#") == ("-1h", "a/+/#")
    assert split_filter("$replay/earliest//x") == ("earliest", "/x")
    assert filter_of("$replay/0:7/a/b") == filter_of("a/b") == "a/b"
    for text in ("$replay/", "$replay/-1h", "$replay/-1h/", "$replay//a"):
        with pytest.raises(PeerError) as refused:
            split_filter(text)
        assert refused.value.reason is Reason.TOPIC_FILTER_INVALID
        assert filter_of(text) == text


def test_wishes_are_user_properties():
    def wishes(*pairs):
        found = wishes_of(Properties(user_properties=pairs))
        return found.begin, found.tells, found.live

    assert wishes() == (None, False, False)
    assert wishes(("everlog-from", "-1h"), ("other", "x")) == ("-1h", False, False)
    assert wishes(("everlog-position", "yes"), ("everlog-live", "no")) == (None, True, False)
    assert wishes(("everlog-live", "true")) == (None, False, True)
    assert wishes(("everlog-from", "-1h"), ("everlog-from", "-2h"))[0] == "-1h, -2h"  # which is no beginning


def test_other_subscriptions_begin_where_the_session_was():
    before = {
        "live": (10, 10, 10),
        "later": (200, 60, 0),
        "old": (),
        "$share/g/x": (0, 0, 0),
        "again": (0, 0, 0),
    }
    subscriptions = {text: Subscribed(text, 1, since=since) for text, since in before.items()}
    session = Session("c", lag={1: 50}, subscriptions=subscriptions)
    here = session.ahead_of((20, 30, 300), (100, 100, 100))
    assert here == {0: 100, 1: 50}
    changed = [session.begin_later(text, here, 3) for text in before if text != "again"]
    session.rewind({0: 20, 1: 30})
    assert session.lag == {0: 20, 1: 30}
    moved = {"live": (100, 50, 10), "old": (100, 50, 0)}
    assert {one.filter: one.since for one in changed if one is not None} == moved
    assert {text: one.since for text, one in session.subscriptions.items()} == {**before, **moved}


def test_going_forward_changes_nobody():
    session = Session("c", lag={0: 10}, subscriptions={"a": Subscribed("a", 1, since=(5,))})
    assert session.ahead_of((15,), (100,)) == {}
    assert session.ahead_of((10,), (100,)) == {}


# From each kind of beginning


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("begin", "first"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("0:4", 4),
        ("0:0", 0),
        ("0:10", 10),
        ("0:4000", 10),
        ("-3m", 7),
        ("-150s", 8),
        ("-7d", 0),
        ("2023-11-14T22:16:20Z", 3),
        ("2023-11-14T22:16:20.000001Z", 4),
        ("2099-01-01T00:00:00Z", 10),
    ],
)
def test_a_replay_begins_where_it_is_asked_to(made, version, begin, first):
    stage = made()
    filled(stage)
    client = stage.connected("c", version)
    if version == 5:
        assert replay(client, begin, "t").reasons == (Reason.GRANTED_QOS_1,)
    else:
        assert client.subscribe(f"$replay/{begin}/t", qos=1) == (Reason.GRANTED_QOS_1,)
    filled(stage, 2, first=10)
    assert client.payloads(12 - first) == numbers(first, 12)
    client.expect_nothing()


def test_shards_that_a_position_does_not_name_begin_at_their_earliest(made):
    stage = made(SteppingLog(2))
    filled(stage, 5, "a")  # shard 1
    filled(stage, 5, "bb", first=5)  # shard 0
    client = stage.connected("c")
    assert replay(client, "0:3", "#").properties.user_properties == (
        ("everlog-begin", "0:3,1:0"),
        ("everlog-end", "0:5,1:5"),
    )
    assert sorted(client.payloads(7), key=int) == [*numbers(5), "8", "9"]
    client.expect_nothing()


def test_one_property_is_for_every_filter_and_a_filters_own_beginning_is_stronger(made):
    stage = made(SteppingLog())
    filled(stage, 3, "a")
    filled(stage, 3, "b", first=3)
    filled(stage, 3, "c", first=6)
    client = stage.connected("c")
    said = replay(client, "0:5", "a", "$replay/0:1/b", "c")
    assert said.properties.user_properties[:3] == (
        ("everlog-begin", "0:5"),
        ("everlog-begin", "0:1"),
        ("everlog-begin", "0:5"),
    )
    assert client.payloads(6) == ["3", "4", "5", "6", "7", "8"]
    client.expect_nothing()


@pytest.mark.parametrize(
    "begin", ["yesterday", "", "9:0", "-1h, -2h", "2026-13-01T00:00:00Z", "0:1,0:2", "+1h", "earliest "]
)
def test_what_is_no_beginning_is_refused_in_words(made, begin):
    stage = made()
    filled(stage, 2)
    client = stage.connected("c")
    said = replay(client, begin, "t")
    assert said.reasons == (Reason.TOPIC_FILTER_INVALID,)
    assert said.properties.reason_string
    assert said.properties.user_properties == ()
    assert session_of(stage, "c").subscriptions == {}
    old = stage.connected("old", 4)
    if "/" not in begin and begin:
        assert old.subscribe(f"$replay/{begin}/t") == (Reason.UNSPECIFIED_ERROR,)
    old.expect_nothing()


@pytest.mark.parametrize("text", ["$replay/", "$replay/-1h", "$replay/-1h/", "$replay//t", "$replay/-1h/a#"])
def test_what_is_no_replay_filter_is_refused(made, text):
    stage = made()
    client = stage.connected("c")
    assert client.subscribe(text) == (Reason.TOPIC_FILTER_INVALID,)
    assert client.unsubscribe(text) == (Reason.NO_SUBSCRIPTION_EXISTED,)


def test_a_client_that_wants_no_problem_information_is_told_the_reason_alone(made):
    stage = made()
    filled(stage, 2)
    client = stage.connected("c", request_problem_information=0)
    assert replay(client, "yesterday", "t").properties == Properties()
    assert replay(client, "earliest", "t").properties == Properties()
    assert client.payloads(2) == numbers(2)


@pytest.mark.parametrize("by_filter", [False, True])
def test_a_shared_group_may_begin_in_the_past(made, by_filter):
    stage = made()
    filled(stage, 3, "t")
    client = stage.connected("c")
    if by_filter:
        assert client.subscribe("$replay/earliest/$share/g/t", qos=1) == (Reason.GRANTED_QOS_1,)
    else:
        assert replay(client, "earliest", "$share/g/t").reasons == (Reason.GRANTED_QOS_1,)
    assert client.payloads(3) == numbers(3)
    client.expect_nothing()


# The subscription


def test_a_replay_is_a_subscription_to_its_filter(made):
    stage = made()
    filled(stage, 3, "a/b")
    client = stage.connected("c")
    client.subscribe("$replay/earliest/a/+", qos=1)
    assert list(session_of(stage, "c").subscriptions) == ["a/+"]
    assert [client.message().topic for _ in range(3)] == ["a/b"] * 3
    assert client.unsubscribe("$replay/0:77/a/+") == (Reason.SUCCESS,)
    assert client.unsubscribe("a/+") == (Reason.NO_SUBSCRIPTION_EXISTED,)
    client.subscribe("$replay/earliest/a/+", qos=1)
    assert client.payloads(3) == numbers(3)
    assert client.unsubscribe("a/+") == (Reason.SUCCESS,)
    filled(stage, 1, "a/b")
    client.expect_nothing()


def test_a_second_replay_begins_anew(made):
    stage = made()
    filled(stage, 4)
    client = stage.connected("c")
    replay(client, "earliest", "t")
    assert client.payloads(4) == numbers(4)
    replay(client, "0:2", "t")
    assert client.payloads(2) == ["2", "3"]
    replay(client, "latest", "t")
    filled(stage, 1, first=4)
    assert client.payloads(1) == ["4"]
    client.expect_nothing()


def test_a_subscription_that_exists_goes_on_where_it_is_without_a_beginning(made):
    stage = made()
    filled(stage, 4)
    client = stage.connected("c")
    replay(client, "earliest", "t")
    assert client.payloads(4) == numbers(4)
    client.subscribe("t", qos=1)
    client.expect_nothing()


def test_a_replay_brings_no_retained_messages(made):
    stage = made()
    publisher = stage.connected("p")
    publisher.publish("t", "kept", 1, retain=True)
    client = stage.connected("c")
    replay(client, "earliest", Subscription("t", 1, retain_as_published=True))
    found = client.message()
    assert (found.payload, found.retain) == (b"kept", True)
    client.expect_nothing()


def test_expired_messages_are_not_replayed(made):
    stage = made()
    publisher = stage.connected("p")
    publisher.publish("t", "short", 1, message_expiry_interval=10)
    publisher.publish("t", "long", 1, message_expiry_interval=1000)
    stage.now_us += 60_000_000
    client = stage.connected("c")
    replay(client, "earliest", "t")
    found = client.message()
    assert (found.payload, found.properties.message_expiry_interval) == (b"long", 940)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_history_comes_at_the_lower_of_both_qos(made, qos):
    stage = made()
    publisher = stage.connected("p")
    for each in (0, 1, 2):
        publisher.publish("t", str(each), each)
    client = stage.connected("c")
    replay(client, "earliest", "t", qos=qos)
    assert [client.message().qos for _ in range(3)] == [min(qos, each) for each in (0, 1, 2)]


def test_what_is_in_no_log_is_pushed_meanwhile():
    stage = Stage(SteppingLog(), keep=[("kept", 0)])
    try:
        filled(stage, 3, "kept")
        client = stage.connected("c", receive_maximum=1)
        replay(client, "earliest", "kept", "free", qos=1)
        first = client.expect(Publish)
        assert first.payload == b"0"
        publisher = stage.connected("p")
        publisher.publish("free", "now", 0)
        assert client.expect(Publish).payload == b"now"
        client.acknowledge(first)
        assert client.payloads(2) == ["1", "2"]
    finally:
        stage.close()


@pytest.mark.parametrize(
    ("keep", "never", "text", "is_kept"),
    [
        ([("#", 0)], ["response/#"], "#", True),
        ([("#", 0)], ["response/#"], "response/c/1", False),
        ([("#", 0)], ["response/c/+"], "response/#", True),
        ([("a/#", 0)], [], "+/b", True),
        ([("a/#", 0)], [], "b/#", False),
        ([("a/b", 0)], ["a/#"], "+/b", False),
        ([], [], "#", False),
    ],
)
def test_a_replay_of_what_no_setting_keeps_is_told_so(keep, never, text, is_kept):
    stage = Stage(SteppingLog(), keep=keep, never=never)
    try:
        for begin, given in (("earliest", f"$replay/-1h/{text}"), (None, text)):
            client = stage.connected()
            properties = Properties(user_properties=(("everlog-from", "earliest"),)) if begin is None else Properties()
            client.send(Subscribe(1, (Subscription(given, 1),), properties))
            answer = client.expect(Suback)
            assert answer.reasons == (Reason.GRANTED_QOS_1,)
            assert answer.properties.reason_string == (None if is_kept else say_unkept(text))
        client.subscribe(text)  # no replay: nothing to say
    finally:
        stage.close()


# Other subscriptions of the session


def test_an_overlapping_subscription_gets_nothing_twice_and_has_no_part_in_history(made):
    stage = made()
    client = stage.connected("c")
    client.subscribe("#", qos=2, identifier=1)
    filled(stage, 3, "a")
    filled(stage, 2, "b", first=3)
    assert client.payloads(5) == numbers(5)
    replay(client, "earliest", "a", qos=0, identifier=2)
    history = [client.message() for _ in range(3)]
    assert [(one.payload, one.qos) for one in history] == [(b"0", 0), (b"1", 0), (b"2", 0)]
    assert {one.properties.subscription_identifiers for one in history} == {(2,)}
    client.expect_nothing()
    filled(stage, 1, "a", first=5)
    new = client.message()
    assert (new.payload, new.qos, new.properties.subscription_identifiers) == (b"5", 1, (1, 2))
    filled(stage, 1, "b", first=6)
    assert client.message().properties.subscription_identifiers == (1,)


def test_a_session_that_is_behind_keeps_what_it_is_owed_when_it_goes_back(made):
    stage = made()
    client = stage.connected("c", receive_maximum=2)
    client.subscribe("b", qos=1, identifier=1)
    filled(stage, 5, "b")
    filled(stage, 2, "a", first=5)
    under_way = [client.expect(Publish), client.expect(Publish)]
    replay(client, "earliest", "a", "b", identifier=2)
    for one in under_way:
        client.acknowledge(one)
    found = [client.message() for _ in range(7)]
    assert [one.payload.decode() for one in found] == numbers(7)  # `b` began anew, so it gets 0 and 1 again
    client.expect_nothing()


def test_what_is_owed_to_another_filter_is_delivered_once(made):
    stage = made()
    client = stage.connected("c", receive_maximum=2)
    client.subscribe("b", qos=1, identifier=1)
    filled(stage, 2, "a")
    filled(stage, 5, "b", first=2)
    under_way = [client.expect(Publish), client.expect(Publish)]
    replay(client, "earliest", "a", identifier=2)
    for one in under_way:
        client.acknowledge(one)
    found = [client.message() for _ in range(5)]
    assert [(one.payload, one.properties.subscription_identifiers) for one in found] == [
        (b"0", (2,)),
        (b"1", (2,)),
        (b"4", (1,)),
        (b"5", (1,)),
        (b"6", (1,)),
    ]
    client.expect_nothing()


def test_a_filter_that_joins_a_session_that_is_behind_is_read_from_where_it_begins(made):
    stage = made()
    client = stage.connected("c", receive_maximum=1)
    client.subscribe("b", qos=1, identifier=1)
    filled(stage, 3, "a")
    filled(stage, 5, "b", first=3)
    assert client.payloads(1) == ["3"]
    under_way = client.expect(Publish)
    replay(client, "0:1", "a", identifier=2)
    assert under_way.payload == b"4"
    client.acknowledge(under_way)
    assert client.payloads(5) == ["1", "2", "5", "6", "7"]
    client.expect_nothing()


def test_a_filter_that_is_given_up_while_the_session_is_behind_is_read_no_more(made):
    stage = made()
    filled(stage, 5, "a")
    filled(stage, 2, "b", first=5)
    client = stage.connected("c", receive_maximum=1)
    replay(client, "earliest", "a", "b")
    assert client.payloads(1) == ["0"]
    under_way = client.expect(Publish)
    client.unsubscribe("a")
    client.acknowledge(under_way)
    assert client.payloads(2) == ["5", "6"]
    client.expect_nothing()


def test_another_sessions_subscription_is_not_touched(made):
    stage = made()
    other = stage.connected("other")
    other.subscribe("t", qos=1)
    filled(stage, 3)
    assert other.payloads(3) == numbers(3)
    client = stage.connected("c")
    replay(client, "earliest", "t")
    assert client.payloads(3) == numbers(3)
    other.expect_nothing()


def test_no_local_leaves_out_what_the_session_published_after_it_subscribed(made):
    stage = made()
    client = stage.connected("c")
    client.publish("t", "before", 1)
    replay(client, "earliest", Subscription("t", 1, no_local=True))
    assert client.payloads(1) == ["before"]
    client.publish("t", "own", 1)
    client.expect_nothing()


# Durable sessions


def test_a_durable_replay_goes_on_after_a_reconnect(made):
    stage = made()
    filled(stage, 10)
    client = stage.connected("c", **KEEP, receive_maximum=3)
    replay(client, "0:2", "t")
    assert [client.expect(Publish).payload for _ in range(3)] == [b"2", b"3", b"4"]
    client.close()
    stage.offline("c")
    filled(stage, 2, first=10)
    client = stage.connected("c", **KEEP)
    again = [client.message() for _ in range(3)]
    assert [(one.payload, one.dup) for one in again] == [(b"2", True), (b"3", True), (b"4", True)]
    assert client.payloads(7) == numbers(5, 12)
    client.expect_nothing()


def test_a_durable_session_that_replays_is_still_behind_when_it_is_away(made):
    stage = made()
    filled(stage, 10)
    client = stage.connected("c", **KEEP, receive_maximum=1)
    replay(client, "earliest", "t", qos=1)
    client.message()
    client.close()
    stage.offline("c")
    session = stage.call(lambda: stage.inside.wake("c"))
    assert session.lag[0] in (1, 2)
    assert session.subscriptions["t"].since == (0,)


# What is gone


def test_a_position_that_retention_has_passed_begins_at_the_earliest_and_says_so(made):
    log = SteppingLog()
    stage = made(log)
    filled(stage, 10)
    stage.call(lambda: log.shards[0].drop(4))
    client = stage.connected("c")
    said = replay(client, "0:1", "t")
    assert said.reasons == (Reason.GRANTED_QOS_1,)
    assert said.properties.reason_string == "no longer kept: 0:1 to 0:3"
    assert said.properties.user_properties == (("everlog-begin", "0:4"), ("everlog-end", "0:10"))
    assert client.payloads(6) == numbers(4, 10)
    assert session_of(stage, "c").counters.lost == 3
    assert stage.inside.lost == 3


@pytest.mark.parametrize("begin", ["earliest", "-7d"])
def test_who_asks_for_all_there_is_has_lost_nothing(made, begin):
    log = SteppingLog()
    stage = made(log)
    filled(stage, 10)
    stage.call(lambda: log.shards[0].drop(4))
    client = stage.connected("c")
    assert replay(client, begin, "t").properties.reason_string is None
    assert client.payloads(6) == numbers(4, 10)
    assert session_of(stage, "c").counters.lost == 0


def test_what_goes_while_it_is_replayed_is_counted(made):
    log = SteppingLog()
    stage = made(log)
    filled(stage, 10)
    client = stage.connected("c", receive_maximum=2)
    replay(client, "earliest", "t")
    under_way = [client.expect(Publish), client.expect(Publish)]
    stage.call(lambda: log.shards[0].drop(5))
    for one in under_way:
        client.acknowledge(one)
    assert client.payloads(5) == numbers(5, 10)
    assert session_of(stage, "c").counters.lost == 3


# Position, time and the end of history


def places(messages):
    return [dict(one.properties.user_properties).get("everlog-position") for one in messages]


def test_messages_carry_position_and_time_if_asked(made):
    stage = made(SteppingLog(2))
    filled(stage, 2, "a")
    filled(stage, 1, "bb", first=2)
    client = stage.connected("c")
    replay(client, "earliest", "#", position=True)
    found = sorted((client.message() for _ in range(3)), key=lambda one: one.payload)
    assert places(found) == ["1:0", "1:1", "0:0"]
    assert [dict(one.properties.user_properties)["everlog-time"] for one in found] == [
        "2023-11-14T22:13:20.000000Z",
        "2023-11-14T22:14:20.000000Z",
        "2023-11-14T22:15:20.000000Z",
    ]
    filled(stage, 1, "a", first=3)
    assert places([client.message()]) == ["1:2"]
    client.subscribe("#", qos=1)
    filled(stage, 1, "a", first=4)
    assert client.message().properties.user_properties == ()


def test_a_live_subscription_may_have_positions_too_and_what_is_in_no_log_a_time():
    stage = Stage(SteppingLog(), keep=[("kept", 0)])
    try:
        client, plain = stage.connected("c"), stage.connected("plain")
        replay(client, None, "#", qos=0, position=True)
        plain.subscribe("#")
        publisher = stage.connected("p")
        publisher.publish("kept", "x", 1)
        publisher.publish("free", "y", 1)
        kept, free = client.message(), client.message()
        assert places([kept, free]) == ["0:0", None]
        assert [key for key, _ in free.properties.user_properties] == ["everlog-time"]
        assert [plain.message().properties for _ in range(2)] == [Properties(), Properties()]
    finally:
        stage.close()


def test_a_retained_message_and_one_that_is_sent_again_carry_theirs(made):
    stage = made()
    publisher = stage.connected("p")
    publisher.publish("t", "x", 1, retain=True)
    client = stage.connected("c", **KEEP)
    replay(client, None, "t", position=True)
    retained = client.message()
    assert [key for key, _ in retained.properties.user_properties] == ["everlog-time"]
    publisher.publish("t", "y", 1)
    sent = client.expect(Publish)
    client.close()
    stage.offline("c")
    again = stage.connected("c", **KEEP).message()
    assert again.dup
    assert places([sent, again]) == ["0:1", "0:1"]


def test_a_session_that_asks_is_told_when_history_is_over(made):
    stage = made()
    filled(stage, 5)
    client = stage.connected("c", receive_maximum=2)
    replay(client, "earliest", "t", live=True)
    assert client.payloads(5) == numbers(5)
    marker = client.message()
    assert (marker.topic, marker.payload, marker.qos) == ("$replay/live", b"0:5", 0)
    filled(stage, 1, first=5)
    assert client.payloads(1) == ["5"]
    client.expect_nothing()
    replay(client, "latest", "t", live=True)
    assert client.message().topic == "$replay/live"  # at once
    replay(client, None, "u", live=True)
    client.expect_nothing()  # no history, no end of it


# Access control


def with_rules(made, tmp_path, *rules):
    path = tmp_path / "acl"
    path.write_text("\n".join(rules))
    stage = made(security=Security(acl_file=str(path)))
    publisher = stage.connected("publisher")
    for topic in ("a", "b", "secret"):
        assert publisher.publish(topic, topic, 1) is Reason.SUCCESS
    return stage


def test_who_may_read_may_replay_and_nobody_else(made, tmp_path):
    stage = with_rules(made, tmp_path, "client publisher write #", "everyone read a", "everyone read b")
    client = stage.connected("c")
    said = replay(client, "earliest", "a", "secret", "#")
    assert said.reasons == (Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED)
    assert client.payloads(1) == ["a"]
    old = stage.connected("old", 4)
    assert old.subscribe("$replay/earliest/secret", "$replay/earliest/b") == (
        Reason.UNSPECIFIED_ERROR,
        Reason.GRANTED_QOS_0,
    )
    assert old.payloads(1) == ["b"]


def test_history_can_be_denied_on_its_own(made, tmp_path):
    rules = ("client publisher write #", "everyone read #", "everyone deny replay secret/#")
    stage = with_rules(made, tmp_path, *rules)
    client = stage.connected("c")
    said = replay(client, "earliest", "secret", "#", "a")
    assert said.reasons == (Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED, Reason.GRANTED_QOS_1)
    assert said.properties.reason_string == "the history of the filter is not allowed"
    assert client.payloads(1) == ["a"]
    assert client.subscribe("secret", "#") == (Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_0)


def test_history_can_be_for_some_only(made, tmp_path):
    rules = ("client publisher write #", "everyone read #", "client auditor replay a/#")
    stage = with_rules(made, tmp_path, *rules)
    assert replay(stage.connected("c"), "earliest", "a").reasons == (Reason.NOT_AUTHORIZED,)
    said = replay(stage.connected("auditor"), "earliest", "a", "b")
    assert said.reasons == (Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED)


def test_a_subscribe_of_many_replays_in_many_turns_sends_each_message_once(made, monkeypatch) -> None:
    monkeypatch.setattr("everlog.broker.turns.TURN_S", 0.0)
    monkeypatch.setattr("everlog.broker.turns.SLICE_S", 0.0)
    stage = made()
    publisher, client = stage.connected("p"), stage.connected("c")
    client.subscribe("live", qos=1)
    for number in range(20):
        publisher.publish(f"t/{number}", str(number), 0)
    asked = tuple(Subscription(f"$replay/0:{number}/t/{number}", 1) for number in range(20))
    client.send(Subscribe(7, asked))
    for number in range(20, 40):  # while the SUBSCRIBE is worked off
        publisher.publish(f"t/{number % 20}", str(number), 0)
        publisher.publish("live", f"live {number}", 0)
    stage.call(stage.running.log.commit_now)
    assert client.answer(Suback).reasons == (Reason.GRANTED_QOS_1,) * 20
    found = client.payloads(60)
    assert sorted(found) == sorted(
        [str(number) for number in range(40)] + [f"live {number}" for number in range(20, 40)]
    )
    client.expect_nothing()


def test_a_subscribe_of_many_replays_looks_at_all_subscriptions_once(made, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(
        "everlog.broker.registry.subscriptions.first_begins",  # asked for by each look at all of them
        lambda replayed: calls.append(1) or first_begins(replayed),
    )
    stage = made()
    client = stage.connected("c")
    reasons = client.subscribe(*(f"$replay/0:{number}/t/{number}" for number in range(300, 0, -1)))
    assert len(reasons) == 300
    assert len(calls) == 1
