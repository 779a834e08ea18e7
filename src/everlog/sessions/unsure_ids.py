"""QoS 2 packet ids that are stored ahead of their messages, by the shard that tells whether they count."""

from collections.abc import Iterator

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun


def unsure_ids(
    run: PublishRun, new: int, routes: bytearray, ends: list[tuple[int, int]]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield shard, end and ids (a column) of a run with `new` QoS 2 messages, for each shard that keeps some."""
    columns = run.columns
    if new == len(run) and len(ends) == 1:
        yield (*ends[0], bytes(columns.packet_ids[2 * run.start : 2 * run.stop]))
        return
    by_shard: dict[int, bytearray] = {shard: bytearray() for shard, _ in ends}
    topics = memoryview(columns.topics).cast("I")
    for row in range(run.start, run.stop):
        if columns.flags[row] & (QOS_BITS | DROPPED) == 2 << QOS_SHIFT:
            ids = by_shard.get(routes[4 * topics[row] + 2])
            if ids is not None:
                ids += columns.packet_ids[2 * row : 2 * row + 2]
    for shard, end in ends:
        if by_shard[shard]:
            yield shard, end, bytes(by_shard[shard])
