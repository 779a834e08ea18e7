"""The way of bytes through one connection, in and out: what runs once a read, whoever sends it.

`Connection` is this and everything that happens seldom. A run of PUBLISHes is checked, answered and handed to the
router, a run of acks to the session, each in one call; all else is for `Connection`. Owned by the event loop's thread.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import cython

from everlog.base import EverlogError, PeerError
from everlog.broker.exactly_once import note_ids
from everlog.broker.refusal import refuse
from everlog.mqtt import Pubcomp, Pubrel, Reason, State

if not cython.compiled:
    from everlog.base import AckRun, PublishRun, TopicTable
    from everlog.broker.partition import count_qos_2, drop_known, drop_reserved, forget_ids, known_ids
    from everlog.broker.router import Router
    from everlog.mqtt import Decoder, write_acks, write_answers

if TYPE_CHECKING:
    from everlog.sessions import Session

_CLOSING = State.CLOSING
_CONNECTING = State.CONNECTING
_QOS_2 = 0x04
_RETAIN = 0x01
_PUBREC = 5
_PUBREL = 6
EVENTS_PER_TURN = 256  # packets or runs of one client that are handled before others have their turn
_ALIVE_BYTES = 1024  # so much at once of a packet that is not whole yet is a sign of life; less is not
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_INTERNET = (socket.AF_INET, socket.AF_INET6)


class Traffic:
    """What the connections of a broker have in common: the buffer that all read into, names, limits, byte counts."""

    def __init__(self, buffer: bytearray, table: TopicTable, router: Router, time: Callable[[], float]) -> None:
        self.buffer = buffer
        self.table = table
        self.router = router
        self.time = time
        self.reserved = bytearray()  # a byte for each topic id: whether it is the server's own
        self.checks = False  # there are rules of who may publish what
        self.receive_maximum = 4096
        self.inflight_bytes = 64 << 20
        self.topics = 1_000_000
        self.topics_bytes = 64 << 20
        self.bytes_in = 0
        self.bytes_out = 0


class Wire:
    """The part of a connection that bytes go through."""

    def __init__(self, broker: Any, traffic: Traffic, decoder: Decoder) -> None:
        self.broker = broker
        self.traffic = traffic
        self.decoder = decoder
        self.state = State.WAITING
        self.transport: Any = None
        self.session: Session | None = None
        self.held = 0
        self.is_open = False  # the client may send runs: as `state` says, without a look into the table
        self.publishes = False  # it has sent a PUBLISH
        self.open_qos_1 = 0  # messages of the client not yet answered
        self.open_qos_2 = 0  # messages of the client not yet released
        self.last_seen = 0.0
        self._buffer: Any = traffic.buffer
        self._waiting: Any = None  # events of one read at most: nothing is read meanwhile
        self._full = False  # more than limits.output_bytes has not been sent
        self._outbox: Any = None

    # In

    def get_buffer(self, sizehint: int) -> Any:
        """The buffer that all connections share: what is read is used up before the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived in the shared buffer."""
        self._receive(self.traffic.buffer, nbytes)

    def receive(self, data: bytes) -> None:
        """Bytes have arrived by another way, such as a WebSocket."""
        self._receive(data, len(data))

    def _receive(self, data: bytes | bytearray, size: int) -> int:
        traffic = self.traffic
        table, router = traffic.table, traffic.router
        traffic.bytes_in += size
        known = table.count
        events = self.decoder.feed(data, size)
        if events or size >= _ALIVE_BYTES:  # [MQTT-3.1.2-22] asks for packets, not for bytes
            self.last_seen = traffic.time()
        grew = table.count != known
        if grew:
            self.broker.reserve(known)
        if self._waiting is not None:
            self._postpone(events, True)
        else:
            self._handle(events)
        if router.behind or router.held_bytes > traffic.inflight_bytes:
            self.broker.hold_back(self)
        if self._full:
            self._go_on()
        if grew:
            self._learnt(table.count - known)
        if table.count > traffic.topics or (grew and table.name_bytes > traffic.topics_bytes):
            self.broker.forget_topics()
        return 0

    def _handle(self, events: list[Any]) -> None:
        if len(events) > EVENTS_PER_TURN:
            self._handle(events[:EVENTS_PER_TURN])
            self._postpone(events[EVENTS_PER_TURN:], True)
            self._go_on()
            return
        place = 0
        try:
            for event in events:
                place += 1
                if self.is_open:
                    if isinstance(event, PublishRun):
                        self._published(event)
                        continue
                    if isinstance(event, AckRun):
                        self._acked(event)
                        continue
                if self.state is _CLOSING:
                    return
                self._dispatch(event)
                if self.state is _CONNECTING:
                    self._postpone(events[place:], False)
                    return
        except PeerError as error:
            self.broke_the_rules(error)
        except EverlogError as error:
            self._not_taken(error)

    def _published(self, run: PublishRun) -> int:
        """Messages of a client: what it may not say is dropped, the rest goes to the router with the answers."""
        traffic, session, broker = self.traffic, self.session, self.broker
        assert session is not None
        self.publishes = True
        answers = write_answers(run)
        count = len(answers) // 4
        if self.decoder.version == 5 and self.open_qos_1 + self.open_qos_2 + count > traffic.receive_maximum:
            # before anything of the run is remembered: the client may send all of it again
            raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unanswered messages", clause="MQTT-3.3.4-7")
        at_qos_2 = count_qos_2(run) if run.any_flags & _QOS_2 else 0
        refused = None
        if traffic.checks or drop_reserved(run, traffic.reserved):
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
            answers, ended = refuse(answers, run, refused, cast(Any, self))
            at_qos_2 -= ended
        count -= at_qos_2
        self.open_qos_1 += count
        self.open_qos_2 += at_qos_2
        publisher = session if session.no_local else None
        ends = traffic.router.publish(run, self, answers, count, publisher, known)
        if at_most_one and session.kept and broker.persistence is not None:
            broker.persistence.moved.add(session)
            if ends:
                note_ids(session, run, at_most_one, traffic.router.keep.routes, ends)
                traffic.router.ids_ahead = True
        return 0

    def _acked(self, run: AckRun) -> int:
        """Acks of a client, for what was sent to it; PUBRELs, for what it has sent."""
        session, broker = self.session, self.broker
        assert session is not None
        if run.packet_type == _PUBREL:
            self._released(run, session)
            return 0
        if session.inflight == 0 and run.packet_type != _PUBREC:
            return 0
        sent = self.traffic.bytes_out
        unknown = session.window.unknown
        released = session.window.acked(run)
        persistence = broker.persistence
        if persistence is not None and session.kept:
            persistence.moved.add(session)
            if released:
                self.hold()  # a PUBREL ends the client's knowledge of the id, so ours must outlive us by then
        if released:
            if session.window.unknown != unknown and self.decoder.version == 5:
                self._release(released, session)
            else:
                self.write(write_acks(0x62, released, 0, len(released) // 2))
        if session.waiting:
            broker.router.pulling.pump(session)
        if session.memberships:
            broker.groups.acked(session)
        if self.publishes and sent == self.traffic.bytes_out:
            self._confirm_receipt()
        return 0

    def _release(self, ids: bytes, session: "Session") -> None:
        """PUBRELs, some of them for ids that were not under way: section 3.6.2.1, MQTT 5 says which."""
        unknown = self.explain("no message with this packet identifier is under way")
        for k in range(0, len(ids), 2):
            packet_id = int.from_bytes(ids[k : k + 2], "little")
            if session.window.state(packet_id):
                self.send(Pubrel(packet_id))
            else:
                self.send(Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND, unknown))

    def _confirm_receipt(self) -> None:
        """Nothing answers an ack, so TCP would confirm it 40 ms later, and a client with Nagle's algorithm, which most
        have, would hold its next PUBLISH back for so long."""
        transport = self.transport
        wire = transport.get_extra_info("socket") if transport is not None else None
        if wire is not None and _QUICK_ACK is not None and wire.family in _INTERNET:
            wire.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _released(self, run: AckRun, session: "Session") -> int:
        """[MQTT-4.3.3-11] a PUBREL is answered with PUBCOMP, known or not; MQTT 5 says which."""
        received = session.received
        count = len(run.ids) // 2
        known = known_ids(run.ids, received)
        self.open_qos_2 = max(0, self.open_qos_2 - count)
        if known and session.kept:
            self.hold()  # after a PUBCOMP the client uses the id for another message: it must not be known then
        if known == count or self.decoder.version != 5:
            forget_ids(run.ids, received)
            self.write(write_acks(0x70, run.ids, 0, count))
            return 0
        unknown = self.explain("no message with this packet identifier waits to be released")
        for k in range(count):
            column = run.ids[2 * k : 2 * k + 2]
            packet_id = int.from_bytes(column, "little")
            if forget_ids(column, received):
                self.send(Pubcomp(packet_id))
            else:
                self.send(Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND, unknown))
        return 0

    # Out

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is gone."""
        session = self.session
        if session is not None and session.ahead:  # [MQTT-4.3.3-1] an id is in the tables before the client sees it
            session.ahead = False
            self.hold()
        self._put(data)

    def answer(self, data: bytes, count: int) -> None:
        """Send answers that had to wait for a commit; `count` of them end a QoS 1 message."""
        self.open_qos_1 -= count
        self._put(data)

    def _put(self, data: bytes) -> int:
        if self._outbox is not None:
            self._outbox.add(data)
        elif self.transport is not None and self.state is not _CLOSING:
            self.traffic.bytes_out += len(data)
            self.transport.write(data)
        return 0

    # What happens seldom is up to the connection

    def hold(self) -> None:
        """What is sent from now on waits for the disk."""
        raise NotImplementedError

    def send(self, packet: Any) -> None:
        """Send a control packet."""
        raise NotImplementedError

    def explain(self, why: str) -> Any:
        """Properties that say why."""
        raise NotImplementedError

    def broke_the_rules(self, error: PeerError) -> None:
        """The peer has to go."""
        raise NotImplementedError

    def _not_taken(self, error: EverlogError) -> None:
        """The log refuses."""
        raise NotImplementedError

    def _dispatch(self, event: Any) -> None:
        """What is not a run on an open connection."""
        raise NotImplementedError

    def _postpone(self, events: list[Any], behind: bool) -> None:
        """These are taken later."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """See whether more can be read."""
        raise NotImplementedError

    def _learnt(self, names: int) -> None:
        """So many names were new."""
        raise NotImplementedError
