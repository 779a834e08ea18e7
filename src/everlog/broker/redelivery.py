"""What was under way when a connection broke goes out again on the next one, before anything new.

[MQTT-4.4.0-1] PUBLISHes with their packet ids and DUP, PUBRELs for those that were received, in the order of the first
sending, and [MQTT-3.3.4-9] never more PUBLISHes than the client's new Receive Maximum allows. A PUBREL waits for no
room: it is what makes some.
"""

from collections import deque
from typing import Protocol, TypeAlias

from everlog.base import NOT_KEPT, Records, is_emptied, unpack_position
from everlog.broker.begins import begun_at
from everlog.broker.delivering import Delivering
from everlog.broker.ports import Log, Sink
from everlog.mqtt import write_acks
from everlog.sessions import RELEASED, Delivery, Piece, Session

Again: TypeAlias = deque[tuple[int, int, int]]  # packet id, state, position


def begin(session: Session) -> None:
    """The session has a new connection."""
    session.again = deque(session.pending()) or None


class Elsewhere(Protocol):
    """Where to find a message that the log has no more."""

    def again(self, session: Session, shard: int, offset: int) -> Records | None: ...


def send_again(
    log: Log, delivering: Delivering, session: Session, sink: Sink, elsewhere: Elsewhere | None = None
) -> bool:
    """Send as many of them as the client may be sent now; whether that was all."""
    window = session.window
    # acknowledgements may have come for some that were not reached yet
    again = deque(entry for entry in session.again or () if window.state(entry[0]) == entry[1])
    session.again = again
    unsent = sum(state != RELEASED for _, state, _ in again)
    while again and session.ready:
        packet_id, state, position = again[0]
        if state != RELEASED and window.inflight - unsent >= window.limit:
            session.again = _release(again, sink)
            return False
        again.popleft()
        if state == RELEASED:
            sink.write(write_acks(0x62, packet_id.to_bytes(2, "little"), 0, 1))
            continue
        unsent -= 1
        data = _message(log, delivering, session, packet_id, state, position, elsewhere)
        if data:
            sink.write(data)
            continue
        session.counters.expired += 1  # or too large for this client, or no longer in the log
        if state == 2:  # the client may have it, and would take the next message with this id for it
            window.release(packet_id)
            sink.write(write_acks(0x62, packet_id.to_bytes(2, "little"), 0, 1))
        else:
            window.forget(packet_id)
    if again:
        return False
    session.again = None
    return True


def _release(again: Again, sink: Sink) -> Again:
    """Send the PUBRELs of all that was received; what is left to be sent."""
    received = [packet_id.to_bytes(2, "little") for packet_id, state, _ in again if state == RELEASED]
    if received:
        sink.write(write_acks(0x62, b"".join(received), 0, len(received)))
    return deque(entry for entry in again if entry[1] != RELEASED)


def _message(
    log: Log,
    delivering: Delivering,
    session: Session,
    packet_id: int,
    state: int,
    position: int,
    elsewhere: Elsewhere | None,
) -> bytes:
    """The PUBLISH as it was sent, with DUP."""
    shard, offset = unpack_position(position)
    if session.unlogged is not None:
        piece = session.unlogged.find(packet_id, position)
        if piece is not None:
            return _again(session, piece, state, packet_id, delivering.now_us(), shard)
    if shard == NOT_KEPT:
        return b""
    records = _find(log, shard, offset) or (elsewhere.again(session, shard, offset) if elsewhere is not None else None)
    if records is None:
        return b""
    row = _row(records, offset)
    topic = delivering.topic_of(records, row)
    delivery = delivering.audiences.delivery_of(topic, session) if topic >= 0 else None
    if delivery is not None:  # sent before another subscription went back, it may be below where its own begins now
        delivery = begun_at(delivery, shard, offset) or delivery
    piece = Piece(records, None, row, row + 1, delivery or Delivery(session, state))
    return _again(session, piece, state, packet_id, delivering.now_us(), shard)


def _find(log: Log, shard: int, offset: int) -> Records | None:
    """The batch of the log that has an offset; None if it is gone, or emptied because its topic's time is over."""
    for records in log.shards[shard].read(offset, 1):
        if not records.base_offset <= offset < records.end_offset:
            return None
        return None if is_emptied(records, offset - records.base_offset) else records
    return None


def _again(session: Session, piece: Piece, state: int, packet_id: int, now_us: int, shard: int) -> bytes:
    writer = session.writer(piece.delivery)
    records, rows, start = piece.records, piece.rows, piece.start
    data = writer.write(records, rows, start, start + 1, state, packet_id, now_us, True, 1, shard)
    if not data and state == 2:  # [MQTT-4.3.3-7] what was sent at QoS 2 does not expire
        data = writer.write(records, rows, start, start + 1, state, packet_id, 0, True, 1, shard)
    return data


def _row(records: Records, offset: int) -> int:
    if not records.with_offsets:
        return offset - records.base_offset
    return next(row for row in range(records.count) if records.offset(row) >= offset)
