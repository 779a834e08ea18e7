"""The byte stream: packets in any pieces, packets that are none, PINGREQ and DISCONNECT."""

import random

import pytest
from tests.conformance.clause import clauses

from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    encode,
)


def opening(version):
    """CONNECT, SUBSCRIBE and PUBLISHes as one string of bytes."""
    packets = [
        Connect(version, "c"),
        Subscribe(1, (Subscription("a/#", 2),)),
        Publish("a", b"0", 0),
        Publish("a/b", b"1" * 200, 1, packet_id=2),
        Publish("a/b", b"2", 2, packet_id=3),
        Pingreq(),
    ]
    return b"".join(encode(packet, version) for packet in packets)


def check_opening(client):
    assert client.expect(Connack).reason is Reason.SUCCESS
    assert client.expect(Suback).reasons == (Reason.GRANTED_QOS_2,)
    assert client.answer(Puback).packet_id == 2
    assert client.answer(Pubrec).packet_id == 3
    client.answer(Pingresp)
    assert [one[:1] for one in client.payloads(3)] == ["0", "1", "2"]


@clauses("MQTT-3.1.4-5 MQTT-3.2.0-1 MQTT-4.2-1", v4="MQTT-3.1.4-4 MQTT-3.2.0-1")
def test_connect_subscribe_and_publish_in_one_segment(stage, version):
    client = stage.client(version)
    client.send_bytes(opening(version))
    check_opening(client)


@clauses("MQTT-4.2-1")
def test_a_byte_at_a_time(stage, version):
    client = stage.client(version)
    for byte in opening(version):
        client.send_bytes(bytes((byte,)))
    check_opening(client)


@clauses("MQTT-4.2-1")
@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_size(stage, version, seed):
    chance = random.Random(seed)
    client = stage.client(version)
    data = opening(version)
    while data:
        size = chance.choice((1, 2, 3, 5, 50))
        client.send_bytes(data[:size])
        data = data[size:]
    check_opening(client)


