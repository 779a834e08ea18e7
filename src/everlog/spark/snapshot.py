"""A snapshot of a store, and the slices of it that tasks read.

A snapshot is taken from the files alone, without a lock, whether a broker is running or not. It never changes; what it
names can be read until retention removes it. Segments that are merged meanwhile keep their offsets.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol, TypeVar

from everlog.base import StorageError, UsageError
from everlog.spark.cluster_cores import task_count
from everlog.store import LogStore

Piece = TypeVar("Piece", bound="Sized")

SMALLEST_BYTES = 16 << 20  # a task that reads less costs more to start than to run
ROW_COST = 3  # of fetching a single row, relative to reading it in sequence
LARGEST_BYTES = 256 << 20  # a larger slice would take too long to repeat when its task fails


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where a cluster's segments are; `options` are those of its store, such as AWS_REGION, and may hold secrets."""

    place: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment as it was when the snapshot was taken: offsets from `base_offset` to before `end_offset`."""

    path: str
    base_offset: int
    end_offset: int
    first_time: int  # microseconds since 1970
    last_time: int
    size_bytes: int
    sealed: bool
    crc: int = 0  # of an object in a bucket, without its header
    batches: int = 0  # rows of the tail that have it, if no object does
    rows: bytes = field(default=b"", repr=False)  # of them, packed, if they came along


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """A shard from its first retained offset to its committed end."""

    shard: int
    identity: str
    start: int
    end: int
    segments: tuple[SegmentFile, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store: its directory, its identity, which stays when it is moved, and its shards."""

    path: str
    identity: str
    shards: tuple[ShardSnapshot, ...]
    bucket: BucketAddress | None = None  # of a cluster
    pin: int = 0  # by which its objects stay

    @property
    def records(self) -> int:
        """How many offsets it covers; fewer records where offsets were skipped or lost."""
        return sum(shard.end - shard.start for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets of one shard for one task to read, and the segments that hold them."""

    path: str
    shard: int
    identity: str
    start: int
    stop: int
    size_bytes: int
    segments: tuple[SegmentFile, ...]
    bucket: BucketAddress | None = None  # that has the segments, if they are no files


def take_snapshot(path: str) -> Snapshot:
    """Return the store in a data directory as it is committed now."""
    path = os.path.abspath(path)
    with closing(LogStore.open(path, writable=False)) as store:
        return snapshot_of(store, path)


def snapshot_of(store: LogStore, path: str) -> Snapshot:
    """Return a snapshot of a store that is open."""
    shards = []
    for number, log in enumerate(store.shards):
        committed = log.committed
        files = []
        for view in log.segments():
            end = min(view.end_offset, committed)
            if end > view.base_offset:
                name = f"{path}/shard-{number}/{view.base_offset:020d}.log"
                times = (view.first_time, view.last_time)
                files.append(SegmentFile(name, view.base_offset, end, *times, view.size_bytes, view.sealed))
        start = files[0].base_offset if files else committed
        shards.append(ShardSnapshot(number, log.identity, start, committed, tuple(files)))
    return Snapshot(path, store.identity, tuple(shards))


def plan(
    snapshot: Snapshot,
    *,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    tasks: int | None = None,
    sealed_only: bool = False,
    share: Callable[[Slice], float] | None = None,
) -> list[Slice]:
    """Return slices that cover a snapshot, or for each shard in `ranges` its offsets from one to before another.

    There are about as many as `tasks`, three for each core of the session by default. The segment that is still written
    to is never split, as each part would have to be read from its beginning. `share` returns about which part of a
    slice is wanted: slices of which nothing is wanted are left out, and the others are weighted by it.
    """
    parts = [part for shard in snapshot.shards for part in _parts(snapshot, shard, ranges, sealed_only)]
    if share is not None:
        shares = [(part, share(part)) for part in parts]
        parts = [_lighter(part, wanted) for part, wanted in shares if wanted > 0]
    target = target_bytes(parts, tasks or task_count())
    return [piece for part in parts for piece in split_slice(part, target)]


class Sized(Protocol):
    """A slice of whatever kind."""

    @property
    def size_bytes(self) -> int:
        """How much there is to read."""


def target_bytes(parts: Iterable[Sized], tasks: int) -> int:
    """Return how much a task should read if there are to be about `tasks`; fewer when there is little to read."""
    total = sum(part.size_bytes for part in parts)
    several = max(1, min(tasks, round(total / SMALLEST_BYTES)))
    return min(LARGEST_BYTES, max(1, -(-total // several)))


def pack(slices: Iterable[Piece], target_bytes: int = SMALLEST_BYTES) -> list[tuple[Piece, ...]]:
    """Group slices for tasks: small ones together until they have about `target_bytes`."""
    groups: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    held = 0
    for piece in slices:
        if group and held + piece.size_bytes // 2 > target_bytes:
            groups.append(tuple(group))
            group, held = [], 0
        group.append(piece)
        held += piece.size_bytes
    return [*groups, tuple(group)] if group else groups


def _parts(
    snapshot: Snapshot, shard: ShardSnapshot, ranges: Mapping[int, tuple[int, int]] | None, sealed_only: bool
) -> list[Slice]:
    """Return one slice for each segment that holds wanted offsets."""
    if ranges is not None and shard.shard not in ranges:
        return []
    first, last = ranges[shard.shard] if ranges is not None else (shard.start, shard.end)
    if first < 0 or last > shard.end:
        raise UsageError(f"shard {shard.shard} has no offsets {first} to {last}; it ends at {shard.end}")
    parts = []
    for segment in shard.segments:
        start, stop = max(first, segment.base_offset), min(last, segment.end_offset)
        if start < stop and (segment.sealed or not sealed_only):
            share = (stop - start) / (segment.end_offset - segment.base_offset)
            size = max(1, int(segment.size_bytes * share))
            held = (segment,)
            parts.append(Slice(snapshot.path, shard.shard, shard.identity, start, stop, size, held, snapshot.bucket))
    return parts


def _lighter(part: Slice, wanted: float) -> Slice:
    """Return a slice with a smaller size: a part of its rows is read, at a higher cost for each."""
    return replace(part, size_bytes=max(1, int(part.size_bytes * min(1.0, ROW_COST * wanted))))


def split_slice(part: Slice, target_bytes: int) -> list[Slice]:
    """Split a slice of one segment into several of about equal size."""
    several = min(-(-part.size_bytes // target_bytes), part.stop - part.start) if part.segments[-1].sealed else 1
    if several <= 1:
        return [part]
    edges = [part.start + (part.stop - part.start) * n // several for n in range(several + 1)]
    size = max(1, part.size_bytes // several)
    return [replace(part, start=start, stop=stop, size_bytes=size) for start, stop in pairwise(edges)]


def check_identity(piece: Slice, found: str) -> None:
    """Refuse to read another store than the one that was planned."""
    if piece.identity != found:
        raise StorageError(
            f"shard {piece.shard} in {piece.path} is another one than when the frame was loaded",
            hint="load the frame again",
        )
