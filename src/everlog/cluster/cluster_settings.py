"""The settings of a cluster's log, each with a safe default."""

from dataclasses import dataclass, field

from everlog.commitlog import LogSettings


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a broker keeps and follows the shards of a cluster."""

    tail_bytes: int = 64 << 20  # of a shard in the database; at the limit publishers wait
    min_standbys: int = 0  # on so many a commit must be before anything is acknowledged
    kept_s: float = 60.0  # how long rows stay in the tail that are in the bucket, unless it fills
    pinned_s: float = 24 * 3600.0  # how long an object stays that was dropped: the longest that a reader may take
    poll_s: float = 0.25  # how often the tails of other brokers' shards are looked at
    segment_us: int | None = 600_000_000  # a segment is complete when its first record is as old, or by its size
    log: LogSettings = field(default_factory=LogSettings)

    def of_copies(self) -> LogSettings:
        """Return the settings of local logs: copies, so nothing is synced, and no batch is changed.

        A segment takes two of the tail's eight tables at most, so that a full tail always has complete segments.
        """
        log = self.log
        return LogSettings(
            durability="memory",
            segment_bytes=min(log.segment_bytes, self.tail_bytes // 4),
            segment_us=self.segment_us,
            preallocate_bytes=0,
            batch_bytes=min(log.batch_bytes, 256 << 10),
            pending_bytes=log.pending_bytes,
            tail_bytes=log.tail_bytes,
            cache_bytes=log.cache_bytes,
            merge_below=0,
        )
