"""What a stream takes and from where, asked as Spark asks it, without Spark."""

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.frames import compact, drop_log
from tests.spark.in_process import close_stores
from tests.spark.lake_data import damage, fill, messages
from tests.spark.streams import SCHEMA, follow, reader, rows

from everlog.base import StorageError, Unavailable, UsageError
from everlog.spark import Slice
from everlog.spark.admission import Extent, admit
from everlog.spark.frame_plan import plan_frame
from everlog.spark.lake_slices import LakeSlice
from everlog.spark.source import LogPartition
from everlog.spark.source_options import read_options
from everlog.spark.stream import EverlogStreamReader
from everlog.spark.stream_options import read_stream_options
from everlog.spark.stream_progress import Progress, read_progress

SENT = messages(2000)


def everything(counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(shard, offset) for shard, count in sorted(counts.items()) for offset in range(count)]


def ends(stream: EverlogStreamReader) -> dict[int, int]:
    return {int(shard): end for shard, end in (stream.reportLatestOffset() or {})["shards"].items()}


def test_a_stream_follows_no_table(tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    compact(tmp_path)
    for place in (tmp_path / "lake", "s3://bucket/prefix"):
        with pytest.raises(UsageError, match="a stream follows a log"):
            reader(place)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_stream_takes_all_and_then_what_comes(tmp_path: Path, shards: int) -> None:
    fill(tmp_path, SENT, shards=shards)
    stream = reader(tmp_path)
    first = stream.initialOffset()
    (batch,) = follow(stream, first)
    assert batch == everything(ends(stream))
    assert len(batch) == len(SENT)
    start = stream.latestOffset(first, ReadAllAvailable())
    fill(tmp_path, messages(100, seed=2), shards=shards)
    (more,) = follow(stream, start)
    assert len(more) == 100
    assert not set(more) & set(batch)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_batch_has_as_many_records_as_it_may(tmp_path: Path, shards: int) -> None:
    fill(tmp_path, SENT, shards=shards)
    stream = reader(tmp_path, maxRecordsPerTrigger="300")
    assert stream.getDefaultReadLimit() == ReadMaxRows(300)
    batches = follow(stream, stream.initialOffset())
    assert [len(batch) for batch in batches] == [300] * 6 + [200]
    assert sorted(row for batch in batches for row in batch) == everything(ends(stream))
    # what triggers once takes everything, whatever the options say
    assert len(follow(stream, stream.initialOffset(), ReadAllAvailable())) == 1


def test_a_batch_has_about_as_many_bytes_as_it_may(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2)
    stream = reader(tmp_path, maxBytesPerTrigger="20k")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(20 << 10)
    batches = follow(stream, stream.initialOffset())
    size = sum(file.stat().st_size for file in tmp_path.glob("shard-*/*.log"))
    assert size / (20 << 10) <= len(batches) <= size / (20 << 10) + 3
    assert sorted(row for batch in batches for row in batch) == everything(ends(stream))
    both = reader(tmp_path, maxBytesPerTrigger="20k", maxRecordsPerTrigger="50")
    assert [len(batch) for batch in follow(both, both.initialOffset())] == [50] * 40
    tiny = reader(tmp_path, maxBytesPerTrigger="1", **{"from": "0:700,1:100"}, shards="0")
    assert {len(batch) for batch in follow(tiny, tiny.initialOffset())} == {1}


def test_a_run_of_what_is_available_ends_where_the_log_ended(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2)
    stream = reader(tmp_path, maxRecordsPerTrigger="700")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    then = ends(stream)
    fill(tmp_path, messages(500, seed=2), shards=2)
    assert sorted(row for batch in follow(stream, start) for row in batch) == everything(then)
    # a checkpoint may be ahead of the ends that a run began with: then there is nothing to do
    ahead = stream.reportLatestOffset() or {}
    assert stream.latestOffset(ahead, ReadAllAvailable()) == ahead


def test_a_range_is_read_again_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2, segment_bytes=60_000, seal=False)
    stream = reader(tmp_path, maxRecordsPerTrigger="900")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    before = rows(stream, start, end)
    fill(tmp_path, messages(3000, seed=2), shards=2)
    assert rows(reader(tmp_path), start, end) == before
    compact(tmp_path)
    drop_log(tmp_path)
    close_stores()
    assert rows(reader(tmp_path), start, end) == before


