"""Compaction: rounds of plan, write and commit until the table has what the log has sealed; then merge and retain.

A round that is killed, overtaken or run by two drivers at once leaves at most files that nothing refers to; the
next one begins from what the table has.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everlog.spark.cluster_place import ClusterPlace
from everlog.spark.lake.compaction_plan import GROUP_BYTES, ROUND_BYTES, Round, plan_round
from everlog.spark.lake.data_file import total_rows
from everlog.spark.lake.file_merge import MergeTask, merge_files, plan_merges
from everlog.spark.lake.file_retention import plan_retention
from everlog.spark.lake.identity import check_same_history, open_for
from everlog.spark.lake.lake_table import Lake, Overtaken
from everlog.spark.lake.location import Location
from everlog.spark.lake.parquet_writer import Codec
from everlog.spark.lake.runner import Runner
from everlog.spark.lake.slice_writer import WriteTask, Written, write_slice
from everlog.spark.log_slices import OnDamage
from everlog.spark.snapshot import Snapshot, take_snapshot
from everlog.store import LakeRecord, Lost, read_lake_record, write_lake_record

Announce = Callable[[str, int], None]  # called with what begins, and its number of tasks


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """How a store is compacted."""

    codec: Codec = "zstd"
    everything: bool = False  # the open segments too, as far as they are committed
    on_damage: OnDamage = "fail"
    merge: bool = False
    retain_us: int | None = None
    group_bytes: int = GROUP_BYTES
    round_bytes: int = ROUND_BYTES


@dataclass(slots=True)
class CompactionSummary:
    """What was done, added up."""

    rows: int = 0
    files: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    rounds: int = 0
    overtaken: int = 0
    merged: int = 0
    dropped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the writing tasks
    version: int | None = None
    lost: list[Lost] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def add_round(self, plan: Round, written: list[Written], version: int) -> None:
        """Count a round that was committed."""
        files = [file for one in written for file in one.files]
        self.rounds += 1
        self.version = version
        self.rows += total_rows(files)
        self.files += len(files)
        self.file_bytes += sum(file.size_bytes for file in files)
        self.log_bytes += plan.log_bytes
        self.cpu_seconds += sum(one.cpu_seconds for one in written)
        self.lost += plan.lost
        self.damage += [text for one in written for text in one.damage]


class Compaction:
    """Brings the table of one store up to its log; two processes may do so at once, two threads may not."""

    def __init__(
        self,
        data: "str | ClusterPlace",
        location: Location,
        runner: Runner,
        options: CompactionOptions | None = None,
        announce: Announce | None = None,
    ) -> None:
        self._options = options if options is not None else CompactionOptions()
        self._runner = runner
        self._announce = announce if announce is not None else _quietly
        self._cluster = data if isinstance(data, ClusterPlace) else None
        self._data = data.title if isinstance(data, ClusterPlace) else os.path.abspath(data)
        snapshot = self._look()
        self.shards = tuple(shard.shard for shard in snapshot.shards)
        is_new = location.is_local and not os.path.exists(location.uri)
        self.lake: Lake = open_for(location, snapshot, self._record())
        if is_new and os.path.dirname(location.uri) == os.path.abspath(snapshot.path):
            _make_private(location.uri)
        self._seen: dict[int, int | None] = {}  # up to these ends the table is known to have this log's records

    def _look(self) -> Snapshot:
        """Return the log as it is committed now."""
        if self._cluster is None:
            return take_snapshot(self._data)
        from everlog.spark.cluster_log import take_cluster_snapshot

        return take_cluster_snapshot(self._cluster, again=True)

    def _record(self) -> LakeRecord | None:
        if self._cluster is None:
            return read_lake_record(self._data)
        from everlog.spark.cluster_log import read_cluster_record

        return read_cluster_record(self._cluster)

    def run(self, summary: CompactionSummary | None = None) -> CompactionSummary:
        """Compact all that there is now; what was done is added to the summary."""
        summary = summary if summary is not None else CompactionSummary()
        began = time.monotonic()
        while self.round(summary):
            pass
        if self._options.retain_us is not None:
            self.retain(summary, time.time_ns() // 1000, self._options.retain_us)
        if self._options.merge:
            self.merge(summary)
        self.write_record()
        summary.seconds += time.monotonic() - began
        return summary

    def round(self, summary: CompactionSummary) -> bool:
        """Make one commit, if there is something to commit; returns whether there may be more."""
        options = self._options
        snapshot = self._look()
        ends = self.lake.ends(self.shards)
        plan = plan_round(
            snapshot,
            ends,
            everything=options.everything,
            group_bytes=options.group_bytes,
            round_bytes=options.round_bytes,
        )
        if not plan.ranges:
            return False
        moved = {shard for shard, end in ends.items() if end is not None and end != self._seen.get(shard)}
        if moved:
            check_same_history(self.lake.location.uri, self.lake.files(), snapshot, moved, self._cluster)
        groups = sorted(plan.groups, key=lambda group: -group.size_bytes)  # the last task to end is then a short one
        if self._cluster is not None:
            from everlog.spark.cluster_log import fill_tails

            groups = fill_tails(self._cluster, snapshot.pin, groups)
        tasks = [WriteTask(group, self.lake.location, options.codec, options.on_damage) for group in groups]
        if tasks:
            self._announce("compacting", len(tasks))
        written = self._runner.run(write_slice, tasks)
        files = [file for one in written for file in one.files]
        try:
            version = self.lake.append(files, plan.ranges, plan.starts, plan.lost)
        except Overtaken:
            summary.overtaken += 1
            return True
        self._seen = ends | {shard: end for shard, (_, end) in plan.ranges.items()}
        self.write_record()
        summary.add_round(plan, written, version)
        return plan.more

    def merge(self, summary: CompactionSummary) -> None:
        """Put small files together, each group in a commit of its own."""
        runs = plan_merges(self.lake.files())
        tasks = [MergeTask(run, self.lake.location, self._data, self._options.codec) for run in runs]
        self._announce("merging", len(tasks))
        made = self._runner.run(merge_files, tasks)
        for run, file in zip(runs, made, strict=True):
            try:
                summary.version = self.lake.rewrite(run, [file], "merge")
                summary.merged += len(run)
            except Overtaken:
                summary.overtaken += 1

    def retain(self, summary: CompactionSummary, now_us: int, retain_us: int) -> None:
        """Drop the files of days that ended longer ago than `retain_us`."""
        for _ in range(3):
            old = plan_retention(self.lake.files(), now_us, retain_us)
            if not old:
                return
            try:
                summary.version = self.lake.drop(old, "retention")
                summary.dropped += len(old)
                return
            except Overtaken:
                summary.overtaken += 1

    def lost(self) -> list[Lost]:
        """Return what is missing within the table for good, found now or by an earlier compaction."""
        table = self.lake.load()
        return self.lake.lost(self.lake.starts(self.shards, self.lake.files(table), table), table)

    def write_record(self) -> None:
        """Record in the data directory how far the table goes."""
        ends = {shard: end for shard, end in self.lake.ends(self.shards).items() if end is not None}
        location = self.lake.location
        record = LakeRecord(table=location.uri, store=self.lake.store, ends=ends, options=location.named_options())
        if self._cluster is None:
            write_lake_record(self._data, record)
            return
        from everlog.spark.cluster_log import write_cluster_record

        write_cluster_record(self._cluster, record)


def _make_private(directory: str) -> None:
    """Have the directory of a new table in the data directory be for its owner alone, like all else there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    os.chmod(directory, 0o700)


def _quietly(what: str, tasks: int) -> None:
    pass
