"""Numbers about a log, for people and metrics."""

from dataclasses import dataclass

from everlog.commitlog.catalog import Catalog
from everlog.commitlog.committer import Committer
from everlog.commitlog.maintenance import Maintenance
from everlog.commitlog.tail import Tail


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """A log at one moment; counts are since it was opened."""

    start: int
    committed: int
    end: int
    segments: int
    sealed: int
    segment_bytes: int  # of the segments whose size is known
    tail_batches: int
    tail_bytes: int
    block_bytes: int  # of the blocks that large batches are made in; those of the tail are among them
    pending_bytes: int
    waiting_to_seal: int
    commits: int
    committed_batches: int
    committed_records: int
    committed_bytes: int
    seals: int
    merges: int
    removed: int
    seal_failures: tuple[str, ...]
    damaged: int
    write_s: float  # that commits spent writing and syncing

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        tail: Tail,
        committer: Committer | None,
        maintenance: Maintenance | None,
        offsets: tuple[int, int, int],
    ) -> "LogStatistics":
        """Return the numbers now."""
        segments = catalog.segments
        return cls(
            *offsets,
            segments=len(segments),
            sealed=sum(segment.sealed for segment in segments),
            segment_bytes=sum(max(0, segment.size_bytes) for segment in segments),
            tail_batches=len(tail),
            tail_bytes=tail.held_bytes,
            block_bytes=committer.block_bytes if committer is not None else 0,
            pending_bytes=committer.pending() if committer is not None else 0,
            waiting_to_seal=maintenance.waiting if maintenance is not None else 0,
            commits=committer.groups if committer is not None else 0,
            committed_batches=committer.batches if committer is not None else 0,
            committed_records=committer.records if committer is not None else 0,
            committed_bytes=committer.committed_bytes if committer is not None else 0,
            seals=maintenance.sealer.sealed if maintenance is not None else 0,
            merges=maintenance.sealer.merged if maintenance is not None else 0,
            removed=maintenance.removed if maintenance is not None else 0,
            seal_failures=tuple(maintenance.seal_failures) if maintenance is not None else (),
            damaged=catalog.damage.total,
            write_s=committer.write_s if committer is not None else 0.0,
        )
