"""One client's connection: bytes to events, events to what the broker does, and what it answers.

An asyncio protocol that reads into the broker's one shared buffer. Per packet work happens only for control packets;
a run of PUBLISHes or of acks is one event. Owned by the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from everlog.base import AckRun, PeerError, PublishRun, UsageError
from everlog.broker.detach import detached
from everlog.broker.partition import count_qos_2, drop_known, drop_reserved, forget_ids
from everlog.broker.refusal import refuse
from everlog.mqtt import (
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Event,
    Packet,
    PacketType,
    Pingresp,
    Properties,
    Pubcomp,
    Reason,
    State,
    Step,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
    next_state,
    return_code,
    step_of,
    write_acks,
    write_answers,
)
from everlog.sessions import Session

if TYPE_CHECKING:
    from everlog.broker.broker import Broker

_PINGRESP = encode(Pingresp(), 4)
_QOS_2 = 0x04
_RETAIN = 0x01
_UNDECIDED = (State.CONNECTING, State.AUTHENTICATING)


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    __slots__ = (
        "_paused",
        "_waiting",
        "allowed",
        "broker",
        "client_id",
        "closing_reason",
        "connect",
        "decoder",
        "held",
        "is_open",
        "open_qos_1",
        "open_qos_2",
        "keep_alive_s",
        "last_seen",
        "peer",
        "session",
        "state",
        "topics_made",
        "transport",
        "user",
        "will",
    )

    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.decoder = Decoder(
            broker.columns, broker.table, broker.limits.packet_bytes, broker.limits.topic_aliases
        )
        self.state = State.WAITING
        self.transport: asyncio.Transport | None = None
        self.session: Session | None = None
        self.connect: Connect | None = None
        self.client_id = ""
        self.user: str | None = None
        self.will: Will | None = None
        self.held = 0
        self.is_open = False  # the client may send runs: as `state` says, without a look into the table
        self.open_qos_1 = 0  # messages of the client not yet answered
        self.open_qos_2 = 0  # and not yet released
        self.allowed: dict[int, bool] = {}
        self.topics_made = 0
        self.keep_alive_s = 0.0
        self.last_seen = 0.0
        self.peer = ""
        self.closing_reason = ""
        self._paused = False
        self._waiting: list[object] | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected; it has a while to say CONNECT."""
        self.transport = wire = cast(asyncio.Transport, transport)
        self.last_seen = self.broker.time()
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "local")
        wire.set_write_buffer_limits(self.broker.limits.output_bytes)
        refusal = self.broker.admit(self)
        if refusal is not None:
            self.close(refusal, "refused")

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer that all connections share: what is read is used up before the next read."""
        return self.broker.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived in the shared buffer."""
        self._receive(self.broker.buffer, nbytes)

    def receive(self, data: bytes) -> None:
        """Bytes have arrived by another way, such as a WebSocket."""
        self._receive(data, len(data))

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to: leave its messages where they are."""
        if self.session is not None:
            self.session.ready = False

    def resume_writing(self) -> None:
        """The client has caught up with what was sent."""
        if self.session is not None and self.state is not State.CLOSING:
            self.session.ready = True
            self.broker.router.pump(self.session)

    def eof_received(self) -> bool | None:
        """The peer sends no more: that ends the connection."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, in whichever way."""
        self.state = State.CLOSING
        self.is_open = False
        self.broker.lost(self)
        self.transport = None

    # What the rest of the broker calls

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is gone."""
        if self.transport is not None and self.state is not State.CLOSING:
            self.transport.write(data)

    def answer(self, data: bytes, count: int) -> None:
        """Send answers that had to wait for a commit; `count` of them end a QoS 1 message."""
        self.open_qos_1 -= count
        if self.transport is not None and self.state is not State.CLOSING:
            self.transport.write(data)

    def send(self, packet: Packet) -> None:
        """Send a control packet, unless it is too large for the client."""
        data = encode(packet, self.decoder.version or 4)
        limit = self.connect.properties.maximum_packet_size if self.connect is not None else None
        if limit is None or len(data) <= limit:  # [MQTT-3.1.2-24]
            self.write(data)

    def close(self, reason: int, why: str, *, keep_will: bool = True) -> None:
        """End the connection, telling the client why where its version can."""
        if self.state is State.CLOSING or self.transport is None:
            return
        self.closing_reason = why
        if self.state in (State.WAITING, State.CONNECTING, State.AUTHENTICATING):
            self._refuse(reason)
        elif self.decoder.version == 5 and reason:
            self.send(Disconnect(Reason(reason)))  # [MQTT-4.13.1-1]
        if not keep_will:
            self.will = None
        self.state = next_state(self.state, Event.CLOSE)
        self.is_open = False
        self.transport.close()

    def pause_reading(self) -> None:
        """Too much is under way: let the peer wait."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The broker can take more."""
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def opened(self, session: Session, session_present: bool, properties: Properties) -> None:
        """The broker accepts the client: CONNACK goes out, and what the client sent meanwhile is taken."""
        self.session = session
        self.state = next_state(self.state, Event.ACCEPT)
        self.is_open = True
        self.send(Connack(session_present, Reason.SUCCESS, properties))
        waiting, self._waiting = self._waiting, None
        if waiting:
            self._handle(waiting)
        self.resume_reading()

    # Events

    def _receive(self, data: bytes | bytearray, size: int) -> None:
        broker = self.broker
        self.last_seen = broker.time()
        table = broker.table
        known = table.count
        events = self.decoder.feed(data, size)
        if table.count != known and not self._new_topics(known):
            return
        if self._waiting is not None:
            self._waiting.extend(detached(event) for event in events)
        else:
            self._handle(events)
        if broker.router.held_bytes > broker.limits.inflight_bytes:
            broker.hold_back(self)
        if table.count > broker.limits.topics:
            broker.forget_topics()

    def _handle(self, events: list[Any]) -> None:
        try:
            for place, event in enumerate(events):
                if self.is_open:
                    kind = type(event)
                    if kind is PublishRun:
                        self._published(event)
                        continue
                    if kind is AckRun:
                        self._acked(event)
                        continue
                if self.state is State.CLOSING:
                    return
                self._dispatch(event)
                if self.state in _UNDECIDED and self._waiting is None:
                    self._waiting = [detached(later) for later in events[place + 1 :]]
                    self.pause_reading()
                    return
        except PeerError as error:
            self.broker.metrics.protocol_errors += 1
            self.close(error.reason, str(error))

    def _dispatch(self, event: object) -> None:
        """What is not a run on an open connection: the state table says whether it may come now."""
        if isinstance(event, PeerError):
            raise event
        if isinstance(event, PublishRun | AckRun):
            step: Step = PacketType.PUBLISH if isinstance(event, PublishRun) else PacketType(event.packet_type)
            next_state(self.state, step)  # raises: only an open connection takes runs, and it has taken them already
            return
        packet: Any = event
        self.state = next_state(self.state, step_of(packet))
        _HANDLERS[packet.type](self, packet)

    def _published(self, run: PublishRun) -> None:
        broker, session = self.broker, self.session
        assert session is not None
        at_most_one = 0
        if run.any_flags & _QOS_2:
            broker.metrics.duplicates += drop_known(run, session.received)
            at_most_one = count_qos_2(run)
            self.open_qos_2 += at_most_one
        broker.metrics.refused += drop_reserved(run, broker.reserved)
        refused = broker.check_publishes(self, run) if broker.acl is not None else None
        if run.any_flags & _RETAIN:
            broker.retain(self, run)
        answers = write_answers(run)
        if refused:
            answers = refuse(answers, run, refused, self.decoder.version)
        count = len(answers) // 4 - at_most_one
        self.open_qos_1 += count
        if self.decoder.version == 5 and self.open_qos_1 + self.open_qos_2 > broker.limits.receive_maximum:
            raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unanswered messages", clause="MQTT-3.3.4-9")
        broker.router.publish(run, self, answers, count)

    def _acked(self, run: AckRun) -> None:
        session = self.session
        assert session is not None
        if run.packet_type == PacketType.PUBREL:
            self._released(run, session)
            return
        if session.inflight == 0 and run.packet_type != PacketType.PUBREC:
            return
        released = session.window.acked(run)
        if released:
            self.write(write_acks(0x62, released, 0, len(released) // 2))
        if session.waiting:
            self.broker.router.pump(session)

    def _released(self, run: AckRun, session: Session) -> None:
        """[MQTT-4.3.3-11] a PUBREL is answered with PUBCOMP, known or not; MQTT 5 says which."""
        known = forget_ids(run.ids, session.received)
        self.open_qos_2 -= known
        if known == len(run) or self.decoder.version != 5:
            self.write(write_acks(0x70, run.ids, 0, len(run)))
            return
        for k in range(len(run)):
            packet_id = int.from_bytes(run.ids[2 * k : 2 * k + 2], "little")
            self.send(Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))

    def _new_topics(self, known: int) -> bool:
        """Names that this chunk brought: within the limits, or the connection ends."""
        try:
            self.topics_made += self.broker.check_new_topics(known, self.topics_made)
        except PeerError as error:
            self.broker.metrics.protocol_errors += 1
            self.close(error.reason, str(error))
            return False
        return True

    def _connect(self, packet: Connect) -> None:
        self.connect = packet
        self.broker.connecting(self, packet)

    def _subscribe(self, packet: Subscribe) -> None:
        self.broker.subscribe(self, packet)

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        self.broker.unsubscribe(self, packet)

    def _ping(self, packet: object) -> None:
        self.write(_PINGRESP)

    def _auth(self, packet: Auth) -> None:
        self.broker.authenticate_on(self, packet)

    def _disconnect(self, packet: Disconnect) -> None:
        expiry = packet.properties.session_expiry_interval
        if expiry is not None and self.session is not None:
            if expiry and not self.session.durable:  # section 3.14.2.2.2
                raise PeerError(Reason.PROTOCOL_ERROR, "session expiry cannot begin at DISCONNECT", clause="MQTT-3.14.2-2")
            self.broker.set_expiry(self.session, expiry)
        if packet.reason == Reason.NORMAL_DISCONNECTION:  # [MQTT-3.14.4-3] the will is discarded
            self.will = None
        self.closing_reason = "client disconnected"
        self.is_open = False
        if self.transport is not None:
            self.transport.close()

    def _refuse(self, reason: int) -> None:
        """CONNACK with an error, where the protocol has one for it."""
        version = self.decoder.version or 4
        if version != 5 and return_code(Reason(reason)) is None:
            return
        try:
            data = encode(Connack(False, Reason(reason)), version)
        except UsageError:
            return
        if self.transport is not None:
            self.transport.write(data)


_HANDLERS: dict[PacketType, Callable[[Connection, Any], None]] = {
    PacketType.CONNECT: Connection._connect,
    PacketType.SUBSCRIBE: Connection._subscribe,
    PacketType.UNSUBSCRIBE: Connection._unsubscribe,
    PacketType.PINGREQ: Connection._ping,
    PacketType.AUTH: Connection._auth,
    PacketType.DISCONNECT: Connection._disconnect,
}
