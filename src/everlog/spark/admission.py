"""How much of the waiting records a micro-batch takes; a pure decision.

Every shard gets a part that is in proportion to what waits in it, so none is starved; a batch takes one record at
least, so that a stream never stands still.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Offsets = Mapping[int, int]  # by shard


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of offsets of a shard, and how many bytes it takes."""

    shard: int
    start: int
    stop: int
    size_bytes: int


def admit(
    start: Offsets, end: Offsets, extents: Iterable[Extent], max_records: int | None, max_bytes: int | None
) -> dict[int, int]:
    """Return how far to read from `start`, at most to `end`, within a number of records and about a number of bytes."""
    taken = dict(end)
    if max_records is not None:
        taken = _by_records(start, end, max_records)
    if max_bytes is not None:
        fewer = _by_bytes(start, end, list(extents), max_bytes)
        taken = {shard: min(offset, fewer[shard]) for shard, offset in taken.items()}
    if all(taken[shard] == start[shard] for shard in end):
        fullest = max(end, key=lambda shard: end[shard] - start[shard], default=None)
        if fullest is not None and end[fullest] > start[fullest]:
            taken[fullest] = start[fullest] + 1
    return taken


def _by_records(start: Offsets, end: Offsets, most: int) -> dict[int, int]:
    """Return offsets that admit `most` records in all, or everything."""
    waiting = {shard: end[shard] - start[shard] for shard in end}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    parts = {shard: most * count // total for shard, count in waiting.items()}
    left = most - sum(parts.values())
    for shard in sorted(waiting, key=lambda shard: -(most * waiting[shard] % total))[:left]:
        parts[shard] += 1
    return {shard: start[shard] + part for shard, part in parts.items()}


def _by_bytes(start: Offsets, end: Offsets, extents: list[Extent], most: int) -> dict[int, int]:
    """Return offsets that admit about `most` bytes, with the records of an extent taken to be of one size."""
    waiting = {shard: sum(_within(extent, start, end) for extent in extents if extent.shard == shard) for shard in end}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    return {
        shard: _reach(shard, start, end, extents, most * size / total) if end[shard] > start[shard] else end[shard]
        for shard, size in waiting.items()
    }


def _within(extent: Extent, start: Offsets, end: Offsets) -> float:
    """Return the bytes of an extent that lie between `start` and `end`."""
    first, last = max(extent.start, start[extent.shard]), min(extent.stop, end[extent.shard])
    return extent.size_bytes * max(0, last - first) / (extent.stop - extent.start)


def _reach(shard: int, start: Offsets, end: Offsets, extents: list[Extent], budget: float) -> int:
    """Return the offset up to which the budget reaches in a shard."""
    for extent in sorted((one for one in extents if one.shard == shard), key=lambda one: one.start):
        size = _within(extent, start, end)
        if size > budget:
            first = max(extent.start, start[shard])
            return first + int(budget * (extent.stop - extent.start) / extent.size_bytes)
        budget -= size
    return end[shard]