@clauses("MQTT-4.2-1")
def test_large_messages_of_many_clients_in_pieces_that_mix(stage, version):
    chance = random.Random(7)
    watcher = stage.connected("w", version)
    watcher.subscribe("a/#", qos=0)
    clients, streams, sent = [], [], []
    for number, size in enumerate((1_000, 100_000, 150_000, 700_000)):
        payloads = [str(number * 10 + k) * (size // 2) for k in range(1, 4)]
        packets = [Publish(f"a/{number}", one.encode(), 1, packet_id=k + 1) for k, one in enumerate(payloads)]
        clients.append(stage.connected(f"c{number}", version))
        streams.append(b"".join(encode(packet, version) for packet in packets))
        sent.append(payloads)
    while any(streams):
        number = chance.choice([k for k, stream in enumerate(streams) if stream])
        size = chance.choice((1, 100, 20_000, 60_000))
        clients[number].send_bytes(streams[number][:size])
        streams[number] = streams[number][size:]
    for client in clients:
        assert [client.expect(Puback).packet_id for _ in range(3)] == [1, 2, 3]
    got = [watcher.expect(Publish) for _ in range(12)]
    for number, payloads in enumerate(sent):
        assert [one.payload.decode() for one in got if one.topic == f"a/{number}"] == payloads
    assert stage.inside.unfinished_bytes == 0


@clauses("MQTT-3.12.4-1", v4="MQTT-3.12.4-1")
def test_every_pingreq_is_answered(stage, version):
    client = stage.connected("c", version)
    client.send(*[Pingreq()] * 20)
    for _ in range(20):
        client.expect(Pingresp)


@clauses("MQTT-3.14.4-1 MQTT-3.14.4-2", v4="MQTT-3.14.4-1 MQTT-3.14.4-2")
def test_nothing_behind_a_disconnect_is_processed(stage, version):
    watcher = stage.connected("w", version)
    watcher.subscribe("#")
    client = stage.connected("c", version)
    client.send(Publish("a", b"before"), Disconnect(), Publish("a", b"behind"), Pingreq())
    client.expect_closed()
    assert watcher.payloads(1) == ["before"]
    watcher.expect_nothing()


@clauses("MQTT-3.14.1-1 MQTT-2.1.3-1", v4="MQTT-3.14.1-1 MQTT-2.2.2-2")
def test_reserved_flags_of_disconnect_close(stage, version):
    client = stage.connected("c", version)
    client.send_bytes(b"\xe1\x00")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-2.1.3-1 MQTT-4.13.1-1", v4="MQTT-2.2.2-1 MQTT-2.2.2-2 MQTT-4.8.0-1")
@pytest.mark.parametrize("data", [b"\xc1\x00", b"\x41\x02\x00\x01", b"\x53\x02\x00\x01", b"\x74\x02\x00\x01"])
def test_reserved_flags_of_any_packet_close(stage, version, data):
    client = stage.connected("c", version)
    client.send_bytes(data)
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-4.13.1-1 MQTT-3.14.2-1", v4="MQTT-4.8.0-1")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00", Reason.MALFORMED_PACKET),  # packet type 0
        (b"\x20\x02\x00\x00", Reason.PROTOCOL_ERROR),  # CONNACK from a client
        (b"\x90\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),  # SUBACK
        (b"\xb0\x02\x00\x01", Reason.PROTOCOL_ERROR),  # UNSUBACK
        (b"\xd0\x00", Reason.PROTOCOL_ERROR),  # PINGRESP
        (b"\xc0\x01\x00", Reason.MALFORMED_PACKET),  # PINGREQ with a body
        (b"\x40\x01\x00", Reason.MALFORMED_PACKET),  # half a PUBACK
        (b"\x40\x02\x00\x00", Reason.PROTOCOL_ERROR),  # a PUBACK for packet id 0
        (b"\x62\x00", Reason.MALFORMED_PACKET),  # an empty PUBREL
        (b"\x30\x00", Reason.MALFORMED_PACKET),  # an empty PUBLISH
        (b"\x30\x02\x00\x05", Reason.MALFORMED_PACKET),  # a topic longer than its packet
        (b"\x32\x03\x00\x01a", Reason.MALFORMED_PACKET),  # no packet id
        (b"\x82\x04\x00\x01\x00\x09", Reason.MALFORMED_PACKET),  # a filter longer than its packet
        (b"\xc0\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),  # a remaining length of five bytes
    ],
)
def test_what_is_no_packet_closes(stage, version, data, reason):
    client = stage.connected("c", version)
    client.send_bytes(data)
    client.expect_closed(reason)
    stage.until(lambda: stage.broker.metrics.protocol_errors == 1)


@clauses("MQTT-1.5.5-1")
def test_a_remaining_length_in_too_many_bytes_closes(stage):
    client = stage.connected("c")
    client.send_bytes(b"\xc0\x80\x00")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.4.2-1 MQTT-3.5.2-1 MQTT-3.6.2-1 MQTT-3.7.2-1 MQTT-3.14.2-1")
@pytest.mark.parametrize(
    "data",
    [
        b"\x40\x03\x00\x01\x01",
        b"\x50\x03\x00\x01\x92",
        b"\x62\x03\x00\x01\x10",
        b"\x70\x03\x00\x01\x87",
        b"\xe0\x01\x8b",
    ],
)
def test_reason_codes_that_a_packet_does_not_have_close(stage, data):
    client = stage.connected("c")
    client.send_bytes(data)
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.14.0-1")
def test_no_disconnect_before_a_connack(stage):
    client = stage.client()
    client.send_bytes(b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00")
    client.expect(Connack)
    client.expect_closed()


@clauses("MQTT-3.14.2-2 MQTT-3.14.2-3 MQTT-3.14.2-4")
def test_a_servers_disconnect_has_a_reason_in_words_and_nothing_else(stage):
    client = stage.connected("c")
    client.send_bytes(b"\x00\x00")
    end = client.expect(Disconnect)
    assert end.reason is Reason.MALFORMED_PACKET
    assert end.properties == Properties(reason_string="packet type 0 [MQTT-2.1.2]")
    client.expect_closed()


@clauses("MQTT-4.13.2-1")
def test_a_stopping_server_says_so(stages):
    stage = stages()
    client = stage.connected("c")
    old = stage.connected("o", 4)
    stage.stop()
    assert client.expect(Disconnect).reason is Reason.SERVER_SHUTTING_DOWN
    client.expect_closed()
    old.expect_closed()


def test_garbage_costs_a_peer_its_connection_and_nothing_else(stage):
    chance = random.Random(7)
    witness = stage.connected("w")
    witness.subscribe("#")
    for number in range(60):
        client = stage.client(5)
        if number % 2:
            client.connect(f"g{number}")
        client.socket.settimeout(5)
        try:
            client.send_bytes(chance.randbytes(chance.randrange(1, 3000)))
            client.close()
        except OSError:
            client.close()
    stage.until(lambda: len(stage.inside.connections) == 1 and stage.inside.pending == 0)
    stage.connected("p").publish("end", "x")
    while witness.message().topic != "end":
        pass


def test_a_client_that_sends_half_a_packet_and_goes_leaves_nothing(stage):
    client = stage.connected("c")
    client.send_bytes(b"\x30\x20\x00\x01a")
    client.close()
    stage.until(lambda: not stage.inside.sessions and not stage.inside.connections)
