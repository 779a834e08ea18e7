"""Runs of messages and of acks from an open client: checked, answered, handed to the router. One call a run."""

import socket
from typing import TYPE_CHECKING

from everlog.base import AckRun, PeerError, PublishRun
from everlog.broker.exactly_once import note_ids
from everlog.broker.partition import count_qos_2, drop_known, drop_reserved, forget_ids, known_ids
from everlog.broker.refusal import refuse
from everlog.mqtt import PacketType, Pubcomp, Reason, write_acks, write_answers
from everlog.sessions import Session

if TYPE_CHECKING:
    from everlog.broker.connection import Connection

_QOS_2 = 0x04
_RETAIN = 0x01
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def published(connection: "Connection", run: PublishRun) -> None:
    """Messages of a client: what it may not say is dropped, the rest goes to the router with the answers."""
    broker, session = connection.broker, connection.session
    assert session is not None
    connection.publishes = True
    version = connection.decoder.version
    answers = write_answers(run)
    count = len(answers) // 4
    if version == 5 and connection.open_qos_1 + connection.open_qos_2 + count > broker.limits.receive_maximum:
        # before anything of the run is remembered: the client may send all of it again
        raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unanswered messages", clause="MQTT-3.3.4-7")
    at_qos_2 = count_qos_2(run) if run.any_flags & _QOS_2 else 0
    refused = None
    if broker.acl is not None or drop_reserved(run, broker.reserved):
        refused = broker.check_publishes(connection, run)
    known = 0
    if at_qos_2:
        known = drop_known(run, session.received)
        broker.metrics.duplicates += known
    if run.any_flags & _RETAIN:
        refused = broker.retain(connection, run, refused)
        if answers:
            connection.hold()  # a retained message is acknowledged when the tables have it too
    at_most_one = count_qos_2(run) if at_qos_2 else 0
    if refused:
        answers, ended = refuse(answers, run, refused, connection)
        at_qos_2 -= ended
    count -= at_qos_2
    connection.open_qos_1 += count
    connection.open_qos_2 += at_qos_2
    publisher = session if session.no_local else None
    ends = broker.router.publish(run, connection, answers, count, publisher, known)
    if at_most_one and session.kept and broker.persistence is not None:
        broker.persistence.moved.add(session)
        if ends:
            note_ids(session, run, at_most_one, broker.keep.routes, ends)
            broker.router.ids_ahead = True


def acked(connection: "Connection", run: AckRun) -> None:
    """Acks of a client, for what was sent to it; PUBRELs, for what it has sent."""
    session = connection.session
    assert session is not None
    if run.packet_type == PacketType.PUBREL:
        _released(connection, run, session)
        return
    if session.inflight == 0 and run.packet_type != PacketType.PUBREC:
        return
    broker = connection.broker
    sent = broker.metrics.bytes_out
    released = session.window.acked(run)
    persistence = broker.persistence
    if persistence is not None and session.kept:
        persistence.moved.add(session)
        if released:
            connection.hold()  # a PUBREL ends the client's knowledge of the id, so ours must outlive us by then
    if released:
        connection.write(write_acks(0x62, released, 0, len(released) // 2))
    if session.waiting:
        broker.router.pulling.pump(session)
    if session.memberships:
        broker.groups.acked(session)
    if connection.publishes and sent == broker.metrics.bytes_out:
        _confirm_receipt(connection)


def _confirm_receipt(connection: "Connection") -> None:
    """Nothing answers an ack, so TCP would confirm it 40 ms later, and a client with Nagle's algorithm, which most
    have, would hold its next PUBLISH back for so long."""
    transport = connection.transport
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is not None and _QUICK_ACK is not None and wire.family in _INTERNET:
        wire.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)


def _released(connection: "Connection", run: AckRun, session: Session) -> None:
    """[MQTT-4.3.3-11] a PUBREL is answered with PUBCOMP, known or not; MQTT 5 says which."""
    received = session.received
    known = known_ids(run.ids, received)
    connection.open_qos_2 = max(0, connection.open_qos_2 - len(run))
    if known and session.kept:
        connection.hold()  # after a PUBCOMP the client uses the id for another message: it must not be known then
    if known == len(run) or connection.decoder.version != 5:
        forget_ids(run.ids, received)
        connection.write(write_acks(0x70, run.ids, 0, len(run)))
        return
    unknown = connection.explain("no message with this packet identifier waits to be released")
    for k in range(len(run)):
        column = run.ids[2 * k : 2 * k + 2]
        packet_id = int.from_bytes(column, "little")
        if forget_ids(column, received):
            connection.send(Pubcomp(packet_id))
        else:
            connection.send(Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND, unknown))
