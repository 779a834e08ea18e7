"""The input of one connection: what runs for every read.

A run of PUBLISHes is checked, answered and handed to the router, a run of acks to the session, each in one call; all
else is for the connection. Owned by the event loop's thread.
"""

from collections.abc import Generator
from typing import Any, Protocol

import cython

from everlog.base import EverlogError, PeerError
from everlog.broker.connection.refused_acks import refuse
from everlog.mqtt import Pubcomp, Pubrel, Reason
from everlog.sessions import Session

if not cython.compiled:
    from everlog.base import AckRun, PublisherName, PublishRun
    from everlog.broker.connection.output import Output
    from everlog.broker.connection.raw_socket import receive_into
    from everlog.broker.connection.run_checks import count_qos_2, drop_reserved
    from everlog.broker.connection.traffic import Traffic
    from everlog.broker.connection.wire import Receiver
    from everlog.broker.delivery.pending_acks import AckQueue
    from everlog.mqtt import Decoder, write_acks, write_answers, write_told_acks

_QOS_2 = 0x04
_RETAIN = 0x01
_PUBREC = 5
_PUBREL = 6
_PUBREL_HEADER = 0x62
_PUBCOMP_HEADER = 0x70
_ALIVE_BYTES = 1024  # so much at once of a packet that is not whole yet is a sign of life; less is not
_TOLD_BYTES = 5  # of an ack with a reason
_NOT_SENT = "no message with this packet identifier is under way"
_NOT_RECEIVED = "no message with this packet identifier waits to be released"


class Dispatcher(Protocol):
    """The connection, as far as its reader is concerned."""

    @property
    def takes_packets(self) -> bool: ...  # it neither closes nor works on an earlier packet

    def dispatch(self, event: Any) -> bool: ...  # not a run on an open connection; False: no more for now

    def broke_the_rules(self, error: PeerError) -> None: ...

    def not_taken(self, error: EverlogError) -> None: ...


