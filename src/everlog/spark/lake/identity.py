"""Checks that a table belongs to a log: it is the one that the data directory names, not behind, and not a copy's.

A copy of a store has the store's identity. If both write to one table, they are told apart by the
time of a record that both table and log have.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from everlog.base import StorageError
from everlog.spark.cluster_place import ClusterPlace
from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.lake_table import Lake, NoTable, find_lake, open_lake
from everlog.spark.lake.location import Location, locate
from everlog.spark.snapshot import Snapshot
from everlog.store import LakeRecord, LogStore


def find_recorded(record: LakeRecord, options: Mapping[str, str] | None = None) -> Lake:
    """Return the table that a data directory names; secrets come from the environment or the options."""
    location = locate(record.table, options)
    try:
        return find_lake(location)
    except NoTable:
        raise _missing(location, record) from None


def open_for(location: Location, snapshot: Snapshot, record: LakeRecord | None) -> Lake:
    """Open the table of a store, or make it, unless the recorded table before it has what the log has dropped."""
    if record is None or record.store != snapshot.identity or not any(record.ends.values()):
        return open_lake(location, snapshot.identity)
    ends: dict[int, int | None] = {}
    try:
        ends = open_lake(location, snapshot.identity, make=False).ends(record.ends)
    except NoTable:
        if location.uri == locate(record.table).uri:
            raise _missing(location, record) from None
    for shard in snapshot.shards:
        end, known = ends.get(shard.shard) or 0, record.ends.get(shard.shard, 0)
        if end < min(known, shard.start):
            raise StorageError(
                f"{location.uri} has offsets of shard {shard.shard} up to {end}, {record.table} had them up to "
                f"{known}, and the log has dropped those below {shard.start}",
                hint="put the newer table there, or remove lake.json from the data directory to do without them",
            )
    return open_lake(location, snapshot.identity)


def check_same_history(
    table: str,
    files: Iterable[DataFile],
    snapshot: Snapshot,
    shards: Collection[int],
    cluster: ClusterPlace | None = None,
) -> None:
    """Refuse a table that has other records of these shards than the log, as another copy of the store wrote them."""
    # files come by offset, so the last one stays; of those that others rewrote the bounds are not exact
    lasts = {file.shard: file for file in files if file.shard in shards and not file.is_foreign}
    bounds = {shard.shard: (shard.start, shard.end) for shard in snapshot.shards}
    with _times(snapshot, cluster) as time_of:
        for shard, file in lasts.items():
            start, end = bounds[shard]
            if not start <= file.last_offset < end:
                continue
            time_us = time_of(shard, file.last_offset)
            if time_us is not None and time_us != file.last_time:
                raise StorageError(
                    f"shard {shard} of {snapshot.path} has another record at offset {file.last_offset} than "
                    f"{table}: another copy of the store was compacted into that table",
                    hint="give each copy a table of its own: --table",
                )


@contextmanager
def _times(snapshot: Snapshot, cluster: ClusterPlace | None) -> Iterator[Callable[[int, int], int | None]]:
    """Yield what tells the time of a record, or None where the log can't tell."""
    if cluster is not None:
        from everlog.spark.cluster_log import time_of

        yield lambda shard, offset: time_of(cluster, snapshot.shards[shard], offset)
        return
    with closing(LogStore.open(snapshot.path, writable=False)) as store:
        yield partial(_time_of, store)


def _time_of(store: LogStore, shard: int, offset: int) -> int | None:
    """Return the time of a record, or None where the log can't tell: it was emptied, or is damaged."""
    try:
        result = store.reader(None).read_shard(shard, offset, 1, 1)
    except StorageError:
        return None
    for found in result.batches:
        for number in found.row_numbers():
            at, time_us, *_ = found.records.row(number)
            if at == offset:
                return int(time_us)
    return None


def _missing(location: Location, record: LakeRecord) -> StorageError:
    return StorageError(
        f"{location.uri} holds no table, and lake.json names it as the one with offsets up to "
        f"{max(record.ends.values(), default=0)}",
        hint="put the table back, or remove lake.json from the data directory to do without what only the table has",
    )