def test_what_the_log_dropped_is_read_from_the_table(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2)
    compact(tmp_path)
    drop_log(tmp_path)
    stream = reader(tmp_path, maxRecordsPerTrigger="400")
    batches = follow(stream, stream.initialOffset())
    assert sorted(row for batch in batches for row in batch) == everything(ends(stream))
    assert max(len(batch) for batch in batches) == 400
    start = stream.initialOffset()
    kinds = {
        type(piece)
        for one in stream.partitions(start, stream.reportLatestOffset() or {})
        if isinstance(one, LogPartition)
        for piece in one.slices
    }
    assert kinds == {Slice, LakeSlice}
    by_bytes = reader(tmp_path, maxBytesPerTrigger="10k")
    assert sorted(row for batch in follow(by_bytes, start) for row in batch) == everything(ends(stream))


def test_what_retention_took_is_an_error_that_names_it(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2)
    stream = reader(tmp_path, maxRecordsPerTrigger="100")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    drop_log(tmp_path)
    first = [int(min(tmp_path.glob(f"shard-{shard}/*.log")).stem) for shard in (0, 1)]
    taken = {int(shard): offset for shard, offset in end["shards"].items()}
    with pytest.raises(Unavailable, match=f"0 to {first[0] - 1} of shard 0, 0 to {first[1] - 1} of shard 1"):
        stream.latestOffset(start, stream.getDefaultReadLimit())
    with pytest.raises(Unavailable, match=f"0 to {taken[0] - 1} of shard 0, 0 to {taken[1] - 1} of shard 1"):
        stream.partitions(start, end)


def test_what_retention_took_is_counted_and_left_out_if_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, SENT, shards=2)
    stream = reader(tmp_path, onLost="skip", maxRecordsPerTrigger="100")
    start = stream.initialOffset()
    drop_log(tmp_path)
    first = {shard: int(min(tmp_path.glob(f"shard-{shard}/*.log")).stem) for shard in (0, 1)}
    with caplog.at_level(logging.WARNING):
        batches = follow(stream, start)
    kept = [(shard, offset) for shard, offset in everything(ends(stream)) if offset >= first[shard]]
    assert sorted(row for batch in batches for row in batch) == kept
    assert 0 < len(batches[0]) <= 100
    counted = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert counted == [first[0], first[1]]


def test_what_retention_takes_while_a_task_reads_is_counted_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, SENT)
    stream = reader(tmp_path, onLost="skip")
    partitions = stream.partitions(stream.initialOffset(), stream.reportLatestOffset() or {})
    drop_log(tmp_path)
    close_stores()
    with caplog.at_level(logging.WARNING):
        found = sum(batch.num_rows for one in partitions for batch in stream.read(one))
    lost = sum(int(str(record.args[0])) for record in caplog.records if isinstance(record.args, tuple))
    assert 0 < found < len(SENT)
    assert found + lost == len(SENT)


def test_a_stream_ends_at_damage_unless_it_is_to_skip_and_count_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, SENT)
    damage(sorted((tmp_path / "shard-0").glob("*.log"))[1], 9_000)
    stream = reader(tmp_path)
    with pytest.raises(StorageError, match=r"at byte \d+: .*are not readable"):
        follow(stream, stream.initialOffset())
    stream = reader(tmp_path, onDamage="skip", maxRecordsPerTrigger="333")
    with caplog.at_level(logging.WARNING):
        found = sum(len(batch) for batch in follow(stream, stream.initialOffset()))
    counted = [record.args[0] for record in caplog.records if "%d offsets are damaged" in str(record.msg)]
    assert 0 < found < len(SENT)
    assert found + sum(counted) == len(SENT)


def test_another_stores_checkpoint_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fill(tmp_path / name, SENT[:100])
    start = reader(tmp_path / "one").initialOffset()
    with pytest.raises(UsageError, match="the checkpoint is of the store"):
        reader(tmp_path / "two").latestOffset(start, ReadAllAvailable())
    with pytest.raises(UsageError, match=r"of shards \[0\], and \[0, 1\]"):
        read_progress(start, start["store"], [0, 1])
    for bad in ({}, {"version": 1, "store": "x", "shards": {"a": 1}}, None):
        with pytest.raises(StorageError, match="not the progress"):
            read_progress(bad, "x", [0])
    with pytest.raises(StorageError, match="version 2"):
        read_progress({"version": 2, "store": "x", "shards": {}}, "x", [])


def test_a_changed_topic_on_an_old_checkpoint_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, SENT[:100])
    first = reader(tmp_path, topic="site/0/#", maxRecordsPerTrigger="40")
    start = first.latestOffset(first.initialOffset(), ReadMaxRows(40))
    same, other = reader(tmp_path, topic="site/0/#"), reader(tmp_path, topic='["site/#", "x"]')
    caplog.clear()
    same.latestOffset(start, ReadAllAvailable())
    assert not caplog.records
    moved = other.latestOffset(start, ReadAllAvailable())
    assert "begun with topic site/0/#, and goes on with site/#, x" in caplog.text
    assert "nothing before 0:40 is read" in caplog.text
    caplog.clear()
    other.latestOffset(moved, ReadAllAvailable())
    old = {name: value for name, value in start.items() if name != "topics"}  # of an Everlog that did not note them
    other.latestOffset(old, ReadAllAvailable())
    assert not caplog.records


