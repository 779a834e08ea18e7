"""Plans a round of compaction: groups of segments, each for one task; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from everlog.base import StorageError
from everlog.spark.snapshot import SegmentFile, ShardSnapshot, Slice, Snapshot, split_slice
from everlog.store import Lost

GROUP_BYTES = 128 << 20  # of log for each task, which holds it in memory twice
ROUND_BYTES = 8 << 30  # of log for each commit: what is repeated when a round fails


@dataclass(frozen=True, slots=True)
class Round:
    """Slices to write, the offsets of each shard that they cover, and what retention took before."""

    groups: tuple[Slice, ...]
    ranges: Mapping[int, tuple[int | None, int]]  # by shard: the table's end before (None: not in it) and after
    lost: tuple[Lost, ...]
    more: bool  # whether the round leaves some for the next

    @property
    def starts(self) -> dict[int, int]:
        """Where shards begin that the table does not know yet."""
        found: dict[int, int] = {}
        for group in self.groups:
            if self.ranges[group.shard][0] is None:
                found[group.shard] = min(group.start, found.get(group.shard, group.start))
        return found

    @property
    def log_bytes(self) -> int:
        """How much log is read."""
        return sum(group.size_bytes for group in self.groups)


def plan_round(
    snapshot: Snapshot,
    ends: Mapping[int, int | None],
    *,
    everything: bool = False,
    group_bytes: int = GROUP_BYTES,
    round_bytes: int = ROUND_BYTES,
) -> Round:
    """Plan what of a snapshot is not in the table, whose shards end at `ends`: sealed segments, or `everything`.

    Every shard gets an equal part of the round, and at least one group.
    """
    groups: list[Slice] = []
    ranges: dict[int, tuple[int | None, int]] = {}
    lost: list[Lost] = []
    more = False
    share = round_bytes // max(1, len(snapshot.shards))
    for shard in snapshot.shards:
        end = ends.get(shard.shard)
        _check_end(snapshot, shard, end)
        segments = _wanted(shard, shard.start if end is None else end, everything)
        if not segments:
            if end is not None and (passed := _passed(shard, end)) > end:
                ranges[shard.shard] = (end, passed)
            continue
        if end is not None and end < shard.start:
            lost.append(Lost(shard.shard, end, shard.start))
        found = _groups(snapshot, shard, segments, max(end or 0, segments[0].base_offset), group_bytes)
        taken, held = 0, 0
        while taken < len(found) and (taken == 0 or held + found[taken].size_bytes <= share):
            held += found[taken].size_bytes
            taken += 1
        more = more or taken < len(found)
        groups += found[:taken]
        ranges[shard.shard] = (end, _passed(shard, found[taken - 1].stop))
    return Round(tuple(groups), ranges, tuple(lost), more)


def _check_end(snapshot: Snapshot, shard: ShardSnapshot, end: int | None) -> None:
    if end is not None and end > shard.end:
        raise StorageError(
            f"shard {shard.shard} of {snapshot.path} ends at offset {shard.end}, the table has it up to {end}",
            hint="the data directory is an older copy, or the table is another store's: give another --table",
        )


def _passed(shard: ShardSnapshot, end: int) -> int:
    """Return an end, moved to the next segment's begin if its own segment is used up: offsets between were never given.

    Once the log has dropped the segment, nothing tells such offsets from those that retention removed.
    """
    for segment, following in pairwise(shard.segments):
        if segment.sealed and segment.end_offset == end:
            return following.base_offset
    return end


def _wanted(shard: ShardSnapshot, first: int, everything: bool) -> list[SegmentFile]:
    """Return the segments from an offset on, up to the first that may still change."""
    found = []
    for segment in shard.segments:
        if not segment.sealed and not everything:
            break
        if segment.end_offset > first:
            found.append(segment)
    return found


def _groups(
    snapshot: Snapshot, shard: ShardSnapshot, segments: list[SegmentFile], first: int, group_bytes: int
) -> list[Slice]:
    """Return slices of about `group_bytes`: small segments together, large ones in parts."""
    groups: list[Slice] = []
    held: list[SegmentFile] = []
    start, size = first, 0
    for segment in segments:
        begin = max(first, segment.base_offset)
        share = max(1, segment.size_bytes * (segment.end_offset - begin) // (segment.end_offset - segment.base_offset))
        if held and size + share > group_bytes:
            groups.append(_slice(snapshot, shard, start, held[-1].end_offset, size, held))
            held, size = [], 0
        if not held:
            start = begin
        if share >= 2 * group_bytes and segment.sealed:
            whole = _slice(snapshot, shard, begin, segment.end_offset, share, [segment])
            groups += split_slice(whole, group_bytes)
            continue
        held.append(segment)
        size += share
    if held:
        groups.append(_slice(snapshot, shard, start, held[-1].end_offset, size, held))
    return groups


def _slice(
    snapshot: Snapshot, shard: ShardSnapshot, start: int, stop: int, size: int, segments: list[SegmentFile]
) -> Slice:
    return Slice(snapshot.path, shard.shard, shard.identity, start, stop, size, tuple(segments), snapshot.bucket)
