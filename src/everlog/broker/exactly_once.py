"""QoS 2 packet ids of durable sessions, stored ahead of their messages; `docs/decisions/qos2-exactly-once.md`.

An id is written with the offset that its shard ends at behind the message. A broker that starts knows by the log
whether the message is there, and so whether the id counts.
"""

from everlog.base import PublishRun
from everlog.sessions import Session

_QOS_AND_DROPPED = 0x86
_QOS_2 = 0x04


def note_ids(session: Session, run: PublishRun, new: int, routes: bytearray, ends: list[tuple[int, int]]) -> None:
    """The session has taken in a run with `new` QoS 2 messages; `ends` says where the shards that keep some end."""
    columns = run.columns
    if new == len(run) and len(ends) == 1:
        session.unsure.append((*ends[0], bytes(columns.packet_ids[2 * run.start : 2 * run.stop])))
        return
    by_shard: dict[int, bytearray] = {shard: bytearray() for shard, _ in ends}
    topics = memoryview(columns.topics).cast("I")
    for row in range(run.start, run.stop):
        if columns.flags[row] & _QOS_AND_DROPPED == _QOS_2:
            ids = by_shard.get(routes[4 * topics[row] + 2])
            if ids is not None:
                ids += columns.packet_ids[2 * row : 2 * row + 2]
    session.unsure.extend((shard, end, bytes(by_shard[shard])) for shard, end in ends if by_shard[shard])
