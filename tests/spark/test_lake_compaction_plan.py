"""What compaction, merging and retention decide, from facts alone."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from everlog.base import StorageError, UsageError
from everlog.spark.lake.compaction_plan import plan_round
from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.file_merge import plan_merges
from everlog.spark.lake.file_reader import range_may_match
from everlog.spark.lake.file_retention import parse_days, plan_retention
from everlog.spark.lake.location import locate, parse_options
from everlog.spark.lake.row_order import Clustering, order_of
from everlog.spark.lake.table_layout import DAY_US, day_number, day_text, time_text, time_us_of
from everlog.spark.snapshot import SegmentFile, ShardSnapshot, Snapshot
from everlog.store import Lost
from everlog.topics import matches, parse_filter


def segments(*sizes: int, start: int = 0, sealed: int | None = None, unit: int = 100) -> tuple[SegmentFile, ...]:
    """Segments with so many bytes, 100 records each, all but the last sealed."""
    made = []
    sealed = len(sizes) - 1 if sealed is None else sealed
    for number, size in enumerate(sizes):
        base = start + unit * number
        made.append(SegmentFile(f"{base}.log", base, base + unit, base, base + unit - 1, size, number < sealed))
    return tuple(made)


def snapshot(*shards: tuple[SegmentFile, ...]) -> Snapshot:
    made = []
    for number, files in enumerate(shards):
        start, end = (files[0].base_offset, files[-1].end_offset) if files else (0, 0)
        made.append(ShardSnapshot(number, f"id{number}", start, end, files))
    return Snapshot("/data", "store", tuple(made))


def file(number: int, size: int = 10, day: str = "2026-01-02", shard: int = 0, rows: int = 100) -> DataFile:
    first = 100 * number
    return DataFile(f"{shard}-{number}", size, rows, shard, day, first, first + 99, first, first + 99, "a", "b", 0)


def test_only_sealed_segments_are_taken() -> None:
    plan = plan_round(snapshot(segments(10, 10, 10)), {})
    assert [(group.start, group.stop) for group in plan.groups] == [(0, 200)]
    assert plan.ranges == {0: (None, 200)}


def test_a_sealed_segment_behind_an_open_one_waits() -> None:
    first, second, third = segments(10, 10, 10)
    plan = plan_round(snapshot((first, replace(second, sealed=False), replace(third, sealed=True))), {})
    assert plan.ranges == {0: (None, 100)}


def test_everything_takes_the_open_segment_too() -> None:
    assert plan_round(snapshot(segments(10, 10)), {0: 100}, everything=True).ranges == {0: (100, 200)}


def test_compaction_goes_on_in_the_middle_of_a_segment() -> None:
    (group,) = plan_round(snapshot(segments(100, 10, 10)), {0: 75}).groups
    assert (group.start, group.stop, group.size_bytes) == (75, 200, 35)


def test_nothing_new_is_no_round() -> None:
    plan = plan_round(snapshot(segments(10, 10), ()), {0: 100})
    assert not plan.groups
    assert not plan.ranges


def test_groups_cover_each_offset_once_and_a_large_segment_is_split() -> None:
    plan = plan_round(snapshot(segments(30, 30, 30, 500, 10, 0)), {}, group_bytes=100)
    edges = [(group.start, group.stop) for group in plan.groups]
    assert edges[0] == (0, 300)
    assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    assert edges[-1][1] == 500
    assert len(edges) == 1 + 5 + 1


def test_a_round_is_bounded_and_says_that_there_is_more() -> None:
    many = segments(*[60] * 10, 1)
    plan = plan_round(snapshot(many, many), {}, group_bytes=60, round_bytes=300)
    assert plan.ranges == {0: (None, 200), 1: (None, 200)}
    assert plan.more
    assert not plan_round(snapshot(many), {}, group_bytes=60).more


def test_a_segment_larger_than_the_round_is_still_taken() -> None:
    assert plan_round(snapshot(segments(60, 1)), {}, group_bytes=60, round_bytes=1).ranges == {0: (None, 100)}


def test_what_retention_took_before_it_was_compacted_is_reported() -> None:
    plan = plan_round(snapshot(segments(10, 10, start=500)), {0: 200})
    assert plan.lost == (Lost(0, 200, 500),)
    assert plan.ranges == {0: (200, 600)}
    assert plan_round(snapshot(segments(10, 10, start=500)), {}).lost == ()


def test_a_table_that_is_ahead_of_the_log_is_refused() -> None:
    with pytest.raises(StorageError, match="ends at offset 200"):
        plan_round(snapshot(segments(10, 10)), {0: 201})


def test_small_neighbours_of_a_shard_and_day_are_merged() -> None:
    files = [file(0), file(1), file(2, 90), file(3), file(4), file(5, day="2026-01-03"), file(0, shard=1)]
    runs = plan_merges(files, small_bytes=50, merged_bytes=100)
    assert [[one.path for one in run] for run in runs] == [["0-0", "0-1"], ["0-3", "0-4"]]


def test_a_merged_file_is_bounded_in_bytes_and_rows() -> None:
    files = [file(n) for n in range(6)]
    assert [len(run) for run in plan_merges(files, small_bytes=50, merged_bytes=30)] == [3, 3]
    assert [len(run) for run in plan_merges(files, small_bytes=50, merged_bytes=100, merged_rows=200)] == [2, 2, 2]


def test_days_are_dropped_whole() -> None:
    now = 20_000 * DAY_US + 5
    files = [file(n, day=day_text(20_000 - n)) for n in range(5)]
    assert [one.day for one in plan_retention(files, now, 2 * DAY_US)] == [day_text(19_997), day_text(19_996)]
    with pytest.raises(UsageError, match="whole days"):
        parse_days(3600)


def test_days_and_times_are_exact() -> None:
    from datetime import UTC, datetime

    moment = datetime(2026, 11, 15, 23, 59, 59, 999_999, tzinfo=UTC)
    assert day_text(day_number(time_us_of(moment))) == "2026-11-15"
    assert day_text(day_number(time_us_of(moment) + 1)) == "2026-11-16"
    assert time_text(time_us_of(moment)) == "2026-11-15T23:59:59.999999Z"


def test_statistics_of_long_topics_are_cut_to_both_sides() -> None:
    import json

    long = "é" * 300
    known = json.loads(replace(file(0), first_topic=long, last_topic=long).added().stats)
    low, high = known["minValues"]["topic"], known["maxValues"]["topic"]
    assert low.encode() < long.encode() < high.encode()
    assert len(high.encode()) <= 260


def test_rows_are_in_the_order_of_topics_and_then_as_they_came() -> None:
    topics = np.array([2, 0, 1, 2, 0], np.int32)
    ranks = Clustering().ranks(pa.array(["b", "c", "a"]))
    assert ranks.tolist() == [1, 2, 0]
    order, placed = order_of(topics, ranks)
    assert order.tolist() == [0, 3, 1, 4, 2]
    assert placed.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("text", ["a/b/#", "a/+/c", "+/b", "#", "a/b", "é/#", "$SYS/#"])
def test_a_range_of_topics_is_ruled_out_only_when_none_matches(text: str) -> None:
    names = sorted(["a", "a/b", "a/b/c", "a/x/c", "b", "z/b", "é", "é/1", "$SYS/x", "a/a"], key=str.encode)
    flt = parse_filter(text)
    ruled_out = 0
    for i in range(len(names)):
        for j in range(i, len(names)):
            possible = range_may_match([flt], names[i], names[j])
            ruled_out += not possible
            assert possible or not any(matches(flt, name) for name in names[i : j + 1])
    assert ruled_out or flt.starts_wild


def test_places_are_directories_or_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "here")
    assert locate("lake").uri.startswith("/")
    assert locate("file:///x/lake").uri == "/x/lake"
    place = locate("s3a://bucket/prefix/", {"aws_endpoint_url": "http://x"})
    assert place.uri == "s3://bucket/prefix"
    assert place.options["AWS_REGION"] == "here"
    assert place.options["AWS_ENDPOINT_URL"] == "http://x"
    assert "http://x" not in repr(place)
    with pytest.raises(UsageError, match="not a place"):
        locate("ftp://x/y")
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_options(["x"])
