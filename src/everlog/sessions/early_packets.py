"""Packets of QoS 2 messages that are made ahead of their turn, so that their ids are stored by then.

A client with a small Receive Maximum makes room only by a PUBCOMP, which follows a PUBREL, which waits for the tables
([why](docs/decisions/qos2-exactly-once.md)). If the next messages got their ids only then, they would wait for the
tables once more. So they get them with the window before: under way for the tables, and kept by the output until the
window has room. A connection that ends before sends them on the next one, as it does all that is under way.
"""

from everlog.base import HAS_EXPIRY, QOS_BITS, QOS_SHIFT
from everlog.mqtt import PublishWriter
from everlog.sessions.counters import Counters
from everlog.sessions.outgoing_rows import OutgoingRows
from everlog.sessions.window import Window

SMALL_WINDOW = 64  # messages; a larger one has room again before it has run dry
_EARLY_BYTES = 64 << 10  # made at a time


def write_early(
    window: Window, writer: PublishWriter, out: OutgoingRows, shard: int, now_us: int, most: int, counters: Counters
) -> list[bytes]:
    """Return the packets of up to `most` messages that the window has no room for.

    `out.start` is where that ended: at a message of another QoS, which has no id or needs none stored, or at one that
    may expire while it waits.
    """
    packets: list[bytes] = []
    size = 0
    limit, flags = window.limit, out.flags()
    first = out.start
    while out.start < out.stop and len(packets) < most and size < _EARLY_BYTES:
        flag = flags[out.start - first]
        if (flag & QOS_BITS) >> QOS_SHIFT != 2 or flag & HAS_EXPIRY:
            break
        window.limit = window.inflight + 1
        room, start = window.room(), out.start
        data = writer.write(out.records, out.rows, start, start + 1, 2, window.next_id, now_us, False, room, shard)
        window.sent(writer, out.records, out.rows, start, shard)
        window.limit = limit
        counters.sent += writer.written
        counters.expired += writer.left_out
        if writer.stopped_at == start:
            break
        out.start = writer.stopped_at
        if data:
            packets.append(data)
            size += len(data)
    return packets
