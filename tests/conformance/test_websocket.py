"""MQTT over WebSocket (section 6), frame by frame."""

import base64
import os
import socket
from contextlib import ExitStack

import pytest
from tests.conformance.clause import clauses
from tests.listening import opened

from everlog.broker import Listener
from everlog.mqtt import Connect, Pingreq, Publish, Subscribe, Subscription, encode

BINARY, TEXT, CLOSE = 0x82, 0x81, 0x88


class Peer:
    """A WebSocket client of a few lines."""

    def __init__(self, port: int, offers: str | None = "mqtt") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        lines = [
            "GET /mqtt HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            *([] if offers is None else [f"Sec-WebSocket-Protocol: {offers}"]),
        ]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        self.status, *self.fields = head.decode().split("\r\n")

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the connection has ended"
        self.data += data

    def send(self, payload: bytes, first: int = BINARY) -> None:
        assert len(payload) < 126
        self.socket.sendall(bytes((first, 0x80 | len(payload))) + bytes(4) + payload)

    def receive(self) -> tuple[int, bytes]:
        first, size = self._take(2)
        if size > 125:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return first, self._take(size)

    def _take(self, size: int) -> bytes:
        while len(self.data) < size:
            self._more()
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def bytes(self, count: int) -> bytes:
        """The payload of so many binary frames' bytes."""
        found = b""
        while len(found) < count:
            first, payload = self.receive()
            assert first == BINARY
            found += payload
        return found


@pytest.fixture
def dial(stage):
    """Makes clients of a listener, and closes them."""
    with ExitStack() as stack:
        found = stack.enter_context(opened(stage.running, Listener("127.0.0.1", 0, "ws")))

        def make(*offers):
            peer = Peer(found.addresses()[0].port, *offers)
            stack.callback(peer.socket.close)
            return peer

        yield make


@clauses("MQTT-6.0.0-1 MQTT-6.0.0-3 MQTT-6.0.0-4", v4="MQTT-6.0.0-1 MQTT-6.0.0-3 MQTT-6.0.0-4")
def test_the_subprotocol_is_mqtt_and_frames_are_binary(dial, version):
    peer = dial("other, mqtt")
    assert "101" in peer.status
    assert "Sec-WebSocket-Protocol: mqtt" in peer.fields
    peer.send(encode(Connect(version, "c"), version))
    first, connack = peer.receive()
    assert (first, connack[0]) == (BINARY, 0x20)


@clauses("MQTT-6.0.0-3", v4="MQTT-6.0.0-3")
@pytest.mark.parametrize("offers", [None, "other"])
def test_a_client_that_does_not_offer_mqtt_is_refused(dial, offers):
    assert "400" in dial(offers).status


@clauses("MQTT-6.0.0-1", v4="MQTT-6.0.0-1")
def test_a_frame_that_is_not_binary_closes(dial, version):
    peer = dial()
    peer.send(encode(Connect(version, "c"), version), TEXT)
    first, payload = peer.receive()
    assert first == CLOSE
    assert int.from_bytes(payload[:2], "big") == 1003


@clauses("MQTT-6.0.0-2", v4="MQTT-6.0.0-2")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_packets_need_not_be_aligned_with_frames(dial, version, size):
    packets = (
        Connect(version, "c"),
        Subscribe(1, (Subscription("a"),)),
        Publish("a", b"1"),
        Publish("a", b"2"),
        Pingreq(),
    )
    stream = b"".join(encode(packet, version) for packet in packets)
    peer = dial()
    for at in range(0, len(stream), size):
        peer.send(stream[at : at + size])
    answers = [b"\xd0\x00", *(encode(Publish("a", payload), version) for payload in (b"1", b"2"))]
    found = b""
    while not all(answer in found for answer in answers):
        found += peer.receive()[1]


@clauses("MQTT-6.0.0-1", v4="MQTT-6.0.0-1")
def test_large_messages_come_in_frames_too(dial, stage, version):
    peer = dial()
    peer.send(encode(Connect(version, "c"), version))
    peer.receive()
    peer.send(encode(Subscribe(1, (Subscription("a"),)), version))
    peer.receive()
    publisher = stage.connected("publisher")
    payloads = [bytes([n]) * 20_000 for n in range(4)]
    for payload in payloads:
        publisher.publish("a", payload)
    expected = b"".join(encode(Publish("a", payload), version) for payload in payloads)
    assert peer.bytes(len(expected)) == expected
