"""Redelivery: what was under way when a connection broke is sent again on the next one, before anything new.

[MQTT-4.4.0-1] PUBLISHes with their packet ids and DUP, PUBRELs for those that were received, in the order of the first
sending.
"""

from dataclasses import replace
from typing import Protocol

from everlog.base import NOT_KEPT, QOS_BITS, QOS_SHIFT, Records, is_emptied, unpack_position
from everlog.broker.delivery.fanout import Fanout
from everlog.broker.delivery.overlaps import begun_at
from everlog.broker.delivery.ports import Log, Sink
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.mqtt import write_acks
from everlog.sessions import RELEASED, MergedSubscription, OutgoingRows, Session, row_at

_PUBREL_HEADER = 0x62


class Elsewhere(Protocol):
    """A source of messages that are no longer in the log."""

    def again(self, session: Session, shard: int, offset: int) -> Records | None: ...


def send_again(
    log: Log,
    fanout: Fanout,
    session: Session,
    sink: Sink,
    retained: RetainedMessages,
    elsewhere: Elsewhere | None = None,
) -> bool:
    """Send as many of them as the client may be sent now; return whether that was all."""
    for packet_id, state, position in session.redeliveries():
        if state != RELEASED:
            data = _message(log, fanout, session, packet_id, state, position, retained, elsewhere)
            if data:
                sink.write(data)
                continue
            if not session.give_up(packet_id, withheld=data is None):
                continue
        sink.write(write_acks(_PUBREL_HEADER, packet_id.to_bytes(2, "little"), 0, 1))
    return not session.is_redelivering


def _message(
    log: Log,
    fanout: Fanout,
    session: Session,
    packet_id: int,
    state: int,
    position: int,
    retained: RetainedMessages,
    elsewhere: Elsewhere | None,
) -> bytes | None:
    """Return the PUBLISH as it was sent, with DUP; nothing if it is gone, None if its client may not read it now."""
    shard, offset = unpack_position(position)
    out = session.copy_of(packet_id, position)
    if out is None and shard == NOT_KEPT:
        out = _retained(retained, fanout, session, state, offset)
    elif out is None:
        out = _of_log(log, fanout, session, state, shard, offset, elsewhere)
    if out is None:
        return b""
    if fanout.rights is not None and not fanout.rights.allow(session, out):
        return None
    return _again(session, out, state, packet_id, fanout.now_us(), shard)


def _of_log(
    log: Log, fanout: Fanout, session: Session, state: int, shard: int, offset: int, elsewhere: Elsewhere | None
) -> OutgoingRows | None:
    """Return a message that is in the log or was there, and how it goes to the session."""
    records = batch_of(log, shard, offset)
    if records is None and elsewhere is not None:
        records = elsewhere.again(session, shard, offset)
    if records is None:
        return None
    row = row_at(records, offset)
    merged = fanout.audiences.merged_of(records, row, session)
    if merged is not None:  # sent before another subscription went back, it may be below where its own begins now
        merged = begun_at(merged, shard, offset) or merged
    return OutgoingRows(records, None, row, row + 1, merged or MergedSubscription(session, state))


def _retained(
    retained: RetainedMessages, fanout: Fanout, session: Session, state: int, offset: int
) -> OutgoingRows | None:
    """Return the retained message that was under way when the broker stopped, or what has replaced it since.

    None if it is gone, or has a lower QoS now: what replaced it was published to the session too.
    """
    records = retained.find(offset)
    if records is None:
        return None
    merged = fanout.audiences.merged_of(records, 0, session) or MergedSubscription(session, state)
    out = OutgoingRows(records, None, 0, 1, replace(merged, retain_as_published=True))
    return out if (out.flags()[0] & QOS_BITS) >> QOS_SHIFT >= state else None


def batch_of(log: Log, shard: int, offset: int, last: Records | None = None) -> Records | None:
    """Return the batch of the log that has a message, which may be the `last` one looked at in its shard.

    None if the message is gone, or emptied because its topic's time is over.
    """
    if last is None or not last.base_offset <= offset < last.end_offset:
        read = log.shards[shard].read(offset, 1)
        last = read[0] if read and read[0].base_offset <= offset < read[0].end_offset else None
    return None if last is None or is_emptied(last, row_at(last, offset)) else last


def _again(session: Session, out: OutgoingRows, state: int, packet_id: int, now_us: int, shard: int) -> bytes:
    writer = session.writer(out.merged)
    records, rows, start = out.records, out.rows, out.start
    data = writer.write(records, rows, start, start + 1, state, packet_id, now_us, True, 1, shard)
    if not data and state == 2:  # [MQTT-4.3.3-7] what was sent at QoS 2 does not expire
        data = writer.write(records, rows, start, start + 1, state, packet_id, 0, True, 1, shard)
    return data
