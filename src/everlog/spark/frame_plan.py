"""What a frame reads, fixed when it is loaded: the log, the lake table before it, and the wanted offsets.

The log is looked at first: the table has what it has dropped by then. Offsets that the table has are read from the
table, those below and above from the log.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everlog.base import EverlogError, UsageError
from everlog.spark.cluster_place import ClusterPlace, is_cluster
from everlog.spark.log_slices import parse_filters
from everlog.spark.snapshot import ShardSnapshot, Slice, Snapshot, plan, snapshot_of
from everlog.spark.source_options import SourceOptions
from everlog.spark.store_cache import open_fresh
from everlog.store import Begin, BeginKind, LogStore, locate, parse_begin, read_lake_record, unkept_notes

if TYPE_CHECKING:
    from everlog.spark.lake_slices import LakeSlice, LakeSnapshot

Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FramePlan:
    """The log, the lake table, and for each wanted shard the offsets from one to before another."""

    snapshot: Snapshot
    lake: "LakeSnapshot | None"
    ranges: Ranges
    cluster: ClusterPlace | None = None

    def slices(self, tasks: int, filters: Sequence[str] | None = None) -> "list[Slice | LakeSlice]":
        """Return slices with each record in one of them; with filters, at least the records that match."""
        told = filters is not None and self.snapshot.path and self.snapshot.bucket is None
        share = Shares(self.snapshot.path, filters or ()).of if told else None
        if self.lake is None:
            return [*self._filled(plan(self.snapshot, ranges=self.ranges, tasks=tasks, share=share))]
        from everlog.spark.lake_slices import plan_lake

        before: Ranges = {}
        within: Ranges = {}
        behind: Ranges = {}
        for shard, (first, last) in self.ranges.items():
            start, end = self.lake.starts[shard], self.lake.ends[shard]
            before[shard] = (first, max(first, min(last, start)))
            within[shard] = (max(first, start), min(last, end))
            behind[shard] = (min(max(first, end), last), last)
        hot = [
            plan(self.snapshot, ranges=self._in_log(ranges), tasks=tasks, share=share) for ranges in (before, behind)
        ]
        return [*self._filled(hot[0]), *plan_lake(self.lake, within, filters), *self._filled(hot[1])]

    def _filled(self, slices: list[Slice]) -> list[Slice]:
        """Return slices with the rows that are in the tail of a cluster: tasks do not ask its database."""
        if self.cluster is None:
            return slices
        from everlog.spark.cluster_log import fill_tails

        return fill_tails(self.cluster, self.snapshot.pin, slices)

    def _in_log(self, ranges: Ranges) -> Ranges:
        """Return the part of the ranges that the log may have; a restored log may end before its table."""
        ends = {shard.shard: shard.end for shard in self.snapshot.shards}
        return {shard: (min(first, ends[shard]), min(last, ends[shard])) for shard, (first, last) in ranges.items()}


NOTHING = FramePlan(Snapshot("", "", ()), None, {})


class Shares:
    """Tells which part of a slice some filters want, from the topic indexes of the store."""

    def __init__(self, path: str, filters: Sequence[str]) -> None:
        self._reader = open_fresh(path).reader(parse_filters(filters))

    def of(self, piece: Slice) -> float:
        """Return about which part of a slice is wanted; all of it after an error, which its reader will meet."""
        try:
            return self._reader.share(piece.shard, piece.start)
        except EverlogError:
            return 1.0


def plan_frame(options: SourceOptions, now_us: int) -> FramePlan:
    """Return what a frame with these options reads."""
    if options.cluster is not None:
        return _plan_cluster(options, options.cluster, now_us)
    if is_table(options.path):
        return _plan_table(options, now_us)
    path = os.path.abspath(options.path)
    with closing(LogStore.open(path, writable=False)) as store:
        snapshot = snapshot_of(store, path)
        lake = None if options.tier == "log" else lake_of(snapshot)
        starts, ends = _bounds(snapshot, lake, options.tier)
        if lake is not None and options.tier == "table":
            snapshot = _without_log(snapshot.path, snapshot.identity, lake)
        ranges = _ranges(
            options, starts, ends, lambda time_us: _positions_at(store.positions_at(time_us), lake, time_us), now_us
        )
    return FramePlan(snapshot, lake, ranges)


def _plan_cluster(options: SourceOptions, place: ClusterPlace, now_us: int) -> FramePlan:
    """Return what a frame reads of a cluster."""
    from everlog.spark.cluster_log import positions_at, take_cluster_snapshot

    snapshot = take_cluster_snapshot(place)
    lake = None if options.tier == "log" else lake_of(snapshot, place)
    starts, ends = _bounds(snapshot, lake, options.tier)
    in_log = snapshot
    if lake is not None and options.tier == "table":
        snapshot = _without_log(snapshot.path, snapshot.identity, lake)

    def at(time_us: int) -> tuple[int, ...]:
        return _positions_at(positions_at(place, in_log, time_us), lake, time_us)

    return FramePlan(snapshot, lake, _ranges(options, starts, ends, at, now_us), place)


def unkept_in(options: SourceOptions) -> list[str]:
    """Return what to say of the wanted topics that the settings of the store's broker do not keep."""
    if options.cluster is not None or is_table(options.path):
        return []
    return unkept_notes(options.path, options.filters or ("#",))


