"""A client's side of MQTT without I/O: bytes in, events out, packets to bytes.

The session outlives its connections: `start` begins one, and once the server has accepted it, what is in flight is sent
again. The caller moves the bytes, waits, and pings when it is time. A message that arrives is acknowledged when the
caller says that it has it, so what was not handled is sent again.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from everlog.base import AckRun, MessageColumns, PeerError, PublishRun, TopicTable, Unavailable, UsageError
from everlog.mqtt.codec import encode
from everlog.mqtt.inbound import Decoder
from everlog.mqtt.message import Message, unpack_messages
from everlog.mqtt.outbound import MAX_PACKET_BYTES, write_acks, write_answers
from everlog.mqtt.packet_type import FIXED_FLAGS, PacketType
from everlog.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from everlog.mqtt.properties import NO_PROPERTIES, Properties
from everlog.mqtt.reasons import Reason

WINDOW = 1000  # messages in flight, unless the caller or the server wants fewer
WINDOW_311 = 20  # in versions in which the server can't say; Mosquitto disconnects clients that send more
MAX_TOPICS = 100_000  # topic names remembered; beyond it all are forgotten

_PUBREL = PacketType.PUBREL << 4 | FIXED_FLAGS[PacketType.PUBREL][0]
_PUBCOMP = PacketType.PUBCOMP << 4
_FIRST_ERROR = int(Reason.UNSPECIFIED_ERROR)


class Received(NamedTuple):
    """Messages that arrived in a row, without duplicates at QoS 2; can be acknowledged until the next `receive`."""

    messages: list[Message]
    rows: list[int]
    run: PublishRun


class RefusedPublish(NamedTuple):
    """A message of ours that the server did not take."""

    packet: Publish
    reason: Reason


ClientEvent: TypeAlias = Connack | Suback | Unsuback | Disconnect | Received | RefusedPublish | PeerError


class Client:
    """One session and its present connection.

    With `manual_release` a QoS 2 message stays in flight after its PUBREC until `release` is called for it.
    """

    def __init__(self, connect: Connect, max_window: int = WINDOW, *, manual_release: bool = False) -> None:
        self.connect = connect
        self.version = connect.version
        self.connack: Connack | None = None
        self.window = self._max_window = max_window
        self.output_bytes = 0
        self._manual_release = manual_release
        # Our messages in flight, by packet id: in doubt, taken over by the server, and released.
        self._unanswered: dict[int, Publish] = {}
        self._taken: dict[int, None] = {}
        self._released: dict[int, None] = {}
        self._received: set[int] = set()  # QoS 2 messages of the server between PUBREC and PUBREL
        self._last_id = 0
        self._columns = MessageColumns(256)
        self._reset()

    def _reset(self) -> None:
        """Forget what belongs to one connection."""
        self._table = TopicTable()
        self._names: dict[int, bytes] = {}
        self._decoder = Decoder(self._columns, self._table, version=self.version, from_client=False)
        self._asked: dict[int, int] = {}  # SUBSCRIBE and UNSUBSCRIBE without an answer: how many filters each has
        self._resend: deque[Publish] = deque()
        self._output: list[bytes] = []
        self._is_silent = False
        self.output_bytes = 0
        self.connack = None

    # The connection.

    def start(self) -> None:
        """Begin a connection: write the CONNECT."""
        self._reset()
        self._send(encode(self.connect, self.version))

    def receive(self, data: bytes) -> list[ClientEvent]:
        """Return what the server's bytes bring; an error is the last event, and ends the connection."""
        self._is_silent = False
        if len(self._table) > MAX_TOPICS:
            self._table.reset()
            self._names.clear()
        events: list[ClientEvent] = []
        try:
            for event in self._decoder.feed(data):
                self._take(event, events)
        except PeerError as error:
            events.append(error)
        return events

    def take_output(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = b"".join(self._output)
        self._output.clear()
        self.output_bytes = 0
        return data

    @property
    def ping_interval_s(self) -> float:
        """How often to call `ping`; 0 for never."""
        asked = None if self.connack is None else self.connack.properties.server_keep_alive
        return (self.connect.keep_alive if asked is None else asked) / 2  # [MQTT-3.2.2-21] the server's counts

    def ping(self) -> None:
        """Write a PINGREQ; raises Unavailable if nothing has arrived since the last one."""
        if self._is_silent:
            raise Unavailable(f"the server has not answered a ping for {self.ping_interval_s:g} s")
        self._is_silent = True
        self._send(encode(Pingreq(), self.version))

    def disconnect(self, properties: Properties = NO_PROPERTIES) -> None:
        """Write a DISCONNECT."""
        self._send(encode(Disconnect(properties=properties), self.version))

    # Our messages.

    @property
    def unanswered(self) -> int:
        """How many messages have neither a PUBACK nor a PUBREC."""
        return len(self._unanswered)

    @property
    def in_flight(self) -> int:
        """How many messages are not acknowledged to the end."""
        return len(self._unanswered) + len(self._taken) + len(self._released)

    @property
    def has_room(self) -> bool:
        """Whether the server takes another message now."""
        return not self._resend and self.in_flight < self.window

    def next_packet_id(self) -> int:
        """Return a packet id that is not in use."""
        number = self._last_id % 65_535 + 1
        while number in self._unanswered or number in self._taken or number in self._released or number in self._asked:
            number = number % 65_535 + 1  # ends: the window is far below 65,535
        self._last_id = number
        return number

    def publish(self, packet: Publish) -> None:
        """Write a PUBLISH, when there is room for it; raises UsageError if the server said that it does not take it."""
        said = NO_PROPERTIES if self.connack is None else self.connack.properties
        if said.maximum_qos is not None and packet.qos > said.maximum_qos:  # [MQTT-3.2.2-11]
            raise UsageError(f"the server takes no QoS {packet.qos}", hint=f"publish with QoS {said.maximum_qos}")
        data = encode(packet, self.version)
        if len(data) > (said.maximum_packet_size or MAX_PACKET_BYTES):  # [MQTT-3.2.2-15]
            raise UsageError(f"a message on {packet.topic} is a packet of {len(data)} bytes: too large for the server")
        if packet.qos:
            self._unanswered[packet.packet_id] = packet
        self._send(data)

    def release(self, packet_ids: Iterable[int] | None = None) -> None:
        """Write a PUBREL for each packet id, or for all messages that the server has taken over."""
        ids = array("H", list(self._taken) if packet_ids is None else packet_ids)
        for packet_id in ids:
            self._taken.pop(packet_id, None)
            self._released[packet_id] = None
        self._send(write_acks(_PUBREL, ids.tobytes(), 0, len(ids)))

    # Subscriptions, and the server's messages.

    def subscribe(self, subscriptions: tuple[Subscription, ...], properties: Properties = NO_PROPERTIES) -> int:
        """Write a SUBSCRIBE; returns the packet id that its SUBACK will have."""
        return self._ask(Subscribe(self.next_packet_id(), subscriptions, properties), len(subscriptions))

    def unsubscribe(self, filters: tuple[str, ...], properties: Properties = NO_PROPERTIES) -> int:
        """Write an UNSUBSCRIBE; returns the packet id that its UNSUBACK will have."""
        return self._ask(Unsubscribe(self.next_packet_id(), filters, properties), len(filters))

    def acknowledge(self, received: Received, count: int) -> None:
        """Answer the first `count` messages, and the duplicates among them."""
        taken, run = received.messages[:count], received.run
        self._received.update(message.packet_id for message in taken if message.qos == 2)
        stop = received.rows[count] if count < len(received.rows) else run.stop
        self._send(write_answers(PublishRun(run.columns, run.start, stop, run.any_flags)))

    def _ask(self, packet: Subscribe | Unsubscribe, filters: int) -> int:
        self._asked[packet.packet_id] = filters
        self._send(encode(packet, self.version))
        return packet.packet_id

    # What arrives.

    def _take(self, event: Any, events: list[ClientEvent]) -> None:
        if isinstance(event, PeerError):
            raise event
        if self.connack is None:  # [MQTT-3.2.0-1] the server's first packet
            if not isinstance(event, Connack):
                raise _protocol_error("the server's first packet is not a CONNACK", "MQTT-3.2.0-1")
            self._accept(event)
            events.append(event)
        elif isinstance(event, PublishRun):
            events.append(self._new_messages(event))
        elif isinstance(event, AckRun):
            self._acknowledged(event, events)
        elif isinstance(event, Suback | Unsuback):
            asked = self._asked.pop(event.packet_id, None)
            if event.reasons and asked is not None and len(event.reasons) != asked:
                raise _protocol_error(f"{len(event.reasons)} answers for {asked} filters", "MQTT-3.8.4-6")
            events.append(event)
        elif isinstance(event, Disconnect):
            events.append(event)
        elif not isinstance(event, Pingresp):
            packet: Packet = event
            raise _protocol_error(f"an unexpected {packet.type.name}", "MQTT-4.13.1")

    def _accept(self, connack: Connack) -> None:
        """Take in what the server says about the connection, and send again what is in flight."""
        self.connack = connack
        if connack.reason.is_error:
            return
        limit = (connack.properties.receive_maximum or 65_535) if self.version == 5 else WINDOW_311
        self.window = min(self._max_window, limit)
        if not connack.session_present:  # [MQTT-3.2.2-5]
            for known in (self._received, self._taken, self._released):
                known.clear()
        self.release(list(self._released))
        self._resend.extend(self._unanswered.values())
        self._send_again()

    def _send_again(self) -> None:
        """[MQTT-4.4.0-1] with its packet id; a session that is gone does not know the message: no duplicate there."""
        assert self.connack is not None
        while self._resend and self.in_flight - len(self._resend) < self.window:
            packet = self._resend.popleft()
            if packet.packet_id in self._unanswered:
                self.publish(replace(packet, dup=self.connack.session_present))

    def _new_messages(self, run: PublishRun) -> Received:
        received = Received([], [], run)
        for row, message in enumerate(unpack_messages(run, self._table, self._names), run.start):
            if message.qos != 2 or message.packet_id not in self._received:  # [MQTT-4.3.3-10]
                received.messages.append(message)
                received.rows.append(row)
        return received

    def _acknowledged(self, run: AckRun, events: list[ClientEvent]) -> None:
        ids = memoryview(run.ids).cast("H")
        if run.packet_type == PacketType.PUBREL:
            self._received.difference_update(ids)
            self._send(write_acks(_PUBCOMP, run.ids, 0, len(ids)))
        elif run.packet_type == PacketType.PUBCOMP:  # whatever its reason: the server had taken the message
            for packet_id in ids:
                self._released.pop(packet_id, None)
        else:
            self._answered(1 if run.packet_type == PacketType.PUBACK else 2, ids, run.reasons, events)
        self._send_again()

    def _answered(self, qos: int, ids: memoryview, reasons: bytes, events: list[ClientEvent]) -> None:
        taken = []
        for packet_id, code in zip(ids, reasons, strict=True):
            packet = self._unanswered.get(packet_id)
            if packet is None or packet.qos != qos:
                continue  # not one that we wait for
            del self._unanswered[packet_id]
            if code >= _FIRST_ERROR:
                events.append(RefusedPublish(packet, Reason(code)))
            elif qos == 2:
                taken.append(packet_id)
        self._taken.update(dict.fromkeys(taken))
        if taken and not self._manual_release:
            self.release(taken)

    def _send(self, data: bytes) -> None:
        if data:
            self._output.append(data)
            self.output_bytes += len(data)


def _protocol_error(message: str, clause: str) -> PeerError:
    return PeerError(Reason.PROTOCOL_ERROR, message, clause=clause)
