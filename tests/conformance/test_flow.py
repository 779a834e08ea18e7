"""Flow control, packet sizes, topic aliases and message expiry (sections 3.1.2.11, 3.3.2.3 and 4.9)."""

import pytest
from tests.conformance.clause import clauses
from tests.memory_log import MemoryLog

from everlog.broker import Limits
from everlog.mqtt import (
    Connack,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Subscribe,
    Subscription,
    encode,
)


@clauses("MQTT-3.3.4-9 MQTT-4.9.0-1 MQTT-4.9.0-2")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_than_the_receive_maximum_is_under_way(stages, qos, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", receive_maximum=3)
    client.subscribe("a", qos=qos)
    publisher = stage.connected("p")
    for number in range(20):
        publisher.publish("a", str(number), qos)
    window = [client.expect(Publish) for _ in range(3)]
    client.expect_nothing()
    got = []
    while window:
        one = window.pop(0)
        got.append(int(one.payload))
        if qos == 2:
            client.send(Pubrec(one.packet_id))
            client.expect(Pubrel)
            client.expect_nothing()  # a PUBREC with success gives no room yet
            client.send(Pubcomp(one.packet_id))
        else:
            client.send(Puback(one.packet_id))
        if len(got) + len(window) < 20:
            window.append(client.expect(Publish))
        client.expect_nothing()
    assert got == list(range(20))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("qos", "wrong"), [(1, [Pubrec]), (1, [Pubcomp]), (2, [Puback]), (2, [Pubcomp]), (2, [Pubrec, Puback])]
)
@clauses("MQTT-4.13.1-1", v4="MQTT-4.8.0-1")
def test_an_ack_of_the_wrong_kind_closes(stage, version, qos, wrong):
    client = stage.connected("c", version)
    client.subscribe("a", qos=qos)
    stage.connected("p").publish("a", "x", qos)
    one = client.expect(Publish)
    client.send(*(kind(one.packet_id) for kind in wrong))
    if len(wrong) > 1:
        client.expect(Pubrel)
    client.expect_closed(Reason.PROTOCOL_ERROR if version == 5 else None)


@clauses("MQTT-3.3.4-9")
def test_a_pubrec_with_an_error_gives_room(stage):
    client = stage.connected("c", receive_maximum=1)
    client.subscribe("a", qos=2)
    publisher = stage.connected("p")
    publisher.publish("a", "1", 2)
    publisher.publish("a", "2", 2)
    first = client.expect(Publish)
    client.send(Pubrec(first.packet_id, Reason.NOT_AUTHORIZED))
    assert client.expect(Publish).payload == b"2"


@clauses("MQTT-3.3.4-10 MQTT-4.9.0-3")
def test_a_full_window_holds_nothing_else_back(stage):
    client = stage.connected("c", receive_maximum=1)
    client.subscribe("a", qos=1)
    publisher = stage.connected("p")
    for _ in range(3):
        publisher.publish("a", "x", 1)
    client.expect(Publish)
    assert client.subscribe("b") == (Reason.GRANTED_QOS_0,)
    assert client.publish("c", "x", 2) is Reason.SUCCESS
    client.expect_nothing()


