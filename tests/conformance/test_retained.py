"""Retained messages (sections 3.3.1.3 and 3.8.3.1)."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker import Limits
from everlog.mqtt import Publish, Pubrec, Reason, Subscription


@clauses("MQTT-3.3.1-5 MQTT-3.3.1-9", v4="MQTT-3.3.1-5 MQTT-3.3.1-6 MQTT-3.3.1-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscription_gets_the_last_retained_message(stage, version, qos):
    publisher = stage.connected("p", version)
    publisher.publish("a", "old", qos, retain=True)
    publisher.publish("a", "new", qos, retain=True)
    client = stage.connected("c", version)
    client.subscribe("a", qos=2)
    found = client.message()
    assert (found.topic, found.payload, found.qos, found.retain, found.dup) == ("a", b"new", qos, True, False)
    client.expect_nothing()


@clauses("MQTT-3.8.4-8", v4="MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_retained_message_comes_at_the_lower_of_both_qos(stage, version, granted):
    stage.connected("p", version).publish("a", "x", 1, retain=True)
    client = stage.connected("c", version)
    client.subscribe("a", qos=granted)
    assert client.message().qos == min(granted, 1)


@clauses("MQTT-3.3.1-6 MQTT-3.3.1-7", v4="MQTT-3.3.1-10 MQTT-3.3.1-11")
def test_an_empty_retained_message_removes_it_and_is_delivered(stage, version):
    live = stage.connected("live", version)
    live.subscribe("a")
    publisher = stage.connected("p", version)
    publisher.publish("a", "x", retain=True)
    publisher.publish("a", "", retain=True)
    assert live.payloads(2) == ["x", ""]
    client = stage.connected("c", version)
    client.subscribe("a")
    client.expect_nothing()
    assert stage.inside.retained_count == 0


@clauses("MQTT-3.3.1-8", v4="MQTT-3.3.1-12")
@pytest.mark.parametrize("payload", ["other", ""])
def test_a_message_without_retain_leaves_the_retained_one(stage, version, payload):
    publisher = stage.connected("p", version)
    publisher.publish("a", "x", retain=True)
    publisher.publish("a", payload)
    client = stage.connected("c", version)
    client.subscribe("a")
    assert client.payloads(1) == ["x"]


@clauses("MQTT-3.3.1-5", v4="MQTT-3.3.1-7")
def test_a_retained_qos_0_message_replaces_any_other(stage, version):
    publisher = stage.connected("p", version)
    publisher.publish("a", "one", 2, retain=True)
    publisher.publish("a", "two", 0, retain=True)
    client = stage.connected("c", version)
    client.subscribe("a", qos=2)
    found = client.message()
    assert (found.payload, found.qos) == (b"two", 0)


@clauses("MQTT-3.3.1-12", v4="MQTT-3.3.1-9")
@pytest.mark.parametrize("kept", [False, True])
def test_an_established_subscription_gets_it_without_the_flag(stages, version, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", version)
    client.subscribe("a", qos=1)
    stage.connected("p", version).publish("a", "x", 1, retain=True)
    assert not client.message().retain


@clauses("MQTT-3.3.1-13 MQTT-3.3.1-12")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_as_published_passes_the_flag_on(stages, retain, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c")
    client.subscribe(Subscription("a", 1, retain_as_published=True))
    stage.connected("p").publish("a", "x", 1, retain=retain)
    assert client.message().retain is retain


@clauses("MQTT-3.3.1-9 MQTT-3.3.1-10 MQTT-3.3.1-11 MQTT-3.8.4-4")
@pytest.mark.parametrize(("handling", "first", "second"), [(0, True, True), (1, True, False), (2, False, False)])
def test_retain_handling(stage, handling, first, second):
    stage.connected("p").publish("a", "x", retain=True)
    client = stage.connected("c")
    for expected in (first, second):
        client.subscribe(Subscription("a", 0, retain_handling=handling))
        if expected:
            assert client.payloads(1) == ["x"]
        client.expect_nothing()


@clauses("MQTT-3.8.4-3 MQTT-3.8.4-4", v4="MQTT-3.8.4-3")
def test_a_repeated_subscription_gets_retained_messages_again(stage, version):
    stage.connected("p", version).publish("a", "x", 1, retain=True)
    client = stage.connected("c", version)
    for qos in (0, 1):
        client.subscribe("a", qos=qos)
        assert client.message().qos == qos
    client.expect_nothing()


@clauses("MQTT-3.3.1-9 MQTT-4.7.2-1", v4="MQTT-3.3.1-6 MQTT-4.7.2-1")
def test_wildcards_find_retained_messages(stage, version):
    publisher = stage.connected("p", version)
    for topic in ("a", "a/b", "a/b/c", "/a", "b"):
        publisher.publish(topic, topic, retain=True)
    stage.call(lambda: stage.inside.publish(Publish("$SYS/x", b"$", retain=True)))
    for text, expected in {
        "#": {"a", "a/b", "a/b/c", "/a", "b"},
        "a/#": {"a", "a/b", "a/b/c"},
        "+": {"a", "b"},
        "+/+": {"a/b", "/a"},
        "+/b/#": {"a/b", "a/b/c"},
        "$SYS/#": {"$SYS/x"},
        "none": set(),
    }.items():
        client = stage.connected(f"c{text}".replace("#", "x"), version)
        client.subscribe(text)
        assert {client.message().topic for _ in expected} == expected
        client.expect_nothing()


@clauses("MQTT-3.3.4-3")
def test_retained_messages_carry_the_subscription_identifier(stage):
    stage.connected("p").publish("a", "x", retain=True)
    client = stage.connected("c")
    client.subscribe("a", identifier=268_435_455)
    assert client.message().properties.subscription_identifiers == (268_435_455,)


@clauses("MQTT-3.3.2-5 MQTT-3.3.2-6")
def test_a_retained_message_expires(stage):
    stage.connected("p").publish("a", "x", retain=True, message_expiry_interval=30)
    stage.now_us += 10_000_000
    client = stage.connected("c")
    client.subscribe("a")
    assert client.message().properties.message_expiry_interval == 20
    stage.now_us += 20_000_000
    client.subscribe("a")
    client.expect_nothing()


@clauses("MQTT-4.8.2-3")
def test_a_shared_subscription_gets_no_retained_messages(stage):
    stage.connected("p").publish("a", "x", retain=True)
    client = stage.connected("c")
    client.subscribe("$share/g/a")
    client.expect_nothing()


@clauses("MQTT-3.4.2-1 MQTT-4.3.3-9")
def test_a_retained_message_over_the_limit_is_refused(stages):
    stage = stages(limits=Limits(retained_messages=1))
    publisher = stage.connected("p")
    assert publisher.publish("a", "x", 1, retain=True) is Reason.SUCCESS
    assert publisher.publish("b", "x", 1, retain=True) is Reason.QUOTA_EXCEEDED
    publisher.send(Publish("b", b"x", 2, retain=True, packet_id=99))
    assert publisher.expect(Pubrec).reason is Reason.QUOTA_EXCEEDED
    publisher.send(Publish("b", b"x", 2, packet_id=99))
    assert publisher.expect(Pubrec).reason is Reason.SUCCESS
    assert stage.broker.metrics.retained_refused == 2
    assert publisher.publish("a", "y", 1, retain=True) is Reason.SUCCESS


def test_many_retained_messages_come_as_there_is_room(stages, version):
    stage = stages(limits=Limits(inflight_messages=10, output_bytes=64 << 10, queue_bytes=64 << 10))
    publisher = stage.connected("p", version)
    for start in range(0, 2_000, 50):
        publisher.send(
            *(
                Publish(f"t/{k}", str(k).encode() + bytes(1_000), 1 + k % 2, True, packet_id=k + 1)
                for k in range(start, start + 50)
            )
        )
        for _ in range(50):
            publisher.receive()
    client = stage.connected("c", version)
    client.subscribe("t/#", qos=1)
    found = [client.message() for _ in range(2_000)]
    assert {one.topic for one in found} == {f"t/{k}" for k in range(2_000)}
    assert all(one.retain for one in found)
    client.expect_nothing()


def test_a_retained_message_that_changes_while_they_are_sent_comes_as_it_is_then(stages):
    stage = stages(limits=Limits(inflight_messages=1))
    publisher = stage.connected("p")
    for topic in ("t/1", "t/2", "t/3"):
        publisher.publish(topic, "old", 1, retain=True)
    client = stage.connected("c")
    client.subscribe("t/#", qos=1)
    first = client.expect(Publish)
    publisher.publish("t/2", "", 1, retain=True)
    client.acknowledge(first)
    rest = [client.message(), client.message()]
    assert {(one.topic, one.payload, one.retain) for one in rest} == {("t/2", b"", False), ("t/3", b"old", True)}
    client.expect_nothing()
