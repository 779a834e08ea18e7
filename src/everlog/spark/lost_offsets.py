"""Finds wanted offsets that are gone for good: neither in the log nor in the table.

Offsets without a record need not be a loss: they may never have been given, or the topic's retention was over. So holes
in the table are taken from the record that compaction keeps of them, never from what the files lack.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from everlog.spark.frame_plan import FramePlan, Ranges, plan_frame
from everlog.spark.snapshot import Snapshot
from everlog.spark.source_options import read_options
from everlog.store import Lost

if TYPE_CHECKING:
    from everlog.spark.lake_slices import LakeSnapshot

MOST_NAMED = 20


def lost_of(plan: FramePlan) -> list[Lost]:
    """Return what a frame would pass over."""
    return find_lost(plan.snapshot, plan.lake, plan.ranges)


def lost_in(options: Mapping[str, str]) -> list[Lost]:
    """Return what a frame that is loaded now with these options would pass over."""
    return lost_of(plan_frame(read_options(options), time.time_ns() // 1000))


def find_lost(snapshot: Snapshot, lake: "LakeSnapshot | None", ranges: Ranges) -> list[Lost]:
    """Return what of the ranges is neither in the log nor in the table."""
    lost = []
    for shard, (first, last) in ranges.items():
        for start, stop in _gaps(snapshot, lake, shard):
            low, high = max(first, start), min(last, stop)
            if low < high:
                lost.append(Lost(shard, low, high))
    return lost


def without_lost(snapshot: Snapshot, lake: "LakeSnapshot | None", ranges: Ranges) -> Ranges:
    """Return the ranges without what was lost at their beginning."""
    found = {}
    for shard, (first, last) in ranges.items():
        for start, stop in _gaps(snapshot, lake, shard):
            if start <= first < stop:
                first = min(last, stop)
        found[shard] = (first, last)
    return found


def name_lost(lost: Sequence[Lost]) -> str:
    """Return ranges of offsets in words, only the first ones of many."""
    which = [f"{one.from_offset} to {one.to_offset - 1} of shard {one.shard}" for one in lost[:MOST_NAMED]]
    return ", ".join(which) + (f", and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else "")


def _gaps(snapshot: Snapshot, lake: "LakeSnapshot | None", shard: int) -> list[tuple[int, int]]:
    """Return the offsets that nothing has: below the table, its holes, and between the table and the log."""
    begins = snapshot.shards[shard].start
    if lake is None or lake.starts[shard] >= lake.ends[shard]:
        return [(0, begins)]
    below = min(begins, lake.starts[shard])
    holes = [(max(below, one.from_offset), one.to_offset) for one in lake.lost if one.shard == shard]
    return [(0, below), *holes, (lake.ends[shard], begins)]
