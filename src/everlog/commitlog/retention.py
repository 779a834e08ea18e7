"""Which segments may go, by age and size; deciding is pure, and says what a reader who is behind would lose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Facts(Protocol):
    """What the plan looks at, of segments in order."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_time(self) -> int: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Which segments go, oldest first, and whom that concerns."""

    remove: tuple[int, ...]  # base offsets
    start: int  # the first retained offset afterwards
    freed_bytes: int
    lost_from: int  # the protected offsets that go: from here ...
    lost_to: int  # ... to before this
    next_from: int  # the offsets that go next time a segment is removed
    next_to: int

    @property
    def lost(self) -> int:
        """How many protected offsets go."""
        return self.lost_to - self.lost_from


def plan_retention(
    segments: Sequence[Facts],
    now_us: int,
    retention_bytes: int | None,
    retention_us: int | None,
    protect: int | None = None,
) -> RetentionPlan:
    """The oldest segments that are too old, or too many for the bytes allowed; the last one always stays.

    `protect` is the offset of the reader who is furthest behind: it holds nothing back, the plan says what it loses.
    """
    total = sum(segment.bytes for segment in segments)
    remove: list[int] = []
    freed = 0
    for segment in segments[:-1]:
        expired = retention_us is not None and segment.last_time < now_us - retention_us
        too_many = retention_bytes is not None and total - freed > retention_bytes
        if not (expired or too_many):
            break
        remove.append(segment.base_offset)
        freed += segment.bytes
    kept = segments[len(remove) :]
    start = kept[0].base_offset if kept else 0
    lost_from = min(protect, start) if protect is not None else start
    if segments:
        lost_from = max(lost_from, min(segments[0].base_offset, start))
    next_to = kept[1].base_offset if len(kept) > 1 else start
    return RetentionPlan(tuple(remove), start, freed, lost_from, start, start, next_to)
