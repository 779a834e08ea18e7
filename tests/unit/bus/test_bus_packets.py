"""What buses write and read, on both twins: as the protocols have it, wherever reads are cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

from everlog.base import PeerError
from everlog.bus import Delivery
from everlog.bus.nats_subjects import to_nats
from everlog.mqtt import Pingresp, Properties, Publish, encode

twins = pytest.mark.parametrize("twin", TWINS, ids=repr)
SUBJECTS = st.sampled_from(["a", "everlog/p/0/w/x y", "response/me/r", "ü/" + "x" * 200])
REPLIES = st.sampled_from(["", "response/me/r"])
PAYLOADS = st.one_of(
    st.binary(max_size=30), st.sampled_from([bytes(120), bytes(16_380), bytes(70_000), bytes(600_000)])
)
MESSAGES = st.lists(st.builds(Delivery, SUBJECTS, PAYLOADS, REPLIES, st.sampled_from([b"", b"\1\2", bytes(99)])))


def as_packet(one: Any) -> bytes:
    properties = Properties(response_topic=one.reply or None, correlation_data=one.correlation or None)
    return encode(Publish(one.subject, one.payload, properties=properties), 5)


def of(twin: Twin, messages: list[Any]) -> list[Any]:
    return [twin.Delivery(one.subject, one.payload, one.reply, one.correlation) for one in messages]


def feed(arrived: Any, data: bytes) -> None:
    while data:
        with arrived.place() as room:
            size = min(len(room), len(data))
            room[:size] = data[:size]
            arrived.filled(size)
        data = data[size:]


@twins
@given(messages=MESSAGES)
def test_mqtt_messages_are_rendered_as_the_codec_does(twin: Twin, messages: list[Any]) -> None:
    output = twin.MqttOutput()
    assert output.render(of(twin, messages)) == b"".join(map(as_packet, messages))
    assert output.render([]) == b""


@twins
@given(messages=MESSAGES)
def test_nats_messages_are_rendered_in_a_row(twin: Twin, messages: list[Any]) -> None:
    expected = [b"PUB %b %d\r\n%b\r\n" % (to_nats(one.subject), len(one.payload), one.payload) for one in messages]
    assert twin.NatsOutput().render(of(twin, messages)) == b"".join(expected)


@twins
@given(messages=MESSAGES, cuts=st.lists(st.one_of(st.integers(1, 5000), st.integers(1, 600_000)), max_size=20))
def test_wherever_reads_are_cut_the_same_mqtt_messages_arrive(twin: Twin, messages: list[Any], cuts: list[int]) -> None:
    pong = encode(Pingresp(), 5)
    wire = b"".join(as_packet(one) + pong for one in messages)
    arrived = twin.MqttInput()
    for size in [*cuts, len(wire)]:
        feed(arrived, wire[:size])
        wire = wire[size:]
    assert arrived.deliveries == messages
    assert arrived.others == [pong] * len(messages)


@twins
def test_what_is_out_of_the_ordinary_is_left_to_the_session(twin: Twin) -> None:
    odd = [
        encode(Publish("a", b"x", qos=1, packet_id=3), 5),
        encode(Publish("a", b"x", retain=True), 5),
        b"\x30\x00",
        b"\x30\x03\x00\x00\x00",  # without a topic
        b"\x30\x04\x00\x05ab",  # a topic that is longer than its packet
        b"\x30\x04\x00\x01a\x7f",  # properties that are longer than it
        b"\x30\x04\x00\x01a\xff",
    ]
    arrived = twin.MqttInput()
    feed(arrived, b"".join(odd))
    assert arrived.others == odd
    assert arrived.deliveries == []
    with pytest.raises(PeerError):
        feed(twin.MqttInput(), b"\x30\xff\xff\xff\xff\x01")


@twins
def test_a_reply_goes_into_an_inbox_only(twin: Twin) -> None:
    arrived = twin.MqttInput()
    feed(arrived, as_packet(Delivery("a", b"", "evil/topic", b"1")))
    assert arrived.deliveries == [Delivery("a", b"", "", b"1")]


@twins
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_taken_or_refused(twin: Twin, chunks: list[bytes]) -> None:
    arrived = twin.MqttInput()
    try:
        for chunk in chunks:
            feed(arrived, chunk)
    except PeerError:
        return
