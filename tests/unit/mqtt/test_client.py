"""The client without I/O, against packets that a server would send."""

import pytest

from everlog.base import PeerError, Unavailable, UsageError
from everlog.mqtt import (
    Client,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Received,
    RefusedPublish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    decode,
    encode,
    read_fixed_header,
)
from everlog.mqtt.client import MAX_TOPICS, WINDOW_311

FILTERS = (Subscription("a/#", 1), Subscription("b", 2))


def opened(version: int = 5, *, window: int = 10, manual: bool = False, **said: object) -> Client:
    client = Client(Connect(version, "c", keep_alive=10), window, manual_release=manual)
    reconnect(client, **said)
    return client


def reconnect(client: Client, session_present: bool = False, **said: object) -> list[Packet]:
    """Open a connection; what the client sends behind its CONNECT."""
    client.start()
    assert sent(client) == [client.connect]
    properties = Properties(**said) if said else Properties()  # type: ignore[arg-type]
    tell(client, Connack(session_present, Reason.SUCCESS, properties))
    return sent(client)


def tell(client: Client, *packets: Packet) -> list[object]:
    return list(client.receive(b"".join(encode(packet, client.version) for packet in packets)))


def sent(client: Client) -> list[Packet]:
    """The packets that the client wants to send."""
    data, packets = client.take_output(), []
    assert client.output_bytes == 0
    while data:
        head = read_fixed_header(data, client.version)
        assert head is not None
        first, size, before = head
        packets.append(decode(first, data[before : before + size], client.version))
        data = data[before + size :]
    return packets


def publish(client: Client, count: int = 1, qos: int = 1) -> list[Publish]:
    packets = [Publish(f"t/{n}", b"x", qos, packet_id=client.next_packet_id() if qos else 0) for n in range(count)]
    for packet in packets:
        client.publish(packet)
    return packets


def test_a_connection_begins_with_a_connect_and_a_connack() -> None:
    client = Client(Connect(5, "me"))
    client.start()
    assert sent(client) == [Connect(5, "me")]
    assert client.connack is None
    answer = Connack(False, Reason.NOT_AUTHORIZED)
    assert tell(client, answer) == [answer]
    assert client.connack == answer


@pytest.mark.parametrize("packet", [Puback(1), Pingresp(), Publish("t", b"")])
def test_anything_before_the_connack_is_the_servers_error(packet: Packet) -> None:
    client = Client(Connect(5, "me"))
    client.start()
    (error,) = tell(client, packet)
    assert isinstance(error, PeerError)
    assert error.clause == "MQTT-3.2.0-1"


def test_a_second_connack_is_the_servers_error() -> None:
    (error,) = tell(opened(), Connack(False, Reason.SUCCESS))
    assert isinstance(error, PeerError)
    assert "CONNACK" in error.message


def test_what_came_before_an_error_counts_and_nothing_behind_it() -> None:
    client = opened()
    (packet,) = publish(client)
    good, bad = encode(Puback(packet.packet_id), 5), b"\x00\x00"
    (error,) = client.receive(good + bad)
    assert isinstance(error, PeerError)
    assert client.in_flight == 0
    assert client.receive(good) == []


def test_bytes_may_come_one_by_one() -> None:
    client = opened()
    data = encode(Publish("t", b"xyz", 1, packet_id=4), 5)
    (received,) = (event for byte in data for event in client.receive(bytes([byte])))
    assert isinstance(received, Received)
    assert received.messages[0].payload == b"xyz"


def test_qos_0_is_never_in_flight() -> None:
    client = opened()
    assert publish(client, 2, 0) == sent(client)
    assert client.in_flight == 0


def test_qos_1_is_in_flight_until_its_puback() -> None:
    client = opened()
    one, two = publish(client, 2)
    assert sent(client) == [one, two]
    assert tell(client, Puback(two.packet_id)) == []
    assert (client.in_flight, client.unanswered) == (1, 1)
    tell(client, Pubrec(one.packet_id), Puback(99))  # the wrong answer, and one to nothing
    assert client.in_flight == 1
    tell(client, Puback(one.packet_id, Reason.NO_MATCHING_SUBSCRIBERS))
    assert client.in_flight == 0