def is_table(path: str) -> bool:
    """Return whether this is the place of a table, and not of a log."""
    return ("://" in path and not is_cluster(path)) or os.path.isdir(os.path.join(path, "_delta_log"))


def _plan_table(options: SourceOptions, now_us: int) -> FramePlan:
    """Return what a frame reads from a table alone, wherever its log is or was."""
    from everlog.spark.lake_slices import take_table_snapshot

    if options.tier == "log":
        raise UsageError(f"{options.path} is a table, and no log", hint="give the data directory, or another tier")
    identity, lake = take_table_snapshot(options.path)

    def at(time_us: int) -> tuple[int, ...]:
        return tuple(lake.position_at(shard, time_us) for shard in range(len(lake.ends)))

    ranges = _ranges(options, lake.starts, lake.ends, at, now_us)
    return FramePlan(_without_log("", identity, lake), lake, ranges)


def _without_log(path: str, identity: str, lake: "LakeSnapshot") -> Snapshot:
    """Return the snapshot of a store whose log has nothing that is to be read."""
    shards = (ShardSnapshot(shard, "", end, end, ()) for shard, end in enumerate(lake.ends))
    return Snapshot(path, identity, tuple(shards))


def _ranges(
    options: SourceOptions,
    starts: Sequence[int],
    ends: Sequence[int],
    at: Callable[[int], tuple[int, ...]],
    now_us: int,
) -> Ranges:
    """Return the offsets that are wanted of each shard; a position may lie below what there is, and is then lost."""
    begin = parse_begin(options.begin, now_us)
    _check_positions("from", begin, ends)
    first = locate(begin, starts, ends, at)
    if begin.kind is not BeginKind.POSITION:
        first = tuple(map(max, first, starts))
    end = parse_begin(options.end, now_us)
    _check_positions("to", end, ends)
    # a shard that a position does not name is read to its end
    last = locate(end, starts if end.kind is BeginKind.EARLIEST else ends, ends, at)
    wanted = options.shards if options.shards is not None else range(len(ends))
    unknown = [shard for shard in wanted if not 0 <= shard < len(ends)]
    if unknown:
        raise UsageError(f"there is no shard {unknown[0]}", hint=f"the shards are 0 to {len(ends) - 1}")
    return {shard: (first[shard], max(first[shard], last[shard])) for shard in wanted}


def _check_positions(option: str, place: Begin, ends: Sequence[int]) -> None:
    """Refuse a position that no message has yet: it may be of another store, or mistyped."""
    for shard, offset in place.offsets:
        if shard < len(ends) and offset > ends[shard]:
            raise UsageError(
                f"the option {option} has {shard}:{offset}, and shard {shard} ends at {ends[shard]}",
                hint="write latest for the end",
            )


def lake_of(snapshot: Snapshot, cluster: ClusterPlace | None = None) -> "LakeSnapshot | None":
    """Return the table of the store, or None."""
    if cluster is None:
        record = read_lake_record(snapshot.path)
    else:
        from everlog.spark.cluster_log import read_cluster_record

        record = read_cluster_record(cluster)
    if record is None:
        return None
    from everlog.spark.lake_slices import take_lake_snapshot

    return take_lake_snapshot(record, snapshot, cluster)


def _bounds(snapshot: Snapshot, lake: "LakeSnapshot | None", tier: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return where each shard begins and ends."""
    starts = [shard.start for shard in snapshot.shards]
    ends = [shard.end for shard in snapshot.shards]
    if lake is None:
        if tier == "table":
            raise UsageError(f"{snapshot.path} has no table", hint="make one with: everlog spark compact DATA")
        return starts, ends
    if tier == "table":
        return lake.starts, lake.ends
    known = [start if start < end else low for start, end, low in zip(lake.starts, lake.ends, starts, strict=True)]
    first = [min(pair) for pair in zip(known, starts, strict=True)]
    return first, [max(pair) for pair in zip(lake.ends, ends, strict=True)]


def _positions_at(hot: tuple[int, ...], lake: "LakeSnapshot | None", time_us: int) -> tuple[int, ...]:
    """Return for each shard the first record that is not older than a time, in the log or the table."""
    if lake is None:
        return hot
    found = []
    for shard, offset in enumerate(hot):
        early = offset < lake.starts[shard] or lake.starts[shard] == lake.ends[shard]
        at = offset if early else lake.position_at(shard, time_us)
        found.append(at if at < lake.ends[shard] or early else max(offset, lake.ends[shard]))
    return tuple(found)
