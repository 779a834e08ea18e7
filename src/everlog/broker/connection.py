"""One client's connection: bytes to events, events to what the broker does, and what it answers.

An asyncio protocol that reads into the broker's one shared buffer. Per packet work happens only for control packets;
a run of PUBLISHes or of acks is one event. Owned by the event loop's thread.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from logging import WARNING
from typing import TYPE_CHECKING, Any, cast

from everlog.base import AckRun, EverlogError, PeerError, PublishRun, Unavailable, UsageError
from everlog.broker.detach import attached, detached
from everlog.broker.events import event as report
from everlog.broker.exactly_once import note_ids
from everlog.broker.outbox import Outbox
from everlog.broker.partition import count_qos_2, drop_known, drop_reserved, forget_ids, known_ids
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
_log = logging.getLogger("everlog.broker")
_UNDECIDED = (State.CONNECTING, State.AUTHENTICATING)
_REFUSED_UNREAD = (Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID)
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_FLUSH_S = 5.0  # a peer that does not read what was written before the end is cut off then


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    __slots__ = (
        "_outbox",
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
        "keep_alive_s",
        "last_seen",
        "open_qos_1",
        "open_qos_2",
        "peer",
        "publishes",
        "session",
        "state",
        "topics_made",
        "transport",
        "user",
        "will",
    )

    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.decoder = Decoder(broker.columns, broker.table, broker.limits.packet_bytes, broker.limits.topic_aliases)
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
        self.publishes = False  # it has sent a PUBLISH
        self.closing_reason = ""
        self._paused = False
        self._waiting: list[object] | None = None
        self._outbox: Outbox | None = None

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
        if self.session is not None and self.state is not State.CLOSING:
            self.session.ready = False

    def resume_writing(self) -> None:
        """The client has caught up with what was sent."""
        if self.session is not None and self.state is not State.CLOSING:
            self.session.ready = True
            self.broker.router.pulling.pump(self.session)

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
        session = self.session
        if session is not None and session.ahead:  # [MQTT-4.3.3-1] an id is in the tables before the client sees it
            session.ahead = False
            self.hold()
        if self._outbox is not None:
            self._outbox.add(data)
        elif self.transport is not None and self.state is not State.CLOSING:
            self.broker.metrics.bytes_out += len(data)
            self.transport.write(data)

    def answer(self, data: bytes, count: int) -> None:
        """Send answers that had to wait for a commit; `count` of them end a QoS 1 message."""
        self.open_qos_1 -= count
        if self._outbox is not None:
            self._outbox.add(data)
        elif self.transport is not None and self.state is not State.CLOSING:
            self.broker.metrics.bytes_out += len(data)
            self.transport.write(data)

    def hold(self) -> None:
        """What is sent from now on leaves when all that has changed so far is stored."""
        persistence, session = self.broker.persistence, self.session
        if persistence is None or session is None:
            return
        if session.kept:
            persistence.moved.add(session)
        if self._outbox is None:
            self._outbox = Outbox(self, persistence)
        self._outbox.wait()

    def released(self, outbox: Outbox, data: bytes, all_of_it: bool) -> None:
        """Bytes that waited may leave; if that was all, the next ones need not wait."""
        if self._outbox is not outbox:
            return
        if all_of_it:
            self._outbox = None
        if self.transport is None or self.state is State.CLOSING:
            return
        self.broker.metrics.bytes_out += len(data)
        self.transport.write(data)
        limit = self.broker.limits.output_bytes
        if outbox.full and outbox.bytes == 0 and self.transport.get_write_buffer_size() <= limit:
            outbox.full = False
            self.resume_writing()

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
        if self.session is None:
            client = self.connect.client_id if self.connect is not None else None
            report(_log, "refused", WARNING, client=client, peer=self.peer, user=self.user, reason=why)
        if self.state in (State.WAITING, State.CONNECTING, State.AUTHENTICATING):
            self._refuse(reason)
        elif self.decoder.version == 5 and reason and (self._outbox is None or not self._outbox.has_connack):
            self._outbox = None  # what waited is sent again when the client is back
            self.send(Disconnect(Reason(reason)))  # [MQTT-4.13.1-1]
        if not keep_will:
            self.will = None
        self.state = next_state(self.state, Event.CLOSE)
        self._end()

    def _end(self) -> None:
        """No more is read; what was written still leaves, for a while."""
        self.is_open = False
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_FLUSH_S, self.transport.abort)

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
        """The broker accepts the client: CONNACK goes out."""
        self.session = session
        self.state = next_state(self.state, Event.ACCEPT)
        self.is_open = True
        persistence = self.broker.persistence
        if persistence is not None and (session.kept or persistence.will_forget(session.client_id)):
            self.hold()  # a client relies on what it is told of its session
        self.send(Connack(session_present, Reason.SUCCESS, properties))
        if self._outbox is not None:
            self._outbox.has_connack = True

    def proceed(self) -> None:
        """What the client sent before its CONNACK is taken."""
        waiting, self._waiting = self._waiting, None
        if waiting:
            try:
                events = [attached(event, self.broker.table) for event in waiting]
            except PeerError as error:
                events = [error]
            self._handle(events)
        self.resume_reading()

    # Events

    def _receive(self, data: bytes | bytearray, size: int) -> None:
        broker = self.broker
        self.last_seen = broker.time()
        broker.metrics.bytes_in += size
        table = broker.table
        known = table.count
        events = self.decoder.feed(data, size)
        if table.count != known and not self._new_topics(known):
            return
        if self._waiting is not None:
            self._waiting.extend(detached(event, table) for event in events)
        else:
            self._handle(events)
        router = broker.router
        if router.behind or router.held_bytes > broker.limits.inflight_bytes:
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
                    self._waiting = [detached(later, self.broker.table) for later in events[place + 1 :]]
                    self.pause_reading()
                    return
        except PeerError as error:
            self._broke_the_rules(error)
        except EverlogError as error:  # the log refuses: full, failed or closed
            report(_log, "log_refused", WARNING, client=self.client_id, peer=self.peer, reason=error)
            busy = isinstance(error, Unavailable)
            self.close(Reason.SERVER_BUSY if busy else Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error))

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
        self.publishes = True
        version = self.decoder.version
        answers = write_answers(run)
        count = len(answers) // 4
        if version == 5 and self.open_qos_1 + self.open_qos_2 + count > broker.limits.receive_maximum:
            # before anything of the run is remembered: the client may send all of it again
            raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unanswered messages", clause="MQTT-3.3.4-7")
        at_qos_2 = count_qos_2(run) if run.any_flags & _QOS_2 else 0
        refused = None
        if broker.acl is not None or drop_reserved(run, broker.reserved):
            refused = broker.check_publishes(self, run)
        known = 0
        if at_qos_2:
            known = drop_known(run, session.received)
            broker.metrics.duplicates += known
        if run.any_flags & _RETAIN:
            refused = broker.retain(self, run, refused)
            if answers:
                self.hold()  # a retained message is acknowledged when the tables have it too
        at_most_one = count_qos_2(run) if at_qos_2 else 0
        if refused:
            answers, ended = refuse(answers, run, refused, version)
            at_qos_2 -= ended
        count -= at_qos_2
        self.open_qos_1 += count
        self.open_qos_2 += at_qos_2
        publisher = session if session.no_local else None
        ends = broker.router.publish(run, self, answers, count, publisher, known)
        if at_most_one and session.kept and broker.persistence is not None:
            broker.persistence.moved.add(session)
            if ends:
                note_ids(session, run, at_most_one, broker.keep.routes, ends)
                broker.router.ids_ahead = True

    def _acked(self, run: AckRun) -> None:
        session = self.session
        assert session is not None
        if run.packet_type == PacketType.PUBREL:
            self._released(run, session)
            return
        if session.inflight == 0 and run.packet_type != PacketType.PUBREC:
            return
        sent = self.broker.metrics.bytes_out
        released = session.window.acked(run)
        persistence = self.broker.persistence
        if persistence is not None and session.kept:
            persistence.moved.add(session)
            if released:
                self.hold()  # a PUBREL ends the client's knowledge of the id, so ours must outlive us by then
        if released:
            self.write(write_acks(0x62, released, 0, len(released) // 2))
        if session.waiting:
            self.broker.router.pulling.pump(session)
        if self.publishes and sent == self.broker.metrics.bytes_out:
            self._confirm_receipt()

    def _confirm_receipt(self) -> None:
        """Nothing answers an ack, so TCP would confirm it 40 ms later, and a client with Nagle's algorithm, which most
        have, would hold its next PUBLISH back for so long."""
        wire = self.transport.get_extra_info("socket") if self.transport is not None else None
        if wire is not None and _QUICK_ACK is not None and wire.family in _INTERNET:
            wire.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _released(self, run: AckRun, session: Session) -> None:
        """[MQTT-4.3.3-11] a PUBREL is answered with PUBCOMP, known or not; MQTT 5 says which."""
        received = session.received
        known = known_ids(run.ids, received)
        self.open_qos_2 = max(0, self.open_qos_2 - len(run))
        if known and session.kept:
            self.hold()  # after a PUBCOMP the client uses the id for another message: it must not be known then
        if known == len(run) or self.decoder.version != 5:
            forget_ids(run.ids, received)
            self.write(write_acks(0x70, run.ids, 0, len(run)))
            return
        for k in range(len(run)):
            column = run.ids[2 * k : 2 * k + 2]
            reason = Reason.SUCCESS if forget_ids(column, received) else Reason.PACKET_IDENTIFIER_NOT_FOUND
            self.send(Pubcomp(int.from_bytes(column, "little"), reason))

    def _new_topics(self, known: int) -> bool:
        """Names that this chunk brought: within the limits, or the connection ends."""
        try:
            self.topics_made += self.broker.check_new_topics(known, self.topics_made)
        except PeerError as error:
            self._broke_the_rules(error)
            return False
        return True

    def _broke_the_rules(self, error: PeerError) -> None:
        """Of the protocol or of a limit, or who it says it is: that ends the connection."""
        self.broker.metrics.protocol_errors += 1
        if self.session is not None:
            report(_log, "protocol_error", WARNING, client=self.client_id, peer=self.peer, reason=error)
        self.close(error.reason, str(error))

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
                self.state = State.OPEN
                raise PeerError(
                    Reason.PROTOCOL_ERROR, "session expiry cannot begin at DISCONNECT", clause="MQTT-3.14.2-2"
                )
            self.broker.set_expiry(self.session, expiry)
        if packet.reason == Reason.NORMAL_DISCONNECTION:  # [MQTT-3.14.4-3] the will is discarded
            self.will = None
        self.closing_reason = "client disconnected"
        self._end()

    def _refuse(self, reason: int) -> None:
        """CONNACK with an error, where the protocol has one for it."""
        version = self.decoder.version or 4
        if self.decoder.version == 0 and reason not in _REFUSED_UNREAD:  # a CONNACK answers a CONNECT, or nothing
            return
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
