"""SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11), and topic filters (section 4.7)."""

import pytest
from tests.conformance.clause import clauses
from tests.memory_log import MemoryLog

from everlog.broker import Limits
from everlog.mqtt import Puback, Publish, Reason, Suback, Subscribe, Subscription, Unsuback, Unsubscribe


@clauses(
    "MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-3.8.4-5 MQTT-3.8.4-6 MQTT-3.8.4-7 MQTT-3.9.3-1 MQTT-3.9.3-2 MQTT-2.2.1-6",
    v4="MQTT-3.8.4-1 MQTT-3.8.4-2 MQTT-3.8.4-4 MQTT-3.8.4-5 MQTT-3.9.3-1 MQTT-3.9.3-2 MQTT-2.3.1-7",
)
def test_one_suback_answers_every_filter_in_order(stage, version):
    client = stage.connected("c", version)
    client.send(
        Subscribe(
            4711,
            (
                Subscription("a", 2),
                Subscription("a/#/b", 1),
                Subscription("b", 0),
                Subscription("c+", 0),
                Subscription("c", 1),
            ),
        )
    )
    bad = Reason.TOPIC_FILTER_INVALID if version == 5 else Reason.UNSPECIFIED_ERROR
    ack = client.expect(Suback)
    assert (ack.packet_id, ack.reasons) == (4711, (Reason(2), bad, Reason(0), bad, Reason(1)))


@clauses("MQTT-4.7.1-1 MQTT-4.7.1-2 MQTT-4.8.2-1 MQTT-4.8.2-2", v4="MQTT-4.7.1-2 MQTT-4.7.1-3")
@pytest.mark.parametrize(
    "text",
    [
        "#/a",
        "a#",
        "a/#/",
        "a/b#",
        "##",
        "a+",
        "+a/b",
        "a/++",
        "a/b+/c",
        "$share//a",
        "$share/g",
        "$share/g/",
        "$share/+/a",
    ],
)
def test_invalid_filters_fail_alone(stage, version, text):
    client = stage.connected("c", version)
    bad = Reason.TOPIC_FILTER_INVALID if version == 5 else Reason.UNSPECIFIED_ERROR
    assert client.subscribe(text, "fine") == (bad, Reason.GRANTED_QOS_0)
    stage.connected("p", version).publish("fine", "x")
    assert client.payloads(1) == ["x"]


MATCHES = {
    "#": {"a", "a/b", "a/b/c", "/", "/a", "a/"},
    "+": {"a"},
    "+/+": {"a/b", "/", "/a", "a/"},
    "/+": {"/", "/a"},
    "/#": {"/", "/a"},
    "a/#": {"a", "a/b", "a/b/c", "a/"},
    "a/+": {"a/b", "a/"},
    "+/b/#": {"a/b", "a/b/c"},
    "a/+/c": {"a/b/c"},
    "a/b/c": {"a/b/c"},
    "$SYS/#": {"$SYS/a"},
    "$SYS/+": {"$SYS/a"},
    "+/a": {"/a"},
}


@clauses(
    "MQTT-4.7.2-1 MQTT-4.7.1-1 MQTT-4.7.1-2 MQTT-4.7.3-4", v4="MQTT-4.7.2-1 MQTT-4.7.1-2 MQTT-4.7.1-3 MQTT-4.7.3-4"
)
@pytest.mark.parametrize("kept", [False, True])
def test_filters_match_what_the_specification_says(stages, version, kept):
    stage = stages(MemoryLog(4), keep=[("#", 0)] if kept else None)
    clients = {}
    for number, text in enumerate(MATCHES):
        clients[text] = stage.connected(f"c{number}", version)
        clients[text].subscribe(text)
    publisher = stage.connected("p", version)
    for topic in ("a", "a/b", "a/b/c", "/", "/a", "a/"):
        publisher.publish(topic)
    stage.call(lambda: stage.inside.publish(Publish("$SYS/a", b"")))
    for text, topics in MATCHES.items():
        assert {clients[text].message().topic for _ in topics} == topics, text
        clients[text].expect_nothing()


