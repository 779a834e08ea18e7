"""CONNECT and CONNACK (sections 3.1 and 3.2)."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker import Limits
from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    Reason,
    Subscribe,
    Subscription,
    Will,
    encode,
)

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def connect_bytes(
    flags=0x02, payload=b"\x00\x01c", version=4, name=b"\x00\x04MQTT", properties=b"\x00", keep_alive=b"\x00\x00"
):
    body = name + bytes((version, flags)) + keep_alive + (properties if version == 5 else b"") + payload
    return bytes((0x10, len(body))) + body


def expect_malformed(client):
    """A CONNECT that can't be read ends the connection, and an MQTT 5 client is told why."""
    if client.version == 5:
        assert client.expect(Connack).reason is Reason.MALFORMED_PACKET
    client.expect_closed()


@clauses("MQTT-3.1.0-1", v4="MQTT-3.1.0-1")
@pytest.mark.parametrize(
    "first",
    [Publish("a", b"x"), Pingreq(), Subscribe(1, (Subscription("a"),)), Disconnect()],
    ids=lambda one: one.type.name,
)
def test_a_first_packet_other_than_connect_closes(stage, version, first):
    client = stage.client(version)
    client.send(first)
    client.expect_closed()


@clauses("MQTT-3.1.0-2 MQTT-4.13.1-1", v4="MQTT-3.1.0-2 MQTT-4.8.0-1")
def test_a_second_connect_closes(stage, version):
    client = stage.connected("twice", version)
    client.send(Connect(version, "twice"))
    client.expect_closed(Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("head", [b"\x00\x04MQTT\x09", b"\x00\x03XYZ\x05", b""])
def test_a_second_connect_of_another_protocol_closes(stage, version, head, caplog):
    client = stage.connected("twice", version)
    body = head + bytes(10)
    client.send_bytes(bytes((0x10, len(body))) + body)
    client.expect_closed(Reason.PROTOCOL_ERROR)
    assert not [record for record in caplog.records if record.exc_info]


@clauses("MQTT-3.1.0-2 MQTT-3.2.0-2", v4="MQTT-3.1.0-2")
def test_two_connects_in_one_segment_give_one_connack(stage, version):
    client = stage.client(version)
    client.send(Connect(version, "twice"), Connect(version, "twice"))
    client.expect(Connack)
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.1.2-1", v4="MQTT-3.1.2-1")
@pytest.mark.parametrize("name", [b"\x00\x04MQTX", b"\x00\x04mqtt", b"\x00\x05MQTT5", b"\x00\x00"])
def test_another_protocol_name_closes(stage, name):
    client = stage.client(4)
    client.send_bytes(connect_bytes(name=name))
    assert client.expect(Connack).reason is Reason.UNSUPPORTED_PROTOCOL_VERSION
    client.expect_closed()


@clauses("MQTT-3.1.2-2 MQTT-3.2.2-6 MQTT-3.2.2-7", v4="MQTT-3.1.2-2 MQTT-3.2.2-4 MQTT-3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 6, 0x83, 255])
def test_an_unknown_protocol_level_is_refused(stage, level):
    client = stage.client(4)
    client.send_bytes(connect_bytes(version=level))
    ack = client.expect(Connack)
    assert ack == Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)
    client.expect_closed()


@clauses("MQTT-3.1.2-3 MQTT-3.1.4-1", v4="MQTT-3.1.2-3 MQTT-3.1.4-1 MQTT-3.2.2-6")
def test_the_reserved_connect_flag_closes(stage, version):
    client = stage.client(version)
    client.send_bytes(connect_bytes(0x03, version=version))
    expect_malformed(client)


@clauses(
    "MQTT-3.1.2-9 MQTT-3.1.2-11 MQTT-3.1.2-12 MQTT-3.1.2-13 MQTT-3.1.2-16 MQTT-3.1.2-17 MQTT-3.1.2-18 MQTT-3.1.2-19",
    v4="MQTT-3.1.2-9 MQTT-3.1.2-11 MQTT-3.1.2-13 MQTT-3.1.2-14 MQTT-3.1.2-15 MQTT-3.1.2-18 MQTT-3.1.2-19 "
    "MQTT-3.1.2-20 MQTT-3.1.2-21",
)
@pytest.mark.parametrize(
    ("flags", "more"),
    [
        (0x0A, b""),  # a will QoS without a will
        (0x22, b""),  # a retained will without a will
        (0x1E, b"\x00\x01t\x00\x01m"),  # a will QoS of 3
        (0x06, b""),  # a will that is not there
        (0x06, b"\x00\x01t"),  # a will without a payload
        (0x82, b""),  # a user name that is not there
        (0xC2, b"\x00\x01u"),  # a password that is not there
        (0x02, b"\x00\x01u"),  # a user name without its flag
        (0x82, b"\x00\x01u\x00\x01p"),  # a password without its flag
    ],
)
def test_flags_and_payload_that_do_not_fit_close(stage, version, flags, more):
    client = stage.client(version)
    if version == 5 and flags & 0x04 and more:
        more = b"\x00" + more
    client.send_bytes(connect_bytes(flags, b"\x00\x01c" + more, version))
    expect_malformed(client)


@clauses(v4="MQTT-3.1.2-22")
def test_a_password_without_a_user_name_closes_a_3_1_1_client(stage):
    client = stage.client(4)
    client.send_bytes(connect_bytes(0x42, b"\x00\x01c\x00\x01p"))
    client.expect_closed()


@clauses("MQTT-3.1.2-19")
def test_mqtt_5_allows_a_password_without_a_user_name(stage):
    assert not stage.client(5).connect("c", password=b"secret").reason.is_error


@clauses("MQTT-3.1.3-1 MQTT-3.1.3-3", v4="MQTT-3.1.3-1 MQTT-3.1.3-3")
def test_a_payload_in_its_order_is_taken(stage, version):
    client = stage.client(version)
    will = b"\x00\x04will\x00\x01m" if version == 4 else b"\x00\x00\x04will\x00\x01m"
    client.send_bytes(connect_bytes(0xC6, b"\x00\x02id" + will + b"\x00\x01u\x00\x01p", version))
    assert client.expect(Connack).reason is Reason.SUCCESS
    packet = stage.call(lambda: stage.inside.connect_packet("id"))
    assert (packet.will.topic, packet.user_name, packet.password) == ("will", "u", b"p")


@clauses("MQTT-3.1.3-3", v4="MQTT-3.1.3-3")
def test_a_payload_without_a_client_id_closes(stage, version):
    client = stage.client(version)
    client.send_bytes(connect_bytes(payload=b"", version=version))
    expect_malformed(client)


@clauses(
    "MQTT-3.1.3-4 MQTT-3.1.3-11 MQTT-3.1.3-12 MQTT-1.5.4-1 MQTT-1.5.4-2",
    v4="MQTT-3.1.3-4 MQTT-3.1.3-10 MQTT-3.1.3-11 MQTT-1.5.3-1 MQTT-1.5.3-2",
)
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00b"])
@pytest.mark.parametrize("field", ["client id", "will topic", "user name"])
def test_strings_that_are_not_utf_8_close(stage, version, bad, field):
    bad = len(bad).to_bytes(2, "big") + bad
    section = b"\x00" if version == 5 else b""
    flags, payload = {
        "client id": (0x02, bad),
        "will topic": (0x06, b"\x00\x01c" + section + bad + b"\x00\x01m"),
        "user name": (0x82, b"\x00\x01c" + bad),
    }[field]
    client = stage.client(version)
    client.send_bytes(connect_bytes(flags, payload, version))
    expect_malformed(client)


@clauses("MQTT-3.1.3-2 MQTT-3.1.3-5 MQTT-3.1.4-5", v4="MQTT-3.1.3-2 MQTT-3.1.3-5 MQTT-3.1.4-4")
@pytest.mark.parametrize("client_id", ["a", ALPHABET[:23], ALPHABET[23:46], ALPHABET[39:], "é/Ω", "x" * 256])
def test_client_ids_are_accepted_and_name_the_session(stage, version, client_id):
    assert stage.client(version).connect(client_id) == Connack(
        False, Reason.SUCCESS, stage.client(version).connect("other").properties
    )
    assert client_id in stage.call(lambda: list(stage.inside.sessions))


@clauses("MQTT-3.1.3-6 MQTT-3.1.3-7 MQTT-3.2.2-16")
def test_an_empty_client_id_gets_a_new_one(stage):
    one, two = stage.client().connect(), stage.client().connect(clean_start=False)
    first, second = one.properties.assigned_client_identifier, two.properties.assigned_client_identifier
    assert first
    assert second
    assert first != second
    assert not two.session_present
    assert {first, second} <= set(stage.call(lambda: list(stage.inside.sessions)))


@clauses("MQTT-3.1.3-7")
def test_an_assigned_client_id_can_be_resumed(stage):
    client = stage.client()
    name = client.connect(expiry=100).properties.assigned_client_identifier
    client.subscribe("a", qos=1)
    client.close()
    stage.offline(name)
    stage.connected("publisher").publish("a", "x", 1)
    again = stage.client()
    assert again.connect(name, False, expiry=100).session_present
    assert again.payloads(1) == ["x"]


@clauses(v4="MQTT-3.1.3-6")
def test_an_empty_client_id_of_a_clean_3_1_1_session_is_accepted(stage):
    assert stage.client(4).connect("").reason is Reason.SUCCESS
    assert stage.client(4).connect("").reason is Reason.SUCCESS
    assert len(stage.call(lambda: list(stage.inside.sessions))) == 2


@clauses(v4="MQTT-3.1.3-7 MQTT-3.1.3-8 MQTT-3.2.2-4 MQTT-3.2.2-5")
def test_an_empty_client_id_of_a_3_1_1_session_to_keep_is_refused(stage):
    client = stage.client(4)
    assert client.connect("", False) == Connack(False, Reason.CLIENT_IDENTIFIER_NOT_VALID)
    client.expect_closed()


@clauses(
    "MQTT-3.1.3-8 MQTT-3.2.2-6 MQTT-3.2.2-7 MQTT-3.2.2-8 MQTT-4.13.2-1", v4="MQTT-3.1.3-9 MQTT-3.2.2-4 MQTT-3.2.2-5"
)
def test_a_client_id_over_the_limit_is_refused(stages, version):
    stage = stages(limits=Limits(client_id_bytes=30))
    client = stage.client(version)
    ack = client.connect("x" * 31)
    assert (ack.session_present, ack.reason) == (False, Reason.CLIENT_IDENTIFIER_NOT_VALID)
    client.expect_closed()


@clauses("MQTT-3.1.4-6", v4="MQTT-3.1.4-5")
def test_what_follows_a_refused_connect_is_not_processed(stages, version):
    stage = stages(limits=Limits(client_id_bytes=30))
    watcher = stage.connected("watcher")
    watcher.subscribe("#")
    client = stage.client(version)
    client.send(Connect(version, "x" * 31), Publish("a", b"from a refused client"))
    assert client.expect(Connack).reason is Reason.CLIENT_IDENTIFIER_NOT_VALID
    client.expect_closed()
    watcher.expect_nothing()


@clauses("MQTT-3.2.0-1", v4="MQTT-3.2.0-1 MQTT-3.1.4-4")
def test_the_first_packet_is_connack_even_when_messages_wait(stage, version):
    client = stage.connected("away", version, clean_start=False, expiry=100)
    client.subscribe("a", qos=1)
    client.close()
    stage.offline("away")
    stage.connected("publisher").publish("a", "x", 1)
    again = stage.client(version)
    assert again.connect("away", False, expiry=100).session_present
    assert again.payloads(1) == ["x"]


@clauses("MQTT-3.2.2-1", v4="MQTT-3.2.0-1")
def test_connack_is_byte_for_byte_what_3_1_1_says(stage):
    client = stage.client(4)
    client.send(Connect(4, "bytes"))
    assert client.socket.recv(100) == b"\x20\x02\x00\x00"


@clauses("MQTT-3.2.2-21 MQTT-3.2.2-22 MQTT-3.1.2-21")
def test_the_servers_keep_alive_is_announced_where_it_differs(stages):
    stage = stages(limits=Limits(keep_alive_s=60))
    assert stage.client().connect("a", keep_alive=30).properties.server_keep_alive is None
    assert stage.client().connect("b", keep_alive=61).properties.server_keep_alive == 60
    assert stage.client().connect("c", keep_alive=0).properties.server_keep_alive == 60
    assert stage.call(lambda: [c.keep_alive_s for c in stage.inside.connections]) == [45, 90, 90]


@pytest.mark.parametrize("version", [3, 4])
def test_a_client_that_cant_be_told_keeps_its_keep_alive(stages, version):
    stage = stages(limits=Limits(keep_alive_s=60))
    for name, seconds in (("a", 30), ("b", 600), ("c", 0)):
        assert not stage.client(version).connect(name, keep_alive=seconds).reason.is_error
    assert stage.call(lambda: [c.keep_alive_s for c in stage.inside.connections]) == [45, 900, 0]


def test_a_malformed_connect_is_told_why(stage):
    client = stage.client()
    client.send_bytes(connect_bytes(flags=0x03, version=5))  # the reserved flag
    answer = client.expect(Connack)
    assert answer.reason is Reason.MALFORMED_PACKET
    assert "reserved" in (answer.properties.reason_string or "")
    client.expect_closed()


@clauses("MQTT-3.2.2-15 MQTT-3.2.2-17 MQTT-3.3.4-7")
def test_connack_says_what_the_client_may_send(stages):
    stage = stages(limits=Limits(receive_maximum=7, message_bytes=1234, packet_bytes=99, topic_aliases=5))
    properties = stage.client().connect("a").properties
    assert properties.receive_maximum == 7
    assert properties.maximum_packet_size == 1234
    assert properties.topic_alias_maximum == 5


@clauses("MQTT-3.2.2-9")
def test_connack_does_not_take_anything_back_that_is_supported(stage):
    properties = stage.client().connect("a").properties
    assert properties.maximum_qos is None
    assert properties.retain_available is None
    assert properties.wildcard_subscription_available is None
    assert properties.subscription_identifier_available is None
    assert properties.shared_subscription_available is None


@clauses("MQTT-3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
def test_response_information_is_sent_when_it_is_asked_for(stage, asked):
    wanted = {} if asked is None else {"request_response_information": asked}
    found = stage.client().connect("a", **wanted).properties.response_information
    assert bool(found) is bool(asked)


def test_a_request_is_answered_below_the_topic_that_the_response_information_says(stage):
    requester, responder = stage.client(), stage.connected("responder")
    prefix = requester.connect("requester", request_response_information=1).properties.response_information
    assert requester.subscribe(f"{prefix}#", qos=1) == (Reason.GRANTED_QOS_1,)
    responder.subscribe("service", qos=1)
    requester.publish("service", "question", 1, response_topic=f"{prefix}7", correlation_data=b"\x00\xff")
    request = responder.message()
    assert request.payload == b"question"
    asked = request.properties
    assert responder.publish(asked.response_topic, "answer", 1, correlation_data=asked.correlation_data) is Reason(0)
    answer = requester.message()
    assert (answer.topic, answer.payload) == (f"{prefix}7", b"answer")
    assert answer.properties.correlation_data == b"\x00\xff"


@pytest.mark.parametrize("client_id", ["a/b", "a+", "#"])
def test_a_client_id_that_is_no_topic_level_gets_no_response_information(stage, client_id):
    assert stage.client().connect(client_id, request_response_information=1).properties.response_information is None


@clauses("MQTT-3.1.2-29")
def test_without_problem_information_answers_have_no_reason_string(stage):
    client = stage.connected("a", request_problem_information=0)
    client.send(Subscribe(1, (Subscription("a/#/b"),)))
    suback = client.receive()
    assert suback.reasons == (Reason.TOPIC_FILTER_INVALID,)
    assert (suback.properties.reason_string, suback.properties.user_properties) == (None, ())
    client.send_bytes(b"\x62\x02\x00\x07")
    pubcomp = client.receive()
    assert pubcomp.reason is Reason.PACKET_IDENTIFIER_NOT_FOUND
    assert (pubcomp.properties.reason_string, pubcomp.properties.user_properties) == (None, ())


@clauses("MQTT-3.2.2-19 MQTT-3.2.2-20")
def test_connack_carries_neither_reason_string_nor_user_properties(stage):
    properties = stage.client().connect("a", user_properties=(("k", "v"),)).properties
    assert (properties.reason_string, properties.user_properties) == (None, ())


@clauses("MQTT-4.12.0-1 MQTT-4.12.0-4 MQTT-3.1.2-30")
def test_an_unknown_authentication_method_is_refused(stage):
    client = stage.client()
    ack = client.connect("a", authentication_method="SCRAM-SHA-1", authentication_data=b"x")
    assert ack.reason is Reason.BAD_AUTHENTICATION_METHOD
    client.expect_closed()


@clauses("MQTT-4.12.0-6 MQTT-4.12.0-7")
def test_an_auth_packet_without_a_method_in_connect_closes(stage):
    client = stage.client()
    assert client.connect("a").properties.authentication_method is None
    client.send_bytes(b"\xf0\x06\x18\x04\x15\x00\x01m")
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.15.1-1")
def test_an_auth_packet_with_reserved_flags_closes(stage):
    client = stage.connected("a")
    client.send_bytes(b"\xf1\x06\x18\x04\x15\x00\x01m")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-2.2.2-1")
def test_a_connect_without_a_property_length_closes(stage):
    client = stage.client()
    client.send_bytes(connect_bytes(version=5, properties=b"", payload=b""))
    expect_malformed(client)


@clauses("MQTT-3.1.4-1", v4="MQTT-3.1.4-1 MQTT-4.8.0-1")
def test_bytes_behind_the_last_field_of_connect_close(stage, version):
    client = stage.client(version)
    client.send_bytes(connect_bytes(payload=b"\x00\x01cXX", version=version))
    expect_malformed(client)


def test_a_client_over_the_connections_is_told_so(stages, version):
    stage = stages(limits=Limits(connections=1))
    first = stage.connected("first", version)
    second = stage.client(version)
    assert second.connect("second").reason is (Reason.SERVER_BUSY if version == 5 else Reason.SERVER_UNAVAILABLE)
    second.expect_closed()
    metrics = stage.broker.metrics
    assert (metrics.connects_limited, metrics.connects_refused, metrics.protocol_errors) == (1, 1, 0)
    stage.client(version)  # who is turned away takes nobody's place
    stage.until(lambda: metrics.connects_limited == 2)
    first.disconnect()
    stage.offline("first")
    stage.connected("second", version)


def test_a_client_over_the_rate_is_told_so(stages, version):
    stage = stages(limits=Limits(connects_per_second=1))
    now = stage.call(stage.broker.time)
    stage.inside.set_clock(lambda: now)
    stage.connected("first", version)
    second = stage.client(version)
    reason = Reason.CONNECTION_RATE_EXCEEDED if version == 5 else Reason.SERVER_UNAVAILABLE
    assert second.connect("second").reason is reason
    second.expect_closed()
    assert stage.broker.metrics.connects_limited == 1


def test_few_are_told_that_there_are_too_many_and_only_for_a_while(stages):
    stage = stages(limits=Limits(connections=1, connect_timeout_s=100.0))
    now = stage.call(stage.broker.time)
    stage.inside.set_clock(lambda: now)
    stage.connected("first")
    silent = [stage.client() for _ in range(100)]
    stage.until(lambda: stage.inside.pending == 100)
    stage.client().expect_closed()
    assert stage.broker.metrics.connects_limited == 101
    stage.call(lambda: stage.inside.sweep_pending(1))
    for one in silent:
        one.expect_closed()
    assert (stage.inside.pending, stage.broker.metrics.connect_timeouts) == (0, 0)
    stage.client().expect_closed()  # and no more than so many a second
    stage.inside.set_clock(lambda: now + 2)
    assert stage.client().connect("second").reason is Reason.SERVER_BUSY


@clauses("MQTT-3.1.2-24")
def test_a_small_packet_size_leaves_out_what_connack_can_do_without(stage):
    whole = stage.client().connect("c", maximum_packet_size=16, request_response_information=0).properties
    assert whole.topic_alias_maximum
    client = stage.client()
    less = client.connect("c", maximum_packet_size=13, request_response_information=1).properties
    assert (less.topic_alias_maximum, less.response_information) == (None, None)
    assert (less.receive_maximum, less.maximum_packet_size) == (whole.receive_maximum, whole.maximum_packet_size)
    client.expect_nothing()


@clauses("MQTT-3.1.2-24")
@pytest.mark.parametrize("size", [1, 4, 5, 12])
def test_a_packet_size_too_small_for_a_connack_is_refused(stage, size):
    kept = stage.connected("c", clean_start=False, expiry=100)
    client = stage.client()
    properties = Properties(maximum_packet_size=size)
    client.send(Connect(5, "c", True, will=Will("w", b"x"), properties=properties), Pingreq())
    if size >= 5:
        assert client.expect(Connack).reason is Reason.PACKET_TOO_LARGE
    client.expect_closed()
    assert (stage.broker.metrics.protocol_errors, stage.broker.metrics.wills) == (1, 0)
    kept.expect_nothing()  # nor is the session taken over


def test_a_connection_that_never_says_connect_is_closed_even_if_it_dribbles(stages):
    stage = stages(limits=Limits(connect_timeout_s=0.0))
    client = stage.client()
    client.send_bytes(encode(Connect(5, "slow", properties=Properties()), 5)[:3])
    client.expect_closed()
    assert stage.broker.metrics.connect_timeouts == 1


def test_the_user_properties_of_a_connect_are_not_held(stage):
    many = tuple((f"key {number}", "value") for number in range(1000))
    stage.connected("c", user_properties=many)
    kept = stage.call(lambda: stage.inside.connect_packet("c"))
    assert (kept.client_id, kept.properties.user_properties) == ("c", ())
