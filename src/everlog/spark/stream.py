"""The streaming reader: `spark.readStream.format("everlog")`.

Spark keeps the progress in its checkpoint, and asks for the same range again after a restart: what a range holds never
changes, whether it is read from the log or, where the log has dropped it, from the table. The store is opened once and
refreshed for every batch. The driver's side and the tasks have a reader each, in processes of their own.
"""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from everlog.base import StorageError, Unavailable, UsageError
from everlog.spark.admission import Extent, admit
from everlog.spark.frame_plan import NOTHING, FramePlan, Ranges, is_table, lake_of, plan_frame, unkept_in
from everlog.spark.lost_offsets import find_lost, name_lost, without_lost
from everlog.spark.pyspark_api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from everlog.spark.snapshot import Snapshot, snapshot_of
from everlog.spark.source import EverlogReader, for_tasks, rows_in
from everlog.spark.store_cache import open_fresh
from everlog.spark.stream_options import StreamOptions
from everlog.spark.stream_progress import Progress, read_progress
from everlog.store import Lost

if TYPE_CHECKING:
    from everlog.spark.lake_slices import LakeSnapshot

log = logging.getLogger(__name__)


class EverlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches of one store."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._cluster = options.source.cluster
        self._stored: list[tuple[dict[str, Any], list[str]]] = []  # objects with rows, by the end of their batch
        if self._cluster is None and is_table(options.source.path):
            hint = "give the data directory of the log: what it no longer has is read from its table"
            raise UsageError(f"{options.source.path} is a table, and a stream follows a log", hint=hint)
        self._path = options.source.path if self._cluster is not None else os.path.abspath(options.source.path)
        self._until: dict[int, int] | None = None  # the ends of a run that stops where the log ended when it began
        EverlogReader(options.source, NOTHING, schema)  # refuses a schema that is not the table's

    def initialOffset(self) -> dict[str, Any]:
        """Return where a stream without a checkpoint begins."""
        plan = plan_frame(self._options.source, time.time_ns() // 1000)
        for note in unkept_in(self._options.source):
            log.warning("%s", note)
        starts = {shard: first for shard, (first, _) in plan.ranges.items()}
        return self._progress(plan.snapshot.identity, starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; Spark knows one, though both are kept."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run where the log ends now."""
        self._until = self._ends(self._look())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes."""
        snapshot = self._look()
        known = read_progress(start, snapshot.identity, self._wanted(snapshot))
        self._tell_changed(known)
        begin = known.offsets
        ends = self._ends(snapshot)
        _check_ends(snapshot, begin, ends)
        if self._until is not None:
            ends = {shard: max(begin[shard], min(end, self._until[shard])) for shard, end in ends.items()}
        if ends != begin and not isinstance(limit, ReadAllAvailable):
            ranges = {shard: (begin[shard], end) for shard, end in ends.items()}
            lake = self._lake(snapshot, ranges)
            self._refuse(find_lost(snapshot, lake, ranges))
            there = {shard: first for shard, (first, _) in without_lost(snapshot, lake, ranges).items()}
            extents = _extents(snapshot, lake)
            ends = admit(there, ends, extents, self._options.max_records, self._options.max_bytes)
        return self._progress(snapshot.identity, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the log ends now."""
        snapshot = self._look()
        return self._progress(snapshot.identity, self._ends(snapshot))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what the tasks of a micro-batch read."""
        snapshot = self._look()
        shards = self._wanted(snapshot)
        begin = read_progress(start, snapshot.identity, shards).offsets
        stop = read_progress(end, snapshot.identity, shards).offsets
        _check_ends(snapshot, stop, self._ends(snapshot))
        ranges = {shard: (begin[shard], max(begin[shard], stop[shard])) for shard in begin}
        lake = self._lake(snapshot, ranges)
        lost = find_lost(snapshot, lake, ranges)
        self._refuse(lost)
        for one in lost:
            log.warning(
                "left out of the stream: retention removed %d offsets of shard %d, %d to %d",
                one.to_offset - one.from_offset,
                one.shard,
                one.from_offset,
                one.to_offset - 1,
            )
        plan = FramePlan(snapshot, lake, without_lost(snapshot, lake, ranges), self._cluster)
        made = EverlogReader(self._options.source, plan, self._schema).partitions()
        if self._cluster is not None:
            self._stored.append((end, rows_in(made)))
        return made

    def commit(self, end: dict[str, Any]) -> None:
        """Delete what was stored for batches that are done."""
        done = [at for at, (until, _) in enumerate(self._stored) if until == end]
        if done and self._cluster is not None:
            from everlog.spark.cluster_log import delete_rows

            delete_rows(self._cluster, [name for _, names in self._stored[: done[-1] + 1] for name in names])
            del self._stored[: done[-1] + 1]

    def stop(self) -> None:
        """Let go of what a cluster keeps for this stream."""
        if self._cluster is not None:
            from everlog.spark.cluster_log import unpin

            unpin(self._cluster)

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks get: nothing by which a database could be asked."""
        options = replace(self._options, source=for_tasks(self._options.source))
        return {**self.__dict__, "_options": options, "_cluster": options.source.cluster, "_stored": []}

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return EverlogReader(self._options.source, NOTHING, self._schema).read(partition)

    def _progress(self, store: str, offsets: dict[int, int]) -> dict[str, Any]:
        return Progress.of(store, offsets, self._topics).to_json()

    @property
    def _topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._options.source.filters or ("#",)))

    def _tell_changed(self, known: Progress) -> None:
        """Say, once for a checkpoint, that other topics were asked for until now."""
        if known.topics is not None and known.topics != self._topics:
            log.warning(
                "the stream was begun with topic %s, and goes on with %s: of topics that are new to it, nothing before"
                " %s is read; give another checkpointLocation to read all of them",
                ", ".join(known.topics),
                ", ".join(self._topics),
                ",".join(f"{shard}:{offset}" for shard, offset in known.shards),
            )

    def _look(self) -> Snapshot:
        """Return the store as it is now."""
        if self._cluster is None:
            return snapshot_of(open_fresh(self._path), self._path)
        from everlog.spark.cluster_log import take_cluster_snapshot

        return take_cluster_snapshot(self._cluster, again=True)

    def _wanted(self, snapshot: Snapshot) -> tuple[int, ...]:
        shards = self._options.source.shards
        known = tuple(shard.shard for shard in snapshot.shards)
        if shards is not None and not set(shards) <= set(known):
            raise UsageError(f"there is no shard {max(shards)}", hint=f"the shards are 0 to {known[-1]}")
        return known if shards is None else shards

    def _ends(self, snapshot: Snapshot) -> dict[int, int]:
        return {shard: snapshot.shards[shard].end for shard in self._wanted(snapshot)}

    def _lake(self, snapshot: Snapshot, ranges: Ranges) -> "LakeSnapshot | None":
        """Return the table, if something is wanted that the log no longer has."""
        if self._options.source.tier == "log":
            return None
        below = any(first < snapshot.shards[shard].start and first < last for shard, (first, last) in ranges.items())
        return lake_of(snapshot, self._cluster) if below else None

    def _refuse(self, lost: list[Lost]) -> None:
        if lost and self._options.source.on_lost == "fail":
            raise Unavailable(
                f"retention removed offsets that the stream has not read: {name_lost(lost)}",
                hint='set the option onLost to "skip" to go on after them, and keep more: --retention-age',
            )


def _extents(snapshot: Snapshot, lake: "LakeSnapshot | None") -> list[Extent]:
    """Return the sizes of ranges: segments of the log, and files of the table where there is no log."""
    found = [
        Extent(shard.shard, segment.base_offset, segment.end_offset, max(1, segment.size_bytes))
        for shard in snapshot.shards
        for segment in shard.segments
    ]
    for file in lake.files if lake is not None else ():
        stop = min(file.last_offset + 1, snapshot.shards[file.shard].start)
        if file.first_offset < stop:
            share = (stop - file.first_offset) / (file.last_offset + 1 - file.first_offset)
            found.append(Extent(file.shard, file.first_offset, stop, max(1, int(file.size_bytes * share))))
    return found


def _check_ends(snapshot: Snapshot, asked: dict[int, int], ends: dict[int, int]) -> None:
    for shard, offset in asked.items():
        if offset > ends[shard]:
            raise StorageError(
                f"the stream has read shard {shard} up to offset {offset}, and the log ends at {ends[shard]}",
                hint=f"{snapshot.path} may be an older copy: put back the newer one, or use a new checkpointLocation",
            )