class SocketReader(Receiver):
    """The reading half of one connection."""

    def __init__(self, traffic: Traffic, decoder: Decoder, output: Output) -> None:
        self.traffic = traffic
        self.decoder = decoder
        self.output = output
        self.connection: Dispatcher | None = None  # None once the connection is gone
        self.session: Session | None = None
        self.is_open = False  # the client may send runs
        self.open_qos_2 = 0  # messages of the client not yet released
        self.last_seen = 0.0
        self.waits_for_acks = False  # it is held back, since many acks wait, its own among them
        self.late_lane = -1  # or for this lane of `PendingAcks`, where more waits than should
        self._acks = AckQueue(output)
        self._publishes = False  # it has sent a PUBLISH
        self._named: PublisherName | None = None  # as whose its messages are kept
        self._paused = False
        self._blocked = False  # a packet is not done with: what the client sends meanwhile waits
        self._held = False  # too much is under way
        self._in_line = False  # for a turn to take what waits

    def get_buffer(self, sizehint: int) -> Any:
        """Return the buffer that all connections share, most often: what is read is used up before the next read."""
        return self._room()

    def _room(self) -> Any:
        return self.traffic.buffer if self._blocked else self.decoder.room_in(self.traffic.buffer)

    def receive_from(self, fd: int) -> int:
        """Read once from a socket; return how many bytes, 0 at the peer's end, below 0 the number of an error."""
        size = receive_into(fd, self._room())
        if size > 0:
            self._receive(self.traffic.buffer, size, True)
        return size

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that have arrived in the buffer."""
        self._receive(self.traffic.buffer, nbytes, True)

    def receive(self, data: bytes) -> None:
        """Take bytes that have arrived by another way, such as a WebSocket."""
        self._receive(data, len(data), False)

    def _receive(self, data: bytes | bytearray, size: int, in_room: bool) -> int:
        traffic = self.traffic
        traffic.bytes_in += size
        known = traffic.table.count
        decoder = self.decoder
        if decoder.has_more or self._blocked:
            decoder.hold(data, size)
            self.pause_reading()
            if size >= _ALIVE_BYTES:
                self.last_seen = traffic.time()
            return 0
        decoder.max_new_topics = traffic.router.names_per_step
        events = decoder.arrived(traffic.buffer, size) if in_room else decoder.feed(data, size)
        if size >= _ALIVE_BYTES:
            self.last_seen = traffic.time()
        self._take(events, known)
        if self.is_waiting:
            self.go_on()
        return 0

    def _take(self, events: list[Any], known: int) -> int:
        """Handle what was parsed when there were `known` topics."""
        traffic = self.traffic
        table, router = traffic.table, traffic.router
        if events:  # [MQTT-3.1.2-22] asks for packets, not for bytes
            self.last_seen = traffic.time()
        if len(traffic.reserved) < table.count:
            traffic.rules.reserve()
        self._handle(events)
        if self._acks.first is not None and router.pending.waiting_bytes > traffic.inflight_bytes:
            self.waits_for_acks = True
        if (self.waits_for_acks or self.late_lane >= 0 or (router.behind and router.hurries)) and not self._held:
            self._held = True
            traffic.hold_back(self)
        if self.output.is_full:
            self.go_on()
        grew = table.count != known
        if grew:
            router.learn(known)
        if table.count > traffic.topics or (grew and table.name_bytes > traffic.topics_bytes):
            traffic.rules.forget_topics()
        return 0

    def _handle(self, events: list[Any]) -> None:
        connection = self.connection
        try:
            for event in events:
                if self.is_open:
                    if isinstance(event, PublishRun):
                        self._published(event)
                        continue
                    if isinstance(event, AckRun):
                        self._acked(event)
                        continue
                if not connection.dispatch(event):  # type: ignore[union-attr]
                    # The decoder stops at such a packet, so nothing is left behind it here. It is read on until more
                    # comes: the end of a peer that waits for its CONNACK is noticed.
                    self._blocked = True
                    if self.decoder.has_more:
                        self.pause_reading()
                    return
        except PeerError as error:
            connection.broke_the_rules(error)  # type: ignore[union-attr]
        except EverlogError as error:
            connection.not_taken(error)  # type: ignore[union-attr]

    def _published(self, run: PublishRun) -> int:
        """Take messages of a client: what it may not say is dropped, the rest goes to the router with the acks."""
        traffic, session, output = self.traffic, self.session, self.output
        assert session is not None
        if not self._publishes:
            self._publishes = True
            self._named = traffic.router.name_of(session)
        if run.any_flags & traffic.refused_flags:
            self._refuse_kind(run.any_flags & traffic.refused_flags)
        acks = write_answers(run)
        pubacks = len(acks) // 4
        if self.decoder.version == 5 and output.open_qos_1 + self.open_qos_2 + pubacks > traffic.receive_maximum:
            # before anything of the run is remembered: the client may send all of it again
            raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unanswered messages", clause="MQTT-3.3.4-7")
        at_qos_2 = count_qos_2(run) if run.any_flags & _QOS_2 else 0
        refused = None
        if traffic.checks or drop_reserved(run, traffic.reserved):
            refused = traffic.rules.check(run, session)
        duplicates = 0
        if at_qos_2:
            duplicates = session.drop_duplicates(run)
            traffic.metrics.duplicates += duplicates
        if traffic.router.refuses:
            refused = traffic.rules.keep(run, session, refused, self.decoder.version)
        if run.any_flags & _RETAIN:
            refused = traffic.rules.retain(run, session, refused)
            if acks and (duplicates or traffic.router.retained.must_store):
                output.hold()  # a retained message that is in no log is acknowledged when the tables have it
        new_qos_2 = count_qos_2(run) if at_qos_2 else 0
        if refused:
            acks, ended = refuse(acks, run, refused, output)
            at_qos_2 -= ended
        pubacks -= at_qos_2
        output.open_qos_1 += pubacks
        self.open_qos_2 += at_qos_2
        if new_qos_2 and session.kept and traffic.stores:
            output.hold()  # what nobody keeps waits for no commit, but its id must be known when the client comes back
        publisher = session if session.no_local else None
        try:
            positions = traffic.router.publish(run, self._acks, acks, pubacks, publisher, duplicates, self._named)
        except EverlogError:
            if new_qos_2:
                session.note_refused(run, traffic.router.kept.routes, traffic.router.proofs(traffic.router.taken))
                traffic.router.ids_ahead = traffic.router.ids_ahead or len(traffic.router.taken) > 0
            raise
        if traffic.router.behind:
            self._note_late(positions)
        if new_qos_2 and session.kept and traffic.stores:
            traffic.router.fanout.note_moved(session)
            if positions:
                session.note_unconfirmed(run, new_qos_2, traffic.router.kept.routes, traffic.router.proofs(positions))
                traffic.router.ids_ahead = True
        return 0

    def _note_late(self, positions: list[tuple[int, int]]) -> None:
        """Hold the client back if it has published to a shard that has more to write than it should."""
        for lane, _ in positions:
            if self.traffic.router.late[lane]:
                self.late_lane = lane

    def _refuse_kind(self, flags: int) -> None:
        """Raise why messages are refused that have more than the server offers."""
        if flags & _RETAIN:
            raise PeerError(Reason.RETAIN_NOT_SUPPORTED, "nothing is retained here", clause="MQTT-3.2.2-14")
        raise PeerError(Reason.QOS_NOT_SUPPORTED, "a QoS above the highest here", clause="MQTT-3.2.2-11")

    def _acked(self, run: AckRun) -> int:
        """Take acks of a client for what was sent to it, or PUBRELs for what it has sent."""
        session, traffic, output = self.session, self.traffic, self.output
        assert session is not None
        if run.packet_type == _PUBREL:
            self._released(run, session)
            return 0
        if session.inflight == 0 and run.packet_type != _PUBREC:
            return 0
        sent = traffic.bytes_out
        unknown = session.window.unknown
        released = session.acked(run)
        if session.kept and traffic.stores:
            traffic.router.fanout.note_moved(session)
            if released:
                output.hold()  # a PUBREL ends the client's knowledge of the id, so ours must outlive us by then
        if released:
            if session.window.unknown != unknown and self.decoder.version == 5:
                self._tell(_PUBREL_HEADER, released, session.window.known(released))
            else:
                output.write_acks(write_acks(_PUBREL_HEADER, released, 0, len(released) // 2))
        if session.early:
            output.send_early()
        traffic.router.acked(session)
        if self._publishes and sent == traffic.bytes_out:
            # else Nagle's algorithm, which most clients have, holds their next PUBLISH back for 40 ms
            output.confirm_receipt()
        return 0

    def _released(self, run: AckRun, session: Session) -> int:
        """Answer PUBRELs with PUBCOMPs, known or not [MQTT-4.3.3-11]; MQTT 5 says which."""
        output = self.output
        count = len(run.ids) // 2
        known = session.received.count(run.ids)
        self.open_qos_2 = max(0, self.open_qos_2 - count)
        if known and session.kept:
            output.hold()  # after a PUBCOMP the client uses the id for another message: it must not be known then
        if known == count or self.decoder.version != 5:
            session.free_ids(run.ids)
            output.write(write_acks(_PUBCOMP_HEADER, run.ids, 0, count))
        else:
            self._tell(_PUBCOMP_HEADER, run.ids, session.release_ids(run.ids))
        return 0

    def _tell(self, first_byte: int, ids: bytes, known: bytes) -> None:
        """Answer acks, some of them for unknown packet ids (sections 3.6.2.1 and 3.7.2.1); a lone one with words."""
        output = self.output
        if len(known) == 1 and not known[0]:
            make, why = (Pubrel, _NOT_SENT) if first_byte == _PUBREL_HEADER else (Pubcomp, _NOT_RECEIVED)
            packet_id = int.from_bytes(ids, "little")
            output.send(make(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND, output.explain(why)))
        else:
            fits = output.has_room_for(_TOLD_BYTES)
            output.write(write_told_acks(first_byte, ids, known, Reason.PACKET_IDENTIFIER_NOT_FOUND if fits else 0))
            self._stand_in_line()  # a flood, most likely: the next read is for another turn

    # Turns

    @property
    def is_settled(self) -> bool:
        """Whether nothing that the client has published waits for a commit."""
        return self._acks.first is None

    @property
    def is_waiting(self) -> bool:
        """Whether what the client has sent waits for a later turn of the event loop."""
        return self.decoder.has_more

    def proceed(self) -> None:
        """Take what the client has sent since it had to wait, such as for its CONNACK."""
        self._blocked = self.connection is not None and not self.connection.takes_packets
        self.go_on()

    def release(self) -> bool:
        """Go on with a client that was held back, unless what it waits for is still so; return whether it goes on."""
        router = self.traffic.router
        many = self.waits_for_acks and router.pending.waiting_bytes >= self.traffic.inflight_bytes // 2
        late = self.late_lane >= 0 and router.late[self.late_lane]
        if self.connection is not None and (many or late or (router.behind and router.hurries)):
            return False
        self.waits_for_acks, self.late_lane = False, -1
        self._held = False
        self.go_on()
        return True

    def go_on(self) -> None:
        """Take what waits, or the next read, when others have had their turn; not while the peer does not read."""
        if not self._may_go_on():
            return
        if self.decoder.has_more:
            self._stand_in_line()
        elif not self._in_line:
            self.resume_reading()

    def _stand_in_line(self) -> None:
        if not self._in_line:
            self._in_line = True
            self.pause_reading()
            self.traffic.turns.later(self._rest(), self._done, self._failed)

    def _may_go_on(self) -> bool:
        if self.connection is None or self._blocked or self._held or not self.connection.takes_packets:
            return False
        if self.output.is_stuck():
            self.traffic.metrics.unread_answers += 1
            self.pause_reading()
            return False
        return True

    def _rest(self) -> Generator[None, None, None]:
        """Take what waits, a little in each step."""
        while self.decoder.has_more and self._may_go_on():
            known = self.traffic.table.count
            self.decoder.max_new_topics = self.traffic.router.names_per_step
            self._take(self.decoder.more(), known)
            yield

    def _done(self, _: object) -> None:
        self._in_line = False
        self.go_on()

    def _failed(self, error: Exception) -> None:
        self._in_line = False
        raise error

    def pause_reading(self) -> None:
        """Let the peer wait: too much is under way."""
        if not self._paused and self.output.transport is not None:
            self._paused = True
            self.output.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused and self.output.transport is not None:
            self._paused = False
            self.output.transport.resume_reading()
