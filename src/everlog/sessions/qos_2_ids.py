"""The packet ids of the QoS 2 messages of a run, by the shard that keeps each."""

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun


def qos_2_ids(run: PublishRun, routes: bytearray) -> dict[int, bytearray]:
    """Return the packet ids, as columns, of a run's QoS 2 messages that were not dropped; `routes` names the shards."""
    columns = run.columns
    topics = memoryview(columns.topics).cast("I")
    found: dict[int, bytearray] = {}
    for row in range(run.start, run.stop):
        if columns.flags[row] & (QOS_BITS | DROPPED) == 2 << QOS_SHIFT:
            found.setdefault(routes[4 * topics[row] + 2], bytearray()).extend(columns.packet_ids[2 * row : 2 * row + 2])
    return found
