"""The settings of a log, each with a safe default."""

from dataclasses import dataclass
from typing import Literal

from everlog.base import UsageError

Durability = Literal["memory", "flush", "fsync"]
DURABILITIES: tuple[Durability, ...] = ("memory", "flush", "fsync")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of one shard's log: how it is written, kept and cached."""

    durability: Durability = "fsync"
    segment_bytes: int = 64 << 20  # at this size the next batch begins a new segment
    segment_us: int | None = None  # or when the segment's first record is older than this
    preallocate_bytes: int = 256 << 10  # of zeros ahead of small commits at `fsync`, for cheaper syncs; 0 for none
    batch_bytes: int = 1 << 20  # at this size the open batch is closed and the next begins
    pending_bytes: int = 256 << 20  # appended but not yet written; at the limit appends are refused
    tail_bytes: int = 32 << 20  # of recent batches in memory; the oldest written ones are dropped first
    cache_bytes: int = 64 << 20  # of indexes and names of sealed segments in memory; the least recently used go first
    retention_bytes: int | None = None
    retention_us: int | None = None
    merge_below: int = 256  # sealing merges if the mean batch holds fewer records, 0 for never,
    merge_below_bytes: int = 64 << 10  # and fewer bytes
    merge_records: int = 4096  # how many records a merged batch holds
    thin_percent: int = 25  # of a segment's bytes must be freed for its old topics to be emptied

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise UsageError(f"durability {self.durability!r} is not one of {', '.join(DURABILITIES)}")
        for name in ("segment_bytes", "batch_bytes", "pending_bytes", "merge_records"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0")
        for name in ("preallocate_bytes", "tail_bytes", "cache_bytes", "merge_below", "thin_percent"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0")