def test_qos_2_is_released_and_in_flight_until_its_pubcomp() -> None:
    client = opened()
    one, two = publish(client, 2, 2)
    sent(client)
    tell(client, Pubrec(one.packet_id), Pubrec(two.packet_id))
    assert sent(client) == [Pubrel(one.packet_id), Pubrel(two.packet_id)]
    assert (client.in_flight, client.unanswered) == (2, 0)
    tell(client, Pubcomp(one.packet_id), Pubcomp(two.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
    assert client.in_flight == 0


def test_a_refused_message_is_told_and_no_longer_in_flight() -> None:
    client = opened()
    one, two = publish(client, 1) + publish(client, 1, 2)
    events = tell(client, Puback(one.packet_id, Reason.QUOTA_EXCEEDED), Pubrec(two.packet_id, Reason.NOT_AUTHORIZED))
    assert events == [RefusedPublish(one, Reason.QUOTA_EXCEEDED), RefusedPublish(two, Reason.NOT_AUTHORIZED)]
    assert client.in_flight == 0


def test_release_can_be_left_to_the_caller() -> None:
    client = opened(manual=True)
    one, two = publish(client, 2, 2)
    sent(client)
    tell(client, Pubrec(one.packet_id))
    assert (sent(client), client.unanswered, client.in_flight) == ([], 1, 2)
    client.release()
    assert sent(client) == [Pubrel(one.packet_id)]
    client.release([500])  # a message that another process sent in this session
    assert sent(client) == [Pubrel(500)]
    tell(client, Pubcomp(500), Pubcomp(one.packet_id))
    assert client.in_flight == 1
    tell(client, Pubrec(two.packet_id))
    client.release()
    assert sent(client) == [Pubrel(two.packet_id)]


def test_room_ends_at_the_window_and_at_the_servers_receive_maximum() -> None:
    client = opened(window=3)
    publish(client, 2)
    assert client.has_room
    (packet,) = publish(client)
    assert not client.has_room
    tell(client, Puback(packet.packet_id))
    assert client.has_room
    assert opened(receive_maximum=2).window == 2
    assert opened(4, window=1000).window == WINDOW_311


def test_packet_ids_go_round_and_skip_those_in_use() -> None:
    client = opened(window=100_000)
    packets = publish(client, 3)
    assert [packet.packet_id for packet in packets] == [1, 2, 3]
    tell(client, Puback(2))
    assert client.subscribe(FILTERS) == 4
    ids = [client.next_packet_id() for _ in range(65_535)]
    assert set(range(1, 65_536)) - set(ids) == {1, 3, 4}


def test_what_the_server_does_not_take_is_not_sent() -> None:
    client = opened(maximum_qos=1, maximum_packet_size=30)
    with pytest.raises(UsageError, match="takes no QoS 2"):
        publish(client, 1, 2)
    with pytest.raises(UsageError, match="too large"):
        client.publish(Publish("t", b"x" * 30, 1, packet_id=1))
    assert (client.in_flight, client.take_output()) == (0, b"")


def test_a_message_is_acknowledged_when_the_caller_has_it() -> None:
    client = opened()
    packets = [Publish("t", b"%d" % qos, qos, packet_id=7 + qos if qos else 0) for qos in (0, 1, 2)]
    (received,) = tell(client, *packets)
    assert isinstance(received, Received)
    assert [(message.topic, message.payload, message.qos) for message in received.messages] == [
        (b"t", b"0", 0), (b"t", b"1", 1), (b"t", b"2", 2)
    ]  # fmt: skip
    assert sent(client) == []
    client.acknowledge(received, 2)
    assert sent(client) == [Puback(8)]
    client.acknowledge(received, 3)
    assert sent(client) == [Puback(8), Pubrec(9)]


def test_a_qos_2_message_is_received_once_until_it_is_released() -> None:
    client, packet = opened(), Publish("t", b"x", 2, packet_id=5)
    for again in (False, True):
        (received,) = tell(client, packet)
        assert isinstance(received, Received)
        assert len(received.messages) == (0 if again else 1)
        client.acknowledge(received, len(received.messages))
        assert sent(client) == [Pubrec(5)]
    tell(client, Pubrel(5))
    assert sent(client) == [Pubcomp(5)]
    (received,) = tell(client, packet)
    assert isinstance(received, Received)
    assert len(received.messages) == 1


def test_duplicates_behind_the_last_message_that_was_taken_are_not_answered() -> None:
    client = opened()
    (received,) = tell(client, Publish("t", b"x", 2, packet_id=5))
    assert isinstance(received, Received)
    client.acknowledge(received, 1)
    sent(client)
    (received,) = tell(client, Publish("t", b"y", 1, packet_id=6), Publish("t", b"x", 2, packet_id=5))
    assert isinstance(received, Received)
    client.acknowledge(received, 0)
    assert sent(client) == []
    client.acknowledge(received, 1)
    assert sent(client) == [Puback(6), Pubrec(5)]


def test_properties_are_decoded_when_asked_for() -> None:
    properties = Properties(content_type="text", user_properties=(("k", "v"),))
    (received,) = tell(opened(), Publish("t", b"", properties=properties), Publish("t", b""))
    assert isinstance(received, Received)
    one, two = received.messages
    assert (one.properties, two.properties) == (properties, Properties())
    assert one.with_user_properties([("x", "y")]).properties.user_properties == (("k", "v"), ("x", "y"))


@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_are_answered_by_their_packet_id(version: int) -> None:
    client = opened(version)
    number = client.subscribe(FILTERS)
    (packet,) = sent(client)
    assert isinstance(packet, Subscribe)
    assert packet.packet_id == number
    answer = Suback(number, (Reason.GRANTED_QOS_1, Reason.UNSPECIFIED_ERROR))
    assert tell(client, answer) == [answer]
    number = client.unsubscribe(("a/#",))
    assert sent(client) == [Unsubscribe(number, ("a/#",))]
    answers = (Reason.SUCCESS,) if version == 5 else ()
    assert tell(client, Unsuback(number, answers)) == [Unsuback(number, answers)]


def test_a_suback_with_too_few_reasons_is_the_servers_error() -> None:
    client = opened()
    (error,) = tell(client, Suback(client.subscribe(FILTERS), (Reason.SUCCESS,)))
    assert isinstance(error, PeerError)
    assert error.clause == "MQTT-3.8.4-6"


def test_pings_are_due_every_half_keep_alive_and_must_be_answered() -> None:
    client = opened()
    assert client.ping_interval_s == 5
    assert opened(server_keep_alive=4).ping_interval_s == 2
    client.ping()
    assert sent(client) == [Pingreq()]
    assert tell(client, Pingresp()) == []
    client.ping()
    with pytest.raises(Unavailable, match="not answered a ping for 5 s"):
        client.ping()


def test_a_disconnect_says_why() -> None:
    client = opened()
    packet = Disconnect(Reason.SERVER_SHUTTING_DOWN, Properties(reason_string="later"))
    data = encode(packet, 5)
    assert client.receive(data) == [packet]
    client.disconnect(Properties(session_expiry_interval=0))
    assert sent(client) == [Disconnect(properties=Properties(session_expiry_interval=0))]


def test_what_is_in_flight_is_sent_again_on_the_next_connection() -> None:
    client = opened()
    one, two, three = publish(client, 1) + publish(client, 2, 2)
    tell(client, Pubrec(two.packet_id))
    again = [Publish(packet.topic, b"x", packet.qos, dup=True, packet_id=packet.packet_id) for packet in (one, three)]
    assert reconnect(client, session_present=True) == [Pubrel(two.packet_id), *again]
    assert client.in_flight == 3


def test_a_server_that_forgot_the_session_gets_messages_anew() -> None:
    client = opened()
    one, two = publish(client, 2, 2)
    tell(client, Pubrec(one.packet_id))
    (received,) = tell(client, Publish("t", b"", 2, packet_id=9))
    assert isinstance(received, Received)
    client.acknowledge(received, 1)
    assert reconnect(client) == [two]  # the first is with the server for good
    assert client.in_flight == 1
    (received,) = tell(client, Publish("t", b"", 2, packet_id=9))
    assert isinstance(received, Received)
    assert len(received.messages) == 1


def test_a_server_that_takes_fewer_than_before_gets_the_rest_as_acks_come() -> None:
    client = opened(window=5)
    packets = publish(client, 5)
    assert reconnect(client, receive_maximum=2) == packets[:2]
    assert not client.has_room
    tell(client, Puback(packets[0].packet_id))
    assert sent(client) == [packets[2]]
    tell(client, *(Puback(packet.packet_id) for packet in packets[1:3]))
    assert sent(client) == packets[3:]
    tell(client, Puback(packets[3].packet_id))
    assert client.has_room
    assert client.in_flight == 1


def test_output_of_a_lost_connection_is_forgotten() -> None:
    client = opened()
    client.subscribe(FILTERS)
    publish(client, 1, 0)
    assert client.output_bytes > 0
    assert reconnect(client) == []


def test_topic_names_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TOPICS > 1000
    monkeypatch.setattr("everlog.mqtt.client.MAX_TOPICS", 3)
    client = opened()
    for number in range(20):
        (received,) = tell(client, Publish(f"t/{number}", b""))
        assert isinstance(received, Received)
        assert received.messages[0].topic == b"t/%d" % number
        assert len(client._names) <= 4
