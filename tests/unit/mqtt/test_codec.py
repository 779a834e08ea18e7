"""What encode leaves out for older versions, what it refuses to write, and how decode treats hostile sizes."""

import pytest

from everlog.base import PeerError, UsageError
from everlog.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Publish,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
)

SOME = Properties(user_properties=(("k", "v"),))
METHOD = Properties(authentication_method="SCRAM")


@pytest.mark.parametrize(
    ("packet", "encoded"),
    [
        (Connack(True, Reason.SUCCESS, SOME), "20020100"),
        (Connack(False, Reason.BANNED, SOME), "20020005"),
        (Connack(False, Reason.QUOTA_EXCEEDED), "20020003"),
        (Publish("a", b"x", properties=SOME), "300400016178"),
        (Puback(1, Reason.QUOTA_EXCEEDED, SOME), "40020001"),
        (Pubrel(1, Reason.PACKET_IDENTIFIER_NOT_FOUND), "62020001"),
        (Subscribe(1, (Subscription("a", 1, True, True, 2),), SOME), "8206000100016101"),
        (Suback(1, (Reason.GRANTED_QOS_2, Reason.NOT_AUTHORIZED), SOME), "900400010280"),
        (Unsuback(1, (Reason.NO_SUBSCRIPTION_EXISTED,), SOME), "b0020001"),
        (Disconnect(Reason.SERVER_SHUTTING_DOWN, SOME), "e000"),
    ],
)
def test_version_311_leaves_out_what_it_has_no_field_for(packet: Packet, encoded: str) -> None:
    assert encode(packet, 4).hex() == encoded
    assert encode(packet, 3).hex() == ("20020000" if encoded == "20020100" else encoded)


def test_connect_is_written_in_its_own_version() -> None:
    assert encode(Connect(4, "d"), 5) == encode(Connect(4, "d"), 4)


@pytest.mark.parametrize(
    "packet",
    [
        Connack(False, Reason.SESSION_TAKEN_OVER),
        Connack(True, Reason.NOT_AUTHORIZED),
        Connack(False, Reason.SUCCESS, Properties(topic_alias=1)),
        Connect(6, "d"),
        Connect(4, "d", password=b"x"),
        Connect(5, "d", keep_alive=65_536),
        Connect(5, "d", will=Will("w", b"", qos=3)),
        Connect(5, "d", will=Will("w", b"x" * 65_536)),
        Connect(5, "d", properties=Properties(receive_maximum=0)),
        Connect(5, "d", properties=Properties(receive_maximum=65_536)),
        Connect(5, "d", properties=Properties(request_problem_information=2)),
        Connect(5, "d", properties=Properties(session_expiry_interval=2**32)),
        Publish("a", b"", qos=1),
        Publish("a", b"", qos=3, packet_id=1),
        Publish("a", b"", properties=Properties(subscription_identifiers=(0,))),
        Publish("a", b"", properties=Properties(subscription_identifiers=(268_435_456,))),
        Puback(0),
        Puback(1, Reason.SESSION_TAKEN_OVER),
        Pubrel(1, Reason.QUOTA_EXCEEDED),
        Subscribe(1, ()),
        Subscribe(0, (Subscription("a"),)),
        Subscribe(1, (Subscription("a", 3),)),
        Subscribe(1, (Subscription("a", retain_handling=3),)),
        Suback(1, ()),
        Suback(1, (Reason.BANNED,)),
        Unsubscribe(1, ()),
        Unsuback(1, ()),
        Unsuback(1, (Reason.GRANTED_QOS_1,)),
        Disconnect(Reason.BANNED),
        Auth(Reason.CONTINUE_AUTHENTICATION),
        Auth(Reason.BANNED, METHOD),
    ],
)
def test_packet_that_the_specification_forbids_is_not_written(packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(packet, 5)


@pytest.mark.parametrize(
    "packet", [Auth(Reason.CONTINUE_AUTHENTICATION, METHOD), Connack(False, Reason.MALFORMED_PACKET)]
)
def test_packet_that_311_does_not_have_is_not_written(packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(packet, 4)


def test_reason_and_properties_of_an_ack_are_written_only_where_they_say_something() -> None:
    assert encode(Puback(7), 5).hex() == "40020007"
    assert encode(Puback(7, Reason.NO_MATCHING_SUBSCRIBERS), 5).hex() == "4003000710"
    assert encode(Puback(7, properties=Properties()), 5).hex() == "40020007"
    assert encode(Puback(7, properties=SOME), 5).hex() == "400b0007000726" + "00016b" + "000176"


def test_many_user_properties_keep_their_order_and_cost_linear_work() -> None:
    pairs = tuple((str(number), "") for number in range(20_000))
    packet = Publish("a", b"", properties=Properties(user_properties=pairs))
    data = encode(packet, 5)
    assert decode(data[0], data[4:], 5) == packet


def test_connect_decides_its_version_whatever_the_caller_says() -> None:
    data = encode(Connect(5, "d", properties=SOME), 5)
    for version in (0, 3, 4, 5):
        packet = decode(data[0], data[2:], version)
        assert isinstance(packet, Connect)
        assert packet.version == 5


def test_peer_error_tells_the_clause_to_a_reader_of_the_log() -> None:
    with pytest.raises(PeerError, match=r"a wildcard in a topic name \[MQTT-3.3.2-2\]"):
        decode(0x30, b"\x00\x01#", 4)
