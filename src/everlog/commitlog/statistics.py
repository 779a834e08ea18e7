"""Numbers about a log, for people and metrics."""

from dataclasses import dataclass

from everlog.commitlog.catalog import Catalog
from everlog.commitlog.committing import Committer
from everlog.commitlog.tail import Tail
from everlog.commitlog.upkeep import Upkeep


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

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        tail: Tail,
        committer: Committer | None,
        upkeep: Upkeep | None,
        offsets: tuple[int, int, int],
    ) -> "LogStatistics":
        """The numbers now."""
        segments = catalog.segments
        return cls(
            *offsets,
            segments=len(segments),
            sealed=sum(segment.sealed for segment in segments),
            segment_bytes=sum(max(0, segment.bytes) for segment in segments),
            tail_batches=len(tail),
            tail_bytes=tail.bytes,
            pending_bytes=committer.pending() if committer is not None else 0,
            waiting_to_seal=upkeep.waiting if upkeep is not None else 0,
            commits=committer.groups if committer is not None else 0,
            committed_batches=committer.batches if committer is not None else 0,
            committed_records=committer.records if committer is not None else 0,
            committed_bytes=committer.bytes if committer is not None else 0,
            seals=upkeep.sealer.sealed if upkeep is not None else 0,
            merges=upkeep.sealer.merged if upkeep is not None else 0,
            removed=upkeep.removed if upkeep is not None else 0,
            seal_failures=tuple(upkeep.seal_failures) if upkeep is not None else (),
            damaged=catalog.damage.total,
        )
