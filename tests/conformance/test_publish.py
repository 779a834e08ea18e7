"""PUBLISH and its answers (sections 3.3 to 3.7, 4.3 and 4.6)."""

import pytest
from tests.conformance.clause import clauses
from tests.memory_log import MemoryLog

from everlog.broker import Limits
from everlog.mqtt import Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason


def pair(stage, version, filter="a/#", qos=2):
    subscriber = stage.connected("subscriber", version)
    subscriber.subscribe(filter, qos=qos)
    return subscriber, stage.connected("publisher", version)


@clauses(
    "MQTT-3.8.4-8 MQTT-3.3.4-1 MQTT-4.3.1-1 MQTT-4.3.2-2 MQTT-4.3.2-4 MQTT-4.3.3-2 MQTT-4.3.3-4 MQTT-4.3.3-8 "
    "MQTT-4.3.3-11 MQTT-2.2.1-2 MQTT-2.2.1-5",
    v4="MQTT-3.8.4-6 MQTT-3.3.4-1 MQTT-4.3.1-1 MQTT-4.3.2-1 MQTT-4.3.2-2 MQTT-4.3.3-1 MQTT-4.3.3-2 MQTT-2.3.1-5 "
    "MQTT-2.3.1-6",
)
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_comes_at_the_lower_of_both_qos(stage, version, qos, granted):
    subscriber, publisher = pair(stage, version, qos=granted)
    publisher.publish("a/b", "x", qos)
    found = subscriber.message()
    assert (found.topic, found.payload, found.qos, found.dup, found.retain) == (
        "a/b",
        b"x",
        min(qos, granted),
        False,
        False,
    )
    assert bool(found.packet_id) is bool(found.qos)
    subscriber.expect_nothing()


@clauses("MQTT-3.3.2-3 MQTT-4.7.3-4", v4="MQTT-3.3.2-3 MQTT-4.7.3-4")
def test_only_what_matches_comes(stage, version):
    subscriber, publisher = pair(stage, version, "a/b")
    for topic in ("a", "a/b/c", "A/b", "a//b", "/a/b", "a/b/"):
        publisher.publish(topic, topic)
    publisher.publish("a/b", "this")
    assert subscriber.payloads(1) == ["this"]
    subscriber.expect_nothing()


@clauses("MQTT-3.3.1-3", v4="MQTT-3.3.1-3")
def test_dup_is_not_passed_on(stage, version):
    subscriber, publisher = pair(stage, version)
    publisher.send(Publish("a", b"x", 1, dup=True, packet_id=7))
    publisher.expect(Puback)
    assert not subscriber.message().dup


@clauses("MQTT-3.3.1-2", v4="MQTT-3.3.1-2")
def test_dup_at_qos_0_closes(stage, version):
    client = stage.connected("c", version)
    client.send_bytes(b"\x38\x04\x00\x01a" + (b"\x00" if version == 5 else b"x"))
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.3.1-4", v4="MQTT-3.3.1-4")
def test_qos_3_closes(stage, version):
    client = stage.connected("c", version)
    client.send_bytes(b"\x36\x06\x00\x01a\x00\x01\x00")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-2.2.1-3", v4="MQTT-2.3.1-1")
@pytest.mark.parametrize("first", [0x32, 0x34])
def test_packet_id_0_closes(stage, version, first):
    client = stage.connected("c", version)
    client.send_bytes(bytes((first,)) + b"\x06\x00\x01a\x00\x00\x00")
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-4.3.2-5", v4="MQTT-4.3.2-2")
def test_a_qos_1_id_is_new_again_after_its_puback(stage, version):
    subscriber, publisher = pair(stage, version)
    for payload, dup in ((b"one", False), (b"two", True)):
        publisher.send(Publish("a", payload, 1, dup=dup, packet_id=5))
        assert publisher.expect(Puback).packet_id == 5
    assert subscriber.payloads(2) == ["one", "two"]


@clauses("MQTT-4.3.3-10 MQTT-4.3.3-12", v4="MQTT-4.3.3-2")
def test_a_repeated_qos_2_message_is_delivered_once(stage, version):
    subscriber, publisher = pair(stage, version)
    for dup in (False, True, True):
        publisher.send(Publish("a", b"x", 2, dup=dup, packet_id=5))
        assert publisher.expect(Pubrec).packet_id == 5
    publisher.send(Pubrel(5))
    assert publisher.expect(Pubcomp).reason is Reason.SUCCESS
    publisher.send(Publish("a", b"y", 2, packet_id=5))
    publisher.expect(Pubrec)
    assert subscriber.payloads(2) == ["x", "y"]
    subscriber.expect_nothing()


