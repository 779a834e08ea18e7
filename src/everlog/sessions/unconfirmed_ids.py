"""The packet ids of QoS 2 messages that are on their way to the log, by the shard that keeps each."""

from collections.abc import Iterable

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun


def ids_by_shard(
    run: PublishRun, new: int, routes: bytearray, ends: list[tuple[int, int]]
) -> Iterable[tuple[int, int, bytes]]:
    """Return shard, end and packet ids (a column) for each of the shards that keep some of a run, which end there.

    Of the run, `new` messages are at QoS 2 and did not come before.
    """
    columns = run.columns
    if new == len(run) and len(ends) == 1:
        return ((*ends[0], bytes(columns.packet_ids[2 * run.start : 2 * run.stop])),)
    by_shard: dict[int, bytearray] = {shard: bytearray() for shard, _ in ends}
    topics = memoryview(columns.topics).cast("I")
    for row in range(run.start, run.stop):
        if columns.flags[row] & (QOS_BITS | DROPPED) == 2 << QOS_SHIFT:
            ids = by_shard.get(routes[4 * topics[row] + 2])
            if ids is not None:
                ids += columns.packet_ids[2 * row : 2 * row + 2]
    return [(shard, end, bytes(by_shard[shard])) for shard, end in ends if by_shard[shard]]
