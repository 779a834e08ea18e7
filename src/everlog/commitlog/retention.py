"""Decides, as a pure function, which segments go by age and size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Facts(Protocol):
    """What the plan needs to know of a segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_time(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments that go, oldest first, and what goes next."""

    remove: tuple[int, ...]  # base offsets
    start: int  # the first retained offset afterwards
    next_to: int  # offsets from `start` to before this one go when the next segment is removed
    next_us: int | None = None  # when they will be too old; None for never
    held_bytes: int = 0  # of segments that would go but stay because of `keep_from`


def plan_retention(
    segments: Sequence[Facts],
    now_us: int,
    retention_bytes: int | None,
    retention_us: int | None,
    *,
    keep_from: int | None = None,
    ages: Sequence[int | None] | None = None,
) -> RetentionPlan:
    """Plan to remove the oldest segments that are too old, or too many for the bytes allowed; the last one stays.

    No reader holds anything back. A segment that ends after the offset `keep_from` stays, whatever the limits say.
    `ages` says for each segment how old it may get, in place of `retention_us` for all.
    """
    if ages is None:
        ages = [retention_us] * len(segments)
    due = _due(segments, now_us, retention_bytes, ages)
    going = due
    if keep_from is not None:
        going = next((k for k, segment in enumerate(segments[:due]) if segment.end_offset > keep_from), due)
    kept = segments[going:]
    start = kept[0].base_offset if kept else 0
    next_to = kept[1].base_offset if len(kept) > 1 else kept[0].end_offset if kept else start
    next_age = ages[going] if kept else None
    return RetentionPlan(
        tuple(segment.base_offset for segment in segments[:going]),
        start,
        next_to,
        kept[0].last_time + next_age if next_age is not None and next_to > start else None,
        sum(segment.size_bytes for segment in segments[going:due]),
    )


def _due(segments: Sequence[Facts], now_us: int, most_bytes: int | None, ages: Sequence[int | None]) -> int:
    """Return how many of the oldest segments the limits let go."""
    left = sum(segment.size_bytes for segment in segments)
    for k, (segment, age) in enumerate(zip(segments[:-1], ages[:-1], strict=True)):
        expired = age is not None and segment.last_time < now_us - age
        if not expired and (most_bytes is None or left <= most_bytes):
            return k
        left -= segment.size_bytes
    return max(0, len(segments) - 1)