@clauses("MQTT-4.3.3-10", v4="MQTT-4.3.3-2")
def test_a_repeated_qos_2_message_in_one_segment_is_delivered_once(stage, version):
    subscriber, publisher = pair(stage, version)
    publisher.send(
        Publish("a", b"x", 2, packet_id=5),
        Publish("a", b"x", 2, dup=True, packet_id=5),
        Publish("a", b"y", 2, packet_id=6),
    )
    assert [publisher.expect(Pubrec).packet_id for _ in range(3)] == [5, 5, 6]
    assert subscriber.payloads(2) == ["x", "y"]
    subscriber.expect_nothing()


@clauses("MQTT-4.3.3-11 MQTT-3.7.2-1", v4="MQTT-4.3.3-2")
def test_an_unknown_pubrel_is_answered_all_the_same(stage, version):
    client = stage.connected("c", version)
    client.send(Publish("a", b"x", 2, packet_id=1), Publish("a", b"x", 2, packet_id=2))
    client.expect(Pubrec)
    client.expect(Pubrec)
    client.send(Pubrel(1), Pubrel(77), Pubrel(2))
    found = [client.expect(Pubcomp) for _ in range(3)]
    assert [one.packet_id for one in found] == [1, 77, 2]
    unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else Reason.SUCCESS
    assert [one.reason for one in found] == [Reason.SUCCESS, unknown, Reason.SUCCESS]


@clauses("MQTT-4.3.3-4", v4="MQTT-4.3.3-1")
def test_an_unknown_pubrec_is_answered_with_pubrel(stage, version):
    client = stage.connected("c", version)
    client.send(Pubrec(99))
    found = client.expect(Pubrel)
    assert found.packet_id == 99
    assert found.reason is (Reason.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else Reason.SUCCESS)


def test_known_and_unknown_pubrecs_in_one_segment_are_told_apart(stage):
    subscriber, publisher = pair(stage, 5)
    publisher.publish("a", "x", 2)
    known = subscriber.expect(Publish).packet_id
    subscriber.send(Pubrec(98), Pubrec(known), Pubrec(99))
    unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND
    found = [subscriber.expect(Pubrel) for _ in range(3)]
    assert [(one.packet_id, one.reason) for one in found] == [(98, unknown), (known, Reason.SUCCESS), (99, unknown)]
    subscriber.send(Pubcomp(known))
    publisher.publish("a", "y", 2)
    assert subscriber.message().payload == b"y"


@clauses("MQTT-4.3.3-4", v4="MQTT-4.3.3-1")
def test_a_repeated_pubrec_is_answered_again(stage, version):
    subscriber, publisher = pair(stage, version)
    publisher.publish("a", "x", 2)
    found = subscriber.expect(Publish)
    subscriber.send(Pubrec(found.packet_id), Pubrec(found.packet_id))
    assert [subscriber.expect(Pubrel).packet_id for _ in range(2)] == [found.packet_id] * 2
    subscriber.send(Pubcomp(found.packet_id), Pubcomp(found.packet_id))
    subscriber.expect_nothing()


@clauses("MQTT-2.2.1-5", v4="MQTT-2.3.1-6")
def test_acks_that_fit_nothing_change_nothing(stage, version):
    subscriber, publisher = pair(stage, version)
    publisher.publish("a", "x", 1)
    publisher.publish("a", "y", 2)
    one, two = subscriber.expect(Publish), subscriber.expect(Publish)
    subscriber.send(Puback(12345), Pubcomp(12346))
    subscriber.expect_nothing()
    session = stage.inside.sessions["subscriber"]
    assert stage.call(lambda: session.inflight) == 2
    subscriber.send(Puback(one.packet_id))
    subscriber.acknowledge(two)
    subscriber.expect_nothing()
    assert stage.call(lambda: session.inflight) == 0


@clauses("MQTT-2.2.1-4 MQTT-4.3.2-1 MQTT-4.3.3-1", v4="MQTT-2.3.1-2 MQTT-2.3.1-4")
def test_packet_ids_under_way_are_not_used_twice(stage, version):
    subscriber, publisher = pair(stage, version)
    for number in range(50):
        publisher.publish("a", str(number), 1 + number % 2)
    found = [subscriber.expect(Publish) for _ in range(50)]
    assert len({one.packet_id for one in found}) == 50
    assert all(one.packet_id for one in found)