@clauses("MQTT-4.9.0-2")
@pytest.mark.parametrize("kept", [False, True])
def test_qos_0_messages_keep_their_place_behind_a_full_window(stages, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", receive_maximum=1)
    client.subscribe("a", qos=1)
    publisher = stage.connected("p")
    for number in range(9):
        publisher.publish("a", str(number), number % 2)
    assert client.payloads(9) == [str(number) for number in range(9)]


@clauses("MQTT-3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_over_our_receive_maximum_is_disconnected(stages, qos):
    stage = stages(MemoryLog(manual=True), limits=Limits(receive_maximum=5), keep=[("#", 0)])
    client = stage.connected("c")
    client.send(*(Publish("a", b"x", qos, packet_id=number + 1) for number in range(5)))
    client.expect_nothing()
    client.send(Publish("a", b"x", qos, packet_id=6))
    client.expect_closed(Reason.RECEIVE_MAXIMUM_EXCEEDED)


@clauses("MQTT-3.3.4-7 MQTT-4.3.3-10")
def test_what_was_over_the_receive_maximum_can_be_sent_again(stages):
    stage = stages(limits=Limits(receive_maximum=2))
    watcher = stage.connected("w")
    watcher.subscribe("a")
    keep = {"clean_start": False, "expiry": 100}
    client = stage.connected("c", **keep)
    client.send(*(Publish("a", b"%d" % number, 2, packet_id=number + 1) for number in range(3)))
    client.expect_closed(Reason.RECEIVE_MAXIMUM_EXCEEDED)
    stage.offline("c")
    client = stage.connected("c", **keep)
    for number in range(3):
        client.send(Publish("a", b"%d" % number, 2, dup=True, packet_id=number + 1))
        client.expect(Pubrec)
        client.send(Pubrel(number + 1))
        client.expect(Pubcomp)
    assert watcher.payloads(3) == ["0", "1", "2"]
    watcher.expect_nothing()


@clauses("MQTT-4.9.0-2")
def test_answered_messages_give_the_client_room(stages):
    stage = stages(limits=Limits(receive_maximum=2))
    client = stage.connected("c")
    for number in range(20):
        client.publish("a", "x", 1 + number % 2)
        client.publish("$SYS/no", "x", 2)
    client.send(Pubrel(9), Pubrel(10), Pubrel(11))
    for _ in range(3):
        assert client.expect(Pubcomp).reason is Reason.PACKET_IDENTIFIER_NOT_FOUND
    client.send(*(Publish("a", b"x", 2, packet_id=number + 100) for number in range(2)))
    client.expect(Pubrec)
    client.expect(Pubrec)
    client.send(Publish("a", b"x", 1, packet_id=200))
    client.expect_closed(Reason.RECEIVE_MAXIMUM_EXCEEDED)


@clauses("MQTT-3.2.2-15")
def test_a_packet_over_our_maximum_size_closes(stages, version):
    stage = stages(limits=Limits(message_bytes=1000))
    client = stage.connected("c", version)
    room = 1000 - len(encode(Publish("a", b""), version)) - 1
    client.publish("a", bytes(room))
    client.send(Publish("a", bytes(room + 1)))
    client.expect_closed(Reason.PACKET_TOO_LARGE)


@clauses("MQTT-3.2.2-15")
@pytest.mark.parametrize("first", [b"\x30", b"\x82"])
def test_a_too_large_packet_closes_when_its_header_is_seen(stages, version, first):
    stage = stages(limits=Limits(message_bytes=1000, packet_bytes=1000))
    client = stage.connected("c", version)
    client.send_bytes(first + b"\xff\xff\xff\x7f")
    client.expect_closed(Reason.PACKET_TOO_LARGE)


def test_a_message_may_be_larger_than_other_packets(stages, version):
    stage = stages(limits=Limits(message_bytes=5000, packet_bytes=1000))
    client = stage.connected("c", version)
    client.subscribe("a")
    client.publish("a", bytes(4900))
    assert len(client.message().payload) == 4900
    client.send(Subscribe(9, (Subscription("b" * 990), Subscription("c"))))
    client.expect_closed(Reason.PACKET_TOO_LARGE)


@clauses("MQTT-3.1.2-24 MQTT-3.1.2-25")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_the_client_is_left_out(stages, qos, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", maximum_packet_size=200, receive_maximum=2)
    client.subscribe("a", qos=qos)
    publisher = stage.connected("p")
    for number in range(6):
        publisher.publish("a", str(number), qos)
        publisher.publish("a", bytes(200), qos)
    assert client.payloads(6) == [str(number) for number in range(6)]
    client.expect_nothing()


@clauses("MQTT-3.1.2-24")
def test_a_message_of_exactly_the_maximum_size_is_sent(stage):
    client = stage.connected("c", maximum_packet_size=100)
    client.subscribe("a")
    publisher = stage.connected("p")
    payload = bytes(100 - len(encode(Publish("a", b""), 5)))
    publisher.publish("a", payload + b"x")
    publisher.publish("a", payload)
    assert client.message().payload == payload


@clauses("MQTT-3.1.2-25")
def test_a_redelivery_too_large_for_the_new_connection_is_given_up(stage):
    keep = {"clean_start": False, "expiry": 100}
    client = stage.connected("c", **keep)
    client.subscribe("a", qos=1)
    publisher = stage.connected("p")
    publisher.publish("a", bytes(500), 1)
    publisher.publish("a", "small", 1)
    client.expect(Publish)
    client.expect(Publish)
    client.close()
    stage.offline("c")
    client = stage.connected("c", maximum_packet_size=100, **keep)
    assert client.payloads(1) == ["small"]
    client.expect_nothing()
    assert stage.call(lambda: stage.inside.sessions["c"].inflight) == 0


@clauses("MQTT-3.3.2-12 MQTT-3.2.2-17")
def test_every_alias_up_to_our_maximum_is_accepted(stages):
    stage = stages(limits=Limits(topic_aliases=10))
    watcher = stage.connected("w")
    watcher.subscribe("#")
    client = stage.connected("c")
    for alias in (1, 5, 10):
        client.publish(f"t/{alias}", "named", topic_alias=alias)
    for alias in (10, 1, 5):
        client.publish("", "by alias", topic_alias=alias)
    client.publish("other", "anew", topic_alias=5)
    client.publish("", "by alias", 1, topic_alias=5)
    found = [watcher.message() for _ in range(8)]
    assert [one.topic for one in found] == ["t/1", "t/5", "t/10", "t/10", "t/1", "t/5", "other", "other"]
    assert all(one.properties == Properties() for one in found)


@clauses("MQTT-3.3.2-8 MQTT-3.3.2-9")
@pytest.mark.parametrize("alias", [0, 11, 65_535])
def test_an_alias_out_of_range_closes(stages, alias):
    stage = stages(limits=Limits(topic_aliases=10))
    client = stage.connected("c")
    client.send_bytes(b"\x30\x07\x00\x01a\x03\x23" + alias.to_bytes(2, "big"))
    client.expect_closed(Reason.TOPIC_ALIAS_INVALID)


@clauses("MQTT-3.2.2-18")
def test_without_aliases_any_closes(stages):
    stage = stages(limits=Limits(topic_aliases=0))
    client = stage.client()
    assert not client.connect("c").properties.topic_alias_maximum
    client.send_bytes(b"\x30\x07\x00\x01a\x03\x23\x00\x01")
    client.expect_closed(Reason.TOPIC_ALIAS_INVALID)


@clauses("MQTT-4.13.1-1")
def test_an_alias_without_a_topic_yet_closes(stage):
    client = stage.connected("c")
    client.send(Publish("", b"x", properties=Properties(topic_alias=3)))
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.3.2-7")
def test_aliases_end_with_the_connection(stage):
    keep = {"clean_start": False, "expiry": 100}
    client = stage.connected("c", **keep)
    client.publish("a", "x", topic_alias=1)
    client.close()
    stage.offline("c")
    client = stage.connected("c", **keep)
    client.send(Publish("", b"x", properties=Properties(topic_alias=1)))
    client.expect_closed(Reason.PROTOCOL_ERROR)


def resolve(client, count, aliases):
    """The topics of the next messages, as a client works them out."""
    found = []
    for _ in range(count):
        one = client.message()
        alias = one.properties.topic_alias
        if alias is not None and one.topic:
            aliases[alias] = one.topic
        found.append(one.topic or aliases[alias])
    return found


@clauses("MQTT-3.1.2-26 MQTT-3.3.2-11 MQTT-3.3.2-8")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("maximum", [1, 2, 65_535])
def test_aliases_to_the_client_stay_within_its_maximum(stages, maximum, kept):
    stage = stages(keep=[("k/#", 0)] if kept else None)
    client = stage.connected("c", topic_alias_maximum=maximum)
    client.subscribe("#", qos=1)
    publisher = stage.connected("p")
    topics = [f"{'k' if number % 3 else 'n'}/{number % 5}" for number in range(60)]
    aliases = {}
    for start in range(0, 60, 6):
        for topic in topics[start : start + 6]:
            publisher.publish(topic, "x", 1)
    assert sorted(resolve(client, 60, aliases)) == sorted(topics)
    assert aliases
    assert max(aliases) <= maximum
    assert min(aliases) >= 1


@clauses("MQTT-3.1.2-27")
def test_without_a_maximum_the_client_gets_no_aliases(stage):
    client = stage.connected("c")
    client.subscribe("#")
    publisher = stage.connected("p")
    for _ in range(3):
        publisher.publish("a", "x", topic_alias=1)
    assert [client.message().properties.topic_alias for _ in range(3)] == [None] * 3


@clauses("MQTT-3.3.2-7 MQTT-3.3.2-11")
def test_aliases_to_the_client_begin_anew_with_a_connection(stage):
    keep = {"clean_start": False, "expiry": 100, "topic_alias_maximum": 5}
    client = stage.connected("c", **keep)
    client.subscribe("a", qos=1)
    publisher = stage.connected("p")
    publisher.publish("a", "x", 1)
    publisher.publish("a", "y", 1)
    first = [client.expect(Publish), client.expect(Publish)]
    assert [one.topic for one in first] == ["a", ""]
    client.close()
    stage.offline("c")
    client = stage.connected("c", **keep)
    publisher.publish("a", "z", 1)
    assert resolve(client, 3, {}) == ["a"] * 3


@clauses("MQTT-3.3.2-5 MQTT-3.3.2-6")
@pytest.mark.parametrize("kept", [False, True])
def test_an_expired_message_is_not_sent(stages, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    client = stage.connected("c", receive_maximum=1)
    client.subscribe("a", qos=1)
    publisher = stage.connected("p")
    publisher.publish("a", "first", 1)
    publisher.publish("a", "short", 1, message_expiry_interval=5)
    publisher.publish("a", "long", 1, message_expiry_interval=50)
    publisher.publish("a", "forever", 1)
    first = client.expect(Publish)
    stage.now_us += 20_000_000
    client.acknowledge(first)
    long, forever = client.message(), client.message()
    assert (long.payload, long.properties.message_expiry_interval) == (b"long", 30)
    assert (forever.payload, forever.properties.message_expiry_interval) == (b"forever", None)
    client.expect_nothing()


@clauses("MQTT-3.3.2-5 MQTT-3.3.2-6")
def test_messages_expire_for_who_is_away(stage):
    keep = {"clean_start": False, "expiry": 1000}
    client = stage.connected("c", **keep)
    client.subscribe("a", qos=2)
    client.disconnect()
    stage.offline("c")
    publisher = stage.connected("p")
    for qos in (0, 1, 2):
        publisher.publish("a", f"short{qos}", qos, message_expiry_interval=5)
        publisher.publish("a", f"long{qos}", qos, message_expiry_interval=50)
    stage.now_us += 10_000_000
    client = stage.connected("c", **keep)
    found = [client.message() for _ in range(3)]
    assert [(one.payload, one.properties.message_expiry_interval) for one in found] == [
        (f"long{qos}".encode(), 40) for qos in (0, 1, 2)
    ]
    client.expect_nothing()


@clauses("MQTT-3.3.2-6")
def test_an_interval_of_0_and_the_longest_one(stage):
    client = stage.connected("c")
    client.subscribe("a")
    publisher = stage.connected("p")
    publisher.publish("a", "x", message_expiry_interval=0xFFFFFFFF)
    assert client.message().properties.message_expiry_interval == 0xFFFFFFFF


@clauses("MQTT-4.3.3-13")
def test_a_qos_2_exchange_goes_on_after_the_message_has_expired(stage):
    client = stage.connected("c")
    client.subscribe("a", qos=2)
    stage.connected("p").publish("a", "x", 2, message_expiry_interval=5)
    found = client.expect(Publish)
    stage.now_us += 10_000_000
    client.acknowledge(found)
    client.expect_nothing()
    assert stage.call(lambda: stage.inside.sessions["c"].inflight) == 0


def test_the_smallest_packets_still_reach_a_client_with_a_small_maximum(stage):
    client = stage.client()
    assert isinstance(client.connect("c", maximum_packet_size=30), Connack)
    client.send_bytes(b"\xff\x00")
    assert isinstance(client.receive(), Disconnect)