@clauses("MQTT-3.8.3-1 MQTT-4.7.3-1 MQTT-4.7.3-2", v4="MQTT-3.8.3-1 MQTT-4.7.3-1 MQTT-4.7.3-2")
@pytest.mark.parametrize("text", [b"", b"\xff", b"a\x00"])
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_a_filter_that_is_no_string_closes(stage, version, text, first):
    client = stage.connected("c", version)
    options = b"\x00" if first == 0x82 else b""
    body = b"\x00\x01" + (b"\x00" if version == 5 else b"") + len(text).to_bytes(2, "big") + text + options
    client.send_bytes(bytes((first, len(body))) + body)
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.10.2-1", v4="MQTT-3.10.3-1")
def test_an_unsubscribe_of_ill_formed_text_closes(stage, version):
    client = stage.connected("c", version)
    body = b"\x00\x01" + (b"\x00" if version == 5 else b"") + b"\x00\x02\xc3\x28"
    client.send_bytes(bytes((0xA2, len(body))) + body)
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses(
    "MQTT-3.8.1-1 MQTT-3.10.1-1 MQTT-2.1.3-1",
    v4="MQTT-3.8.1-1 MQTT-3.10.1-1 MQTT-2.2.2-1 MQTT-2.2.2-2",
)
@pytest.mark.parametrize("first", [0x80, 0x83, 0x8A, 0xA0, 0xA3])
def test_other_flags_of_subscribe_and_unsubscribe_close(stage, version, first):
    client = stage.connected("c", version)
    body = b"\x00\x01" + (b"\x00" if version == 5 else b"") + b"\x00\x01a" + (b"\x00" if first >> 4 == 8 else b"")
    client.send_bytes(bytes((first, len(body))) + body)
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.8.3-2 MQTT-3.10.2-2", v4="MQTT-3.8.3-3 MQTT-3.10.3-2")
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_no_filter_at_all_closes(stage, version, first):
    client = stage.connected("c", version)
    body = b"\x00\x01" + (b"\x00" if version == 5 else b"")
    client.send_bytes(bytes((first, len(body))) + body)
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-2.2.1-3", v4="MQTT-2.3.1-1")
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_packet_id_0_closes(stage, version, first):
    client = stage.connected("c", version)
    body = b"\x00\x00" + (b"\x00" if version == 5 else b"") + b"\x00\x01a" + (b"\x00" if first == 0x82 else b"")
    client.send_bytes(bytes((first, len(body))) + body)
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.8.3-5", v4="MQTT-3-8.3-4")
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80, 0x31])
def test_bad_subscription_options_close(stage, version, options):
    client = stage.connected("c", version)
    body = b"\x00\x01" + (b"\x00" if version == 5 else b"") + b"\x00\x01a" + bytes((options,))
    client.send_bytes(bytes((0x82, len(body))) + body)
    malformed = version == 4 or options & 0xC0
    client.expect_closed(Reason.MALFORMED_PACKET if malformed else Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_closes(stage):
    client = stage.connected("c")
    client.send(Subscribe(1, (Subscription("$share/g/a", 0, no_local=True),)))
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.8.4-3 MQTT-3.8.4-4", v4="MQTT-3.8.4-3")
def test_a_repeated_filter_replaces_the_subscription(stage, version):
    client = stage.connected("c", version)
    publisher = stage.connected("p", version)
    for qos in (2, 0, 1):
        client.subscribe("a", qos=qos)
        publisher.publish("a", "x", 2)
        assert client.message().qos == qos
    client.expect_nothing()
    client.unsubscribe("a")
    publisher.publish("a", "x", 2)
    client.expect_nothing()


@clauses("MQTT-3.3.4-2", v4="MQTT-3.3.5-1")
@pytest.mark.parametrize("kept", [False, True])
def test_overlapping_subscriptions_give_one_message_at_the_highest_qos(stages, version, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", version)
    for text, qos in (("a/b", 0), ("a/+", 2), ("a/#", 1), ("#", 1)):
        client.subscribe(text, qos=qos)
    publisher = stage.connected("p", version)
    publisher.publish("a/b", "x", 2)
    assert client.message().qos == 2
    client.expect_nothing()
    client.unsubscribe("a/+")
    publisher.publish("a/b", "x", 2)
    assert client.message().qos == 1
    client.expect_nothing()


@clauses("MQTT-3.3.4-3 MQTT-3.3.4-4")
@pytest.mark.parametrize("kept", [False, True])
def test_a_message_carries_the_identifiers_of_all_its_subscriptions(stages, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c")
    client.subscribe("a/b", identifier=1)
    client.subscribe("a/+", identifier=200)
    client.subscribe("a/#")
    client.subscribe("other", identifier=7)
    client.subscribe("a/b/#", identifier=268_435_455)
    publisher = stage.connected("p")
    publisher.publish("a/b", "x", 1)
    publisher.publish("a/c", "x", 1)
    publisher.publish("a", "x", 1)
    assert set(client.message().properties.subscription_identifiers) == {1, 200, 268_435_455}
    assert client.message().properties.subscription_identifiers == (200,)
    assert client.message().properties.subscription_identifiers == ()
    client.subscribe("a/+", identifier=9)
    publisher.publish("a/c", "x", 1)
    assert client.message().properties.subscription_identifiers == (9,)


@clauses("MQTT-3.8.3-3")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_leaves_out_what_the_client_published(stages, kept, qos):
    stage = stages(keep=[("#", 0)] if kept else None)
    client, other = stage.connected("c"), stage.connected("o")
    client.subscribe(Subscription("a/#", qos, no_local=True))
    for number in range(10):
        client.publish("a/b", "mine", qos)
        other.publish("a/b", str(number), qos)
        client.publish("a/c", "mine", qos)
    assert client.payloads(10) == [str(number) for number in range(10)]
    client.expect_nothing()


@clauses("MQTT-3.8.3-3")
def test_no_local_in_one_segment_with_other_packets(stage):
    client = stage.connected("c")
    client.send(
        Subscribe(1, (Subscription("a", 1, no_local=True), Subscription("b", 1))),
        *(Publish(topic, b"mine", 1, packet_id=k + 2) for k, topic in enumerate("abab")),
    )
    assert client.answer(Suback).reasons == (Reason(1), Reason(1))
    for _ in range(4):
        client.answer(Puback)
    assert [client.message().topic for _ in range(2)] == ["b", "b"]
    client.expect_nothing()


@clauses("MQTT-3.8.3-3 MQTT-3.3.4-4")
def test_own_messages_come_by_the_subscriptions_without_no_local(stage):
    client, other = stage.connected("c"), stage.connected("o")
    client.subscribe(Subscription("a/#", 2, no_local=True), identifier=1)
    client.subscribe(Subscription("a/b", 1), identifier=2)
    client.publish("a/b", "mine", 2)
    other.publish("a/b", "theirs", 2)
    client.publish("a/c", "mine", 2)
    mine, theirs = client.message(), client.message()
    assert (mine.payload, mine.qos, mine.properties.subscription_identifiers) == (b"mine", 1, (2,))
    assert (theirs.payload, theirs.qos, set(theirs.properties.subscription_identifiers)) == (b"theirs", 2, {1, 2})
    client.expect_nothing()


@clauses("MQTT-3.8.3-3")
def test_no_local_leaves_out_what_the_client_retained_and_nobody_replaced(stage):
    client, other = stage.connected("c"), stage.connected("d")
    for topic in ("a/1", "a/2"):
        client.publish(topic, "own", 1, retain=True)
    other.publish("a/2", "of another", 1, retain=True)
    client.subscribe(Subscription("a/#", 1, no_local=True))
    assert client.payloads(1) == ["of another"]
    client.expect_nothing()
    other.subscribe(Subscription("a/1", 1, no_local=True))
    assert other.payloads(1) == ["own"]
    client.subscribe(Subscription("a/1", 1))
    assert client.payloads(1) == ["own"]


@clauses("MQTT-3.8.3-3")
def test_no_local_holds_for_what_is_read_from_the_log_later(stages):
    stage = stages(limits=Limits(inflight_messages=2))
    client, other = stage.connected("c", clean_start=False, expiry=100), stage.connected("o")
    client.subscribe(Subscription("a", 1, no_local=True))
    for number in range(20):
        other.publish("a", str(number), 1)
        client.publish("a", "mine", 1)
    first = [client.expect(Publish), client.expect(Publish)]
    client.close()
    stage.offline("c")
    client = stage.connected("c", clean_start=False, expiry=100)
    again = [client.expect(Publish), client.expect(Publish)]
    assert [(one.payload, one.packet_id) for one in again] == [(one.payload, one.packet_id) for one in first]
    for one in again:
        client.acknowledge(one)
    assert client.payloads(18) == [str(number) for number in range(2, 20)]
    client.expect_nothing()


@clauses(
    "MQTT-3.10.4-1 MQTT-3.10.4-2 MQTT-3.10.4-4 MQTT-3.10.4-5 MQTT-3.10.4-6 MQTT-3.11.3-1 MQTT-3.11.3-2 MQTT-2.2.1-6",
    v4="MQTT-3.10.4-1 MQTT-3.10.4-2 MQTT-3.10.4-4 MQTT-3.10.4-5 MQTT-3.10.4-6 MQTT-2.3.1-7",
)
def test_unsubscribe_removes_exactly_the_filters_named(stage, version):
    client = stage.connected("c", version)
    client.subscribe("a", "b/+", "c/#", "d")
    client.send(Unsubscribe(99, ("a", "b/x", "c/#", "c/#")))
    ack = client.expect(Unsuback)
    assert ack.packet_id == 99
    if version == 5:
        none = Reason.NO_SUBSCRIPTION_EXISTED
        assert ack.reasons == (Reason.SUCCESS, none, Reason.SUCCESS, none)
    publisher = stage.connected("p", version)
    for topic in ("a", "b/x", "c", "c/d", "d"):
        publisher.publish(topic, topic)
    assert client.payloads(2) == ["b/x", "d"]
    client.expect_nothing()


@clauses("MQTT-3.10.4-5", v4="MQTT-3.10.4-5")
def test_an_unsubscribe_of_nothing_is_answered(stage, version):
    assert stage.connected("c", version).unsubscribe("never") in ((), (Reason.NO_SUBSCRIPTION_EXISTED,))


@clauses("MQTT-3.10.4-3", v4="MQTT-3.10.4-3")
def test_messages_under_way_are_completed_after_an_unsubscribe(stage, version):
    client = stage.connected("c", version)
    client.subscribe("a", qos=2)
    publisher = stage.connected("p", version)
    publisher.publish("a", "x", 1)
    publisher.publish("a", "y", 2)
    found = [client.expect(Publish), client.expect(Publish)]
    client.unsubscribe("a")
    for one in found:
        client.acknowledge(one)
    client.expect_nothing()
    assert stage.call(lambda: stage.inside.sessions["c"].inflight) == 0


@clauses("MQTT-3.8.4-7", v4="MQTT-3.8.4-5")
def test_more_subscriptions_than_allowed_are_refused(stages, version):
    stage = stages(limits=Limits(subscriptions_per_client=2))
    client = stage.connected("c", version)
    bad = Reason.QUOTA_EXCEEDED if version == 5 else Reason.UNSPECIFIED_ERROR
    assert client.subscribe("a", "b", "c", "a") == (Reason(0), Reason(0), bad, Reason(0))
    client.unsubscribe("a")
    assert client.subscribe("c") == (Reason(0),)


def test_filters_over_the_limits_are_refused(stage):
    client = stage.connected("c")
    bad = Reason.TOPIC_FILTER_INVALID
    assert client.subscribe("x" * 1025, "/".join("a" * 129), "/".join("a" * 128)) == (bad, bad, Reason(0))


def test_subscribing_again_and_again_does_not_lose_messages(stage, version):
    client, publisher = stage.connected("c", version), stage.connected("p", version)
    client.subscribe("t/#", qos=1)
    for number in range(50):
        publisher.publish("t/a", str(number), 1)
        client.subscribe("t/#", "t/a" if number % 2 else "t/+", qos=1)
        if number % 3 == 0:
            client.unsubscribe("t/a", "t/+")
    assert client.payloads(50) == [str(number) for number in range(50)]
    client.expect_nothing()
