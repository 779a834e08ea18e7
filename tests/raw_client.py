"""A client that says exactly what a test tells it to, and shows exactly what the broker answered.

A blocking socket with a deadline on every read. What must not come is shown by a PINGRESP that comes first: the broker
answers in order, so nothing was sent before it.
"""

import socket
import time
from collections import deque
from typing import Any, TypeVar

from everlog.mqtt import (
    NO_PROPERTIES,
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
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
    read_fixed_header,
)

DEADLINE_S = 5.0
P = TypeVar("P")


class Closed(Exception):
    """The broker has closed the connection."""


class RawClient:
    """One connection; `with RawClient(port, 5) as client:` closes it without a DISCONNECT at the end."""

    def __init__(self, port: int, version: int = 5, *, receive_buffer: int = 0, deadline_s: float = DEADLINE_S) -> None:
        self.version = version
        self._deadline_s = deadline_s
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(deadline_s)
        self.socket.connect(("127.0.0.1", port))
        self._data = bytearray()
        self._packets: deque[Packet] = deque()
        self._next_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection as a lost network does."""
        self.socket.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    # Sending

    def send_bytes(self, data: bytes) -> None:
        """Send these bytes as they are."""
        self.socket.sendall(data)

    def send(self, *packets: Packet) -> None:
        """Send packets, all in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def packet_id(self) -> int:
        """A packet id of the client's own, not used lately."""
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    # Receiving

    def receive(self) -> Packet:
        """The next packet; Closed when there is none to come."""
        deadline = time.monotonic() + self._deadline_s
        while not self._packets:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._data, f"the connection ended within a packet: {bytes(self._data)!r}"
                raise Closed
            self._data += data
            self._parse()
        return self._packets.popleft()

    def _parse(self) -> None:
        at = 0
        while (header := read_fixed_header(bytes(self._data[at : at + 5]), self.version)) is not None:
            first, length, size = header
            if len(self._data) - at < size + length:
                break
            body = bytes(self._data[at + size : at + size + length])
            at += size + length
            self._packets.append(decode(first, body, self.version, from_client=False))
        del self._data[:at]

    def expect(self, kind: type[P]) -> P:
        """The next packet, which is of this kind."""
        packet: Any = self.receive()
        assert isinstance(packet, kind), f"{packet} in place of a {kind.__name__}"
        return packet

    def answer(self, kind: type[P]) -> P:
        """The next packet that is no PUBLISH, which is of this kind; messages before it stay to be received."""
        aside = []
        while isinstance(packet := self.receive(), Publish):
            aside.append(packet)
        self._packets.extendleft(reversed(aside))
        found: Any = packet
        assert isinstance(found, kind), f"{packet} in place of a {kind.__name__}"
        return found

    def expect_closed(self, reason: Reason | None = None) -> None:
        """The connection ends with the next packet: an MQTT 5 client is told the reason, if one is given."""
        if reason is not None and self.version == 5:
            assert self.expect(Disconnect).reason is reason
        try:
            packet = self.receive()
        except Closed:
            return
        raise AssertionError(f"{packet} in place of the end of the connection")

    def expect_nothing(self) -> None:
        """Nothing has been sent to the client that it has not received."""
        self.send(Pingreq())
        packet = self.receive()
        assert isinstance(packet, Pingresp), f"{packet} where nothing was to come"

    # The usual exchanges

    def connect(
        self,
        client_id: str = "",
        clean_start: bool = True,
        *,
        keep_alive: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        expiry: int | None = None,
        **properties: Any,
    ) -> Connack:
        """CONNECT, and the broker's CONNACK; `expiry` is the session expiry interval of MQTT 5."""
        if expiry is not None and self.version == 5:
            properties["session_expiry_interval"] = expiry
        self.send(
            Connect(
                self.version,
                client_id,
                clean_start,
                keep_alive,
                will,
                user_name,
                password,
                Properties(**properties) if properties else NO_PROPERTIES,
            )
        )
        return self.expect(Connack)

    def subscribe(
        self, *filters: str | Subscription, qos: int = 0, identifier: int = 0, wishes: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Reason, ...]:
        """SUBSCRIBE, and the reasons of its SUBACK."""
        subscriptions = tuple(Subscription(one, qos) if isinstance(one, str) else one for one in filters)
        identifiers = (identifier,) if identifier else ()
        properties = Properties(subscription_identifiers=identifiers, user_properties=wishes)
        packet_id = self.packet_id()
        self.send(Subscribe(packet_id, subscriptions, properties))
        ack = self.answer(Suback)
        assert ack.packet_id == packet_id
        return ack.reasons

    def unsubscribe(self, *filters: str) -> tuple[Reason, ...]:
        """UNSUBSCRIBE, and the reasons of its UNSUBACK."""
        packet_id = self.packet_id()
        self.send(Unsubscribe(packet_id, filters))
        ack = self.answer(Unsuback)
        assert ack.packet_id == packet_id
        return ack.reasons

    def publish(
        self, topic: str, payload: bytes | str = b"", qos: int = 0, retain: bool = False, **properties: Any
    ) -> Reason:
        """PUBLISH with its whole exchange; the reason of its first answer. At QoS 0 a ping shows that it is taken."""
        raw = payload.encode() if isinstance(payload, str) else payload
        packet_id = self.packet_id() if qos else 0
        more = Properties(**properties) if properties else NO_PROPERTIES
        self.send(Publish(topic, raw, qos, retain, False, packet_id, more))
        if qos == 0:
            self.send(Pingreq())
            self.answer(Pingresp)
            return Reason.SUCCESS
        first: Any = self.answer(Puback if qos == 1 else Pubrec)
        assert first.packet_id == packet_id
        if qos == 2 and not first.reason.is_error:
            self.send(Pubrel(packet_id))
            assert self.answer(Pubcomp).packet_id == packet_id
        return Reason(first.reason)

    def message(self) -> Publish:
        """The next message, acknowledged as its QoS asks."""
        packet = self.expect(Publish)
        self.acknowledge(packet)
        return packet

    def acknowledge(self, packet: Publish) -> None:
        """The receiver's side of a QoS 1 or 2 exchange, to its end."""
        if packet.qos == 1:
            self.send(Puback(packet.packet_id))
        elif packet.qos == 2:
            self.send(Pubrec(packet.packet_id))
            assert self.answer(Pubrel).packet_id == packet.packet_id
            self.send(Pubcomp(packet.packet_id))

    def payloads(self, count: int) -> list[str]:
        """The payloads of the next messages, acknowledged."""
        return [self.message().payload.decode() for _ in range(count)]

    def disconnect(self, reason: Reason = Reason.NORMAL_DISCONNECTION, **properties: Any) -> None:
        """DISCONNECT; returns when the broker has closed the connection."""
        self.send(Disconnect(reason, Properties(**properties) if properties else NO_PROPERTIES))
        self.expect_closed()
        self.close()
