"""Which messages of the log a client has published itself, by what the log says of publishers.

A broker knows that of the messages since its start; of those before, which a session has not been handed, the log does
(`keep.publishers`).
"""

from bisect import bisect_left
from collections.abc import Iterable

from everlog.base import NO_PUBLISHER, Records, split_publisher
from everlog.broker.delivery.ports import Shard
from everlog.sessions import OutgoingRows


def own_before(out: OutgoingRows, shard: Shard, number: int) -> list[tuple[int, int]]:
    """Return the offsets, as stretches, of rows that their session published before the broker started."""
    session = out.merged.session
    first, stop = session.unknown_own(number)
    offsets = [offset for offset in map(out.records.offset, out.row_numbers()) if first <= offset < stop]
    return [(offset, offset + 1) for offset in _published_by(session.client_id, shard, offsets)]


def _published_by(client_id: str, shard: Shard, offsets: Iterable[int]) -> Iterable[int]:
    """Yield those of rising offsets whose messages are of a client."""
    batch: Records | None = None
    for offset in offsets:
        if batch is None or offset >= batch.end_offset:
            batch = next(iter(shard.read(offset, 1)), None)
        if batch is None or not batch.base_offset <= offset < batch.end_offset:
            continue  # it is lost since
        publisher = batch.publisher(bisect_left(range(batch.count), offset, key=batch.offset))
        names = batch.table.publishers
        if publisher != NO_PUBLISHER and names is not None and split_publisher(names.name(publisher))[0] == client_id:
            yield offset