def test_a_position_past_the_end_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, SENT[:100])
    with pytest.raises(UsageError, match="the option from has 0:101, and shard 0 ends at 100"):
        reader(tmp_path, **{"from": "0:101"}).initialOffset()
    with pytest.raises(UsageError, match="the option to has 0:101"):
        plan_frame(read_options({"path": str(tmp_path), "to": "0:101"}), 0)
    assert reader(tmp_path, **{"from": "0:100"}).initialOffset()["shards"] == {"0": 100}


def test_a_log_that_ends_before_the_checkpoint_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "now", SENT[:500])
    shutil.copytree(tmp_path / "now", tmp_path / "copy")
    fill(tmp_path / "now", SENT[500:])
    start = reader(tmp_path / "now").reportLatestOffset() or {}
    with pytest.raises(StorageError, match="read shard 0 up to offset 2000, and the log ends at 500"):
        reader(tmp_path / "copy").latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "latest"}, "has no end"),
        ({"tier": "table"}, "reads the log"),
        ({"onLost": "cry"}, "fail or skip"),
        ({"maxRecordsPerTrigger": "0"}, "above 0"),
        ({"maxBytesPerTrigger": "much"}, "above 0"),
        ({"maxRecords": "3"}, "there is no option"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_stream_options({"path": "x", **options})


def test_a_stream_begins_where_it_is_told(tmp_path: Path) -> None:
    fill(tmp_path, SENT, shards=2, step_us=1_000_000)
    assert reader(tmp_path).initialOffset()["shards"] == {"0": 0, "1": 0}
    assert reader(tmp_path, **{"from": "0:7"}, shards="0").initialOffset()["shards"] == {"0": 7}
    latest = reader(tmp_path, **{"from": "latest"})
    assert latest.initialOffset() == latest.reportLatestOffset()
    begin = reader(tmp_path, **{"from": "2024-10-04T12:00:10Z"})
    (batch,) = follow(begin, begin.initialOffset())
    assert len(batch) == len(SENT) - 500


def test_an_empty_store_has_nothing_yet(tmp_path: Path) -> None:
    fill(tmp_path, [])
    stream = reader(tmp_path)
    start = stream.initialOffset()
    assert follow(stream, start) == []
    assert stream.partitions(start, start) == []
    assert list(stream.read(None)) == []


def test_equal_progress_is_equal_text(tmp_path: Path) -> None:
    assert str(Progress.of("x", {1: 5, 0: 3}).to_json()) == str(Progress.of("x", {0: 3, 1: 5}).to_json())


counts = st.dictionaries(st.integers(0, 5), st.integers(0, 5000), min_size=1)


@given(counts, st.integers(1, 4000), st.integers(0, 1000))
def test_parts_add_up_to_what_may_be_taken(waiting: dict[int, int], most: int, first: int) -> None:
    start = dict.fromkeys(waiting, first)
    end = {shard: first + count for shard, count in waiting.items()}
    taken = admit(start, end, [], most, None)
    assert sum(taken[shard] - first for shard in waiting) == min(most, sum(waiting.values()))
    assert all(start[shard] <= taken[shard] <= end[shard] for shard in waiting)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 100_000)), min_size=1, max_size=6), st.integers(1, 200_000)
)
def test_bytes_are_kept_to_or_one_record_is_taken(sizes: list[tuple[int, int]], most: int) -> None:
    extents, at = [], 0
    for count, size in sizes:
        extents.append(Extent(0, at, at + count, size))
        at += count
    taken = admit({0: 0}, {0: at}, extents, None, most)[0]
    spent = sum(one.size_bytes * max(0, min(one.stop, taken) - one.start) / (one.stop - one.start) for one in extents)
    assert 1 <= taken <= at
    assert spent <= most * 1.000001 or taken == 1
    assert taken == at or spent + max(one.size_bytes / (one.stop - one.start) for one in extents) >= most * 0.999999


def test_a_partition_is_what_spark_was_told(tmp_path: Path) -> None:
    fill(tmp_path, SENT[:50])
    stream = reader(tmp_path)
    (partition,) = stream.partitions(stream.initialOffset(), stream.reportLatestOffset() or {})
    (batch,) = stream.read(partition)
    assert batch.schema.names == SCHEMA.names
    assert batch.schema.field("payload").type == pa.binary()
    with pytest.raises(UsageError, match="the column offset is int64, not string"):
        EverlogStreamReader(read_stream_options({"path": str(tmp_path)}), StructType().add("offset", "string"))