@clauses("MQTT-2.2.1-4", v4="MQTT-2.3.1-4")
def test_a_message_never_acknowledged_keeps_its_id_while_all_others_go_round(stages, version):
    stage = stages(limits=Limits(receive_maximum=65_535))
    subscriber, publisher = pair(stage, version)
    publisher.publish("a", "stuck", 1)
    stuck = subscriber.expect(Publish).packet_id
    total, chunk = 66_000, 1_000
    used = set()
    for start in range(0, total, chunk):
        publisher.send(*(Publish("a", b"", 1, packet_id=1 + k % 65_535) for k in range(start, start + chunk)))
        ids = [subscriber.expect(Publish).packet_id for _ in range(chunk)]
        assert len(set(ids)) == chunk
        used.update(ids)
        subscriber.send(*map(Puback, ids))
    assert used == set(range(1, 65_536)) - {stuck}


@clauses("MQTT-4.6.0-5 MQTT-4.6.0-6", v4="MQTT-4.6.0-5 MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_in_the_order_of_publishing(stage, version, qos):
    subscriber, publisher = pair(stage, version)
    packets = [Publish("a", str(k).encode(), qos, packet_id=k + 1 if qos else 0) for k in range(500)]
    for start in range(0, 500, 37):
        publisher.send(*packets[start : start + 37])
    assert [int(one) for one in subscriber.payloads(500)] == list(range(500))


@clauses("MQTT-4.6.0-2 MQTT-4.6.0-3", v4="MQTT-4.6.0-2 MQTT-4.6.0-3")
def test_answers_come_in_the_order_of_the_messages(stage, version):
    client = stage.connected("c", version)
    packets = [Publish("a", b"", 1 + k % 2, packet_id=1000 - k) for k in range(100)]
    client.send(*packets)
    answers = [client.receive() for _ in packets]
    assert [(type(one), one.packet_id) for one in answers] == [
        (Puback if one.qos == 1 else Pubrec, one.packet_id) for one in packets
    ]


@clauses("MQTT-4.3.2-4 MQTT-4.3.3-8", v4="MQTT-4.3.2-2 MQTT-4.3.3-2")
@pytest.mark.parametrize("shards", [1, 4])
def test_kept_messages_are_answered_and_delivered_after_their_commit(stages, version, shards):
    log = MemoryLog(shards, manual=True)
    stage = stages(log, keep=[("kept/#", 0)])
    subscriber, publisher = pair(stage, version, "#")
    publisher.send(
        Publish("kept/1", b"one", 1, packet_id=1),
        Publish("kept/22", b"two", 2, packet_id=2),
        Publish("free", b"three", 1, packet_id=3),
        Publish("kept/333", b"four", 0),
    )
    publisher.expect_nothing()
    assert subscriber.payloads(1) == ["three"]
    subscriber.expect_nothing()
    stage.call(log.commit_now)
    answers = [publisher.receive() for _ in range(3)]
    assert [(type(one), one.packet_id) for one in answers] == [(Puback, 1), (Pubrec, 2), (Puback, 3)]
    assert sorted(subscriber.payloads(3)) == ["four", "one", "two"]
    publisher.expect_nothing()
    subscriber.expect_nothing()


@clauses("MQTT-4.3.3-8 MQTT-4.3.3-10", v4="MQTT-4.3.3-2")
def test_a_qos_2_message_sent_again_before_its_commit_is_not_answered_before_it(stages, version):
    log = MemoryLog(manual=True)
    stage = stages(log, keep=[("#", 0)])
    client = stage.connected("c", version, clean_start=False, expiry=100)
    client.send(Publish("a", b"x", 2, packet_id=9))
    client.expect_nothing()
    client.close()
    stage.offline("c")
    client = stage.connected("c", version, clean_start=False, expiry=100)
    client.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    client.expect_nothing()
    stage.call(log.commit_now)
    assert client.expect(Pubrec).packet_id == 9
    client.expect_nothing()
    assert log.shards[0].committed == 1


@clauses("MQTT-3.3.4-10 MQTT-4.9.0-3")
def test_other_packets_are_answered_while_a_commit_is_awaited(stages, version):
    log = MemoryLog(manual=True)
    stage = stages(log, keep=[("#", 0)])
    client = stage.connected("c", version)
    client.send(Publish("a", b"x", 1, packet_id=1))
    client.expect_nothing()
    assert client.subscribe("b", qos=1) == (Reason.GRANTED_QOS_1,)
    stage.call(log.commit_now)
    assert client.expect(Puback).packet_id == 1


@clauses("MQTT-3.3.2-4 MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-17 MQTT-3.3.2-18 MQTT-3.3.2-20 MQTT-1.5.7-1")
@pytest.mark.parametrize("kept", [False, True])
def test_properties_are_passed_on_unaltered(stages, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    subscriber, publisher = pair(stage, 5)
    properties = {
        "payload_format_indicator": 1,
        "content_type": "application/json; charset=é",
        "response_topic": "answers/1",
        "correlation_data": bytes(range(256)),
        "user_properties": (("z", "1"), ("a", "2"), ("z", "0"), ("", "")),
    }
    publisher.publish("a", "{}", 1, **properties)
    assert subscriber.message().properties == Properties(**properties)


@clauses(v4="MQTT-3.3.2-3")
def test_a_3_1_1_subscriber_gets_mqtt_5_messages_without_properties(stage):
    subscriber = stage.connected("old", 4)
    subscriber.subscribe("a", qos=1)
    stage.connected("new", 5).publish("a", "x", 1, user_properties=(("k", "v"),), content_type="text")
    assert subscriber.message().payload == b"x"


@clauses("MQTT-3.3.2-2 MQTT-4.7.0-1", v4="MQTT-3.3.2-2 MQTT-4.7.1-1")
@pytest.mark.parametrize("topic", ["#", "a/#", "+", "a/+/b", "a+", "#b"])
def test_wildcards_in_a_topic_name_close(stage, version, topic):
    client = stage.connected("c", version)
    client.send(Publish(topic, b"x"))
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses(
    "MQTT-3.3.2-1 MQTT-4.7.3-2 MQTT-4.7.3-1 MQTT-1.5.4-1 MQTT-1.5.4-2",
    v4="MQTT-3.3.2-1 MQTT-4.7.3-2 MQTT-4.7.3-1 MQTT-1.5.3-1 MQTT-1.5.3-2",
)
@pytest.mark.parametrize("topic", [b"", b"\xff", b"a\x00b", b"\xed\xa0\x80"])
def test_a_bad_topic_name_closes(stage, version, topic):
    client = stage.connected("c", version)
    body = len(topic).to_bytes(2, "big") + topic + (b"\x00" if version == 5 else b"")
    client.send_bytes(bytes((0x30, len(body))) + body)
    reason = Reason.MALFORMED_PACKET if topic or version == 4 else Reason.PROTOCOL_ERROR
    client.expect_closed(reason)


@clauses("MQTT-1.5.4-3", v4="MQTT-1.5.3-3")
def test_a_byte_order_mark_is_a_character_like_any_other(stage, version):
    subscriber, publisher = pair(stage, version, "\ufeffa")
    publisher.publish("a", "without")
    publisher.publish("\ufeffa", "with")
    assert subscriber.message().topic == "\ufeffa"
    subscriber.expect_nothing()


@clauses("MQTT-4.7.3-3", v4="MQTT-4.7.3-3")
def test_a_topic_name_over_the_limit_closes(stage, version):
    client = stage.connected("c", version)
    client.send(Publish("x" * 1025, b"x"))
    client.expect_closed(Reason.TOPIC_NAME_INVALID)


@clauses("MQTT-3.3.2-13 MQTT-3.3.2-14 MQTT-3.3.2-19")
@pytest.mark.parametrize(
    "properties",
    [b"\x08\x00\x01#", b"\x08\x00\x01\xff", b"\x08\x00\x01+", b"\x03\x00\x01\xff", b"\x26\x00\x01k\x00\x01\xff"],
)
def test_bad_strings_in_properties_close(stage, properties):
    client = stage.connected("c")
    body = b"\x00\x01a" + bytes((len(properties),)) + properties
    client.send_bytes(bytes((0x30, len(body))) + body)
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.3.4-6")
def test_a_subscription_identifier_from_a_client_closes(stage):
    client = stage.connected("c")
    client.send_bytes(b"\x30\x06\x00\x01a\x02\x0b\x01")
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.6.1-1", v4="MQTT-3.6.1-1 MQTT-2.2.2-2")
def test_a_pubrel_with_other_flags_closes(stage, version):
    client = stage.connected("c", version)
    client.send_bytes(b"\x60\x02\x00\x01")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.4.2-1 MQTT-3.5.2-1")
def test_a_message_to_a_topic_of_the_broker_is_refused(stage):
    watcher = stage.connected("watcher")
    watcher.subscribe("$SYS/#", qos=2)
    client = stage.connected("c")
    assert client.publish("$SYS/x", "x", 1) is Reason.NOT_AUTHORIZED
    assert client.publish("$SYS/x", "x", 2) is Reason.NOT_AUTHORIZED
    assert client.publish("$SYS/x", "x", 0) is Reason.SUCCESS
    watcher.expect_nothing()
    assert stage.broker.metrics.refused == 3


@clauses(v4="MQTT-3.3.5-2")
def test_a_refused_message_of_a_3_1_1_client_is_acknowledged_and_goes_nowhere(stage):
    watcher = stage.connected("watcher")
    watcher.subscribe("$SYS/#", qos=2)
    client = stage.connected("c", 4)
    for qos in (0, 1, 2):
        client.publish("$SYS/x", "x", qos)
    watcher.expect_nothing()


@clauses("MQTT-4.3.3-9")
def test_the_id_of_a_refused_qos_2_message_is_free(stage):
    subscriber, client = pair(stage, 5)
    client.send(Publish("$SYS/x", b"x", 2, packet_id=5))
    assert client.expect(Pubrec).reason is Reason.NOT_AUTHORIZED
    client.send(Publish("a", b"y", 2, packet_id=5))
    assert client.expect(Pubrec).reason is Reason.SUCCESS
    assert subscriber.payloads(1) == ["y"]


def test_a_topic_of_the_broker_stays_reserved_when_the_broker_made_it_known(stage):
    stage.call(lambda: stage.inside.publish(Publish("$SYS/mine", b"1", retain=True)))
    client = stage.connected("c")
    assert client.publish("$SYS/mine", "2", 1, retain=True) is Reason.NOT_AUTHORIZED
    client.subscribe("$SYS/mine")
    assert client.payloads(1) == ["1"]


def test_publishers_and_subscribers_of_both_versions_meet(stage):
    subscribers = [stage.connected(f"s{version}", version) for version in (3, 4, 5)]
    for one in subscribers:
        one.subscribe("t", qos=2)
    for version in (3, 4, 5):
        for qos in (0, 1, 2):
            stage.connected(f"p{version}", version).publish("t", f"{version}{qos}", qos)
    for one in subscribers:
        assert one.payloads(9) == [f"{version}{qos}" for version in (3, 4, 5) for qos in (0, 1, 2)]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 70_000, 1_000_000])
