"""Retention: what goes is the oldest, by age and by size."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from everlog.commitlog import RetentionPlan, plan_retention


@dataclass(frozen=True)
class Facts:
    base_offset: int
    end_offset: int
    last_time: int
    size_bytes: int


SEGMENTS = [Facts(10 * k, 10 * k + 10, 100 * k, 50) for k in range(5)]


def test_nothing_goes_without_a_limit() -> None:
    assert plan_retention(SEGMENTS, 10_000, None, None).remove == ()
    assert plan_retention([], 0, 0, 0) == RetentionPlan((), 0, 0)


def test_segments_go_when_their_last_record_is_too_old() -> None:
    plan = plan_retention(SEGMENTS, 350, None, 100)
    assert plan.remove == (0, 10, 20)
    assert (plan.start, plan.next_to) == (30, 40)
    assert plan_retention(SEGMENTS, 300, None, 100).remove == (0, 10)


def test_segments_go_until_the_rest_fits() -> None:
    assert plan_retention(SEGMENTS, 0, 250, None).remove == ()
    assert plan_retention(SEGMENTS, 0, 249, None).remove == (0,)
    assert plan_retention(SEGMENTS, 0, 0, None).remove == (0, 10, 20, 30)


def test_the_last_segment_stays_however_old() -> None:
    assert plan_retention(SEGMENTS, 1 << 60, 0, 0).remove == (0, 10, 20, 30)


def test_what_reaches_behind_an_offset_is_held_whatever_the_limits_say() -> None:
    for limits in ((None, 100), (50, None)):
        assert plan_retention(SEGMENTS, 10_000, *limits, keep_from=0).held_bytes == 200
        plan = plan_retention(SEGMENTS, 10_000, *limits, keep_from=29)
        assert (plan.remove, plan.start, plan.held_bytes) == ((0, 10), 20, 100)
        assert plan_retention(SEGMENTS, 10_000, *limits, keep_from=30).remove == (0, 10, 20)
    assert plan_retention(SEGMENTS, 0, None, 100, keep_from=0).held_bytes == 0, "nothing was due"


def test_a_segment_may_have_an_age_of_its_own() -> None:
    plan = plan_retention(SEGMENTS, 350, None, 100, ages=[100, 300, 100, 100, 100])
    assert plan.remove == (0,), "what is behind one that stays stays too"
    assert plan.next_us == 100 + 300
    assert plan_retention(SEGMENTS, 401, None, 100, ages=[100, 300, 100, 100, 100]).remove == (0, 10, 20, 30)
    assert plan_retention(SEGMENTS, 1 << 60, None, 100, ages=[None] * 5).remove == ()
    assert plan_retention(SEGMENTS, 1 << 60, 0, None, ages=[None] * 5).remove == (0, 10, 20, 30)


def test_the_plan_says_when_the_next_segment_is_too_old() -> None:
    assert plan_retention(SEGMENTS, 150, None, 100).next_us == 100 + 100
    assert plan_retention(SEGMENTS, 150, 100, None).next_us is None
    only = plan_retention(SEGMENTS[:1], 0, None, 100)
    assert (only.start, only.next_to, only.next_us) == (0, 10, 100), "the last one goes when it is rolled"
    assert plan_retention([], 0, None, 100).next_us is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 99)), max_size=8),
    st.none() | st.integers(0, 400),
    st.none() | st.integers(0, 400),
    st.integers(0, 500),
)
def test_what_stays_is_a_suffix_within_the_limits(
    shapes: list[tuple[int, int, int]], most: int | None, age: int | None, now: int
) -> None:
    segments, offset, time = [], 3, 0
    for count, later, size in shapes:
        time += later
        segments.append(Facts(offset, offset + count, time, size))
        offset += count
    plan = plan_retention(segments, now, most, age)
    kept = segments[len(plan.remove) :]
    assert plan.remove == tuple(segment.base_offset for segment in segments[: len(plan.remove)])
    assert bool(kept) == bool(segments)
    if most is not None and len(kept) > 1:
        assert sum(segment.size_bytes for segment in kept) <= most
    if age is not None:
        assert all(segment.last_time >= now - age for segment in kept[:-1])
    assert plan.start == (kept[0].base_offset if kept else 0)
    assert plan.start <= plan.next_to <= offset