@pytest.mark.parametrize("kept", [False, True])
def test_payloads_of_many_sizes_arrive_whole(stages, version, size, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    subscriber, publisher = pair(stage, version)
    payload = bytes(k * 7 % 251 for k in range(size))
    publisher.publish("a", payload, 1)
    assert subscriber.message().payload == payload


@pytest.mark.parametrize("kept", [False, True])
def test_topics_of_many_audiences_keep_their_order_in_one_segment(stages, version, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    everything, some, publisher = (stage.connected(name, version) for name in ("all", "some", "p"))
    everything.subscribe("t/#", qos=1)
    everything.subscribe("t/1", qos=2)
    some.subscribe("t/1", "t/3", qos=1)
    packets = [Publish(f"t/{k % 5}", str(k).encode(), 2, packet_id=k + 1) for k in range(200)]
    publisher.send(*packets)
    found = [everything.message() for _ in range(200)]
    assert [int(one.payload) for one in found] == list(range(200))
    assert {(one.topic, one.qos) for one in found} == {("t/1", 2), *((f"t/{k}", 1) for k in (0, 2, 3, 4))}
    assert [int(one) for one in some.payloads(80)] == [k for k in range(200) if k % 5 in (1, 3)]
    some.expect_nothing()


def test_forgotten_topics_are_learnt_anew(stages):
    stage = stages(limits=Limits(topics=20))
    subscriber, publisher = pair(stage, 5)
    away = stage.connected("away", clean_start=False, expiry=100)
    away.subscribe("a/1", qos=1)
    away.disconnect()
    stage.offline("away")
    for k in range(100):
        publisher.publish(f"a/{k}", str(k), 1)
        publisher.publish("a/1", f"{k}!", 1)
    assert subscriber.payloads(200) == [one for k in range(100) for one in (str(k), f"{k}!")]
    assert stage.broker.metrics.table_resets > 3
    away = stage.connected("away", clean_start=False, expiry=100)
    assert away.payloads(101) == ["0!", "1", *(f"{k}!" for k in range(1, 100))]


def test_more_new_topics_than_are_known_at_once_in_one_segment(stages):
    stage = stages(limits=Limits(topics=20))
    subscriber, publisher = pair(stage, 5)
    publisher.send(*(Publish(f"a/{k}", str(k).encode()) for k in range(30)))
    assert subscriber.payloads(30) == [str(k) for k in range(30)]
