"""The table without Spark: every row once, whoever is overtaken, and what others read from it."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.in_process import InProcess
from tests.spark.lake_data import DAY_US, NOON_US, cold_rows, fill, log_rows, messages, table_rows

from everlog.base import StorageError, UsageError
from everlog.spark import (
    COLUMNS,
    Compaction,
    CompactionOptions,
    LakeStore,
    Slice,
    find_lake,
    locate,
    read_slice,
    take_snapshot,
    vacuum,
)
from everlog.spark.jobs import FILE_NAME, Level, Shape, Structure, write_structure
from everlog.spark.lake.file_merge import MergeTask, merge_files
from everlog.spark.lake.lake_table import Lake, Overtaken
from everlog.spark.lake.slice_writer import Written
from everlog.spark.lake.table_layout import data_path, shard_transaction
from everlog.spark.snapshot import plan
from everlog.store import read_lake_record

SMALL = CompactionOptions(group_bytes=60_000)


def compaction(data: Path, options: CompactionOptions = SMALL, runner: Any = None) -> Compaction:
    return Compaction(str(data), locate(str(data / "lake")), runner or InProcess(), options)


def source_rows(data: Path, ends: dict[int, int]) -> list[tuple[Any, ...]]:
    """The rows that the source gives of the log below the ends."""
    snapshot = take_snapshot(str(data))
    ranges = {shard: (0, end) for shard, end in ends.items()}
    names = pa.Table.from_batches
    batches = [batch for piece in plan(snapshot, ranges=ranges) for batch in _read(piece)]
    return table_rows(names(batches))


def _read(piece: Slice) -> Iterator[pa.RecordBatch]:
    return read_slice(piece, COLUMNS, on_damage="skip")


def ends_of(made: Compaction) -> dict[int, int]:
    return {shard: end for shard, end in made.lake.ends(made.shards).items() if end is not None}


def lake_rows(made: Compaction) -> list[tuple[Any, ...]]:
    return table_rows(made.lake.load().to_pyarrow_table())


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
@pytest.mark.parametrize("shards", [1, 4])
def test_the_table_holds_every_sealed_row_as_the_source_reads_it(tmp_path: Path, shards: int, codec: Any) -> None:
    fill(tmp_path, messages(3_000), shards=shards)
    made = compaction(tmp_path, CompactionOptions(group_bytes=60_000, codec=codec))
    summary = made.run()
    ends = ends_of(made)
    assert len(ends) == shards
    assert summary.rows == sum(ends.values()) > 1_000
    assert summary.files > shards
    assert lake_rows(made) == source_rows(tmp_path, ends)
    record = read_lake_record(str(tmp_path))
    assert record is not None
    assert (record.ends, record.table, record.store) == (ends, str(tmp_path / "lake"), made.lake.store)


def test_a_second_run_adds_nothing_and_a_later_one_only_what_is_new(tmp_path: Path) -> None:
    published = messages(3_000)
    fill(tmp_path, published[:1_500])
    compaction(tmp_path).run()
    again = compaction(tmp_path).run()
    assert (again.rows, again.rounds) == (0, 0)
    fill(tmp_path, published[1_500:], first_us=NOON_US + DAY_US)
    made = compaction(tmp_path, CompactionOptions(group_bytes=60_000, everything=True))
    made.run()
    assert ends_of(made) == {0: 3_000}
    assert lake_rows(made) == source_rows(tmp_path, {0: 3_000})


def test_the_open_segment_is_taken_to_its_committed_end_and_gone_on_with(tmp_path: Path) -> None:
    everything = CompactionOptions(everything=True)
    published = messages(400)
    fill(tmp_path, published[:130], segment_bytes=1 << 20)
    made = compaction(tmp_path, everything)
    made.run()
    assert ends_of(made) == {0: 130}
    fill(tmp_path, published[130:], segment_bytes=1 << 20, first_us=NOON_US + 10_000_000)
    made.run()
    assert lake_rows(made) == source_rows(tmp_path, {0: 400})


def test_an_empty_store_and_an_empty_shard_make_no_rows(tmp_path: Path) -> None:
    fill(tmp_path / "empty", [], shards=4)
    made = compaction(tmp_path / "empty")
    assert made.run().rows == 0
    assert lake_rows(made) == []
    one_topic = [message for message in messages(2_000) if message.topic == "site/0/temp/s0"] * 60
    fill(tmp_path / "one", one_topic, shards=4)
    made = compaction(tmp_path / "one")
    made.run()
    assert len(ends_of(made)) == 1
    assert lake_rows(made) == source_rows(tmp_path / "one", ends_of(made))
    assert compaction(tmp_path / "one").lake.store == made.lake.store


def test_days_are_partitions_and_midnight_splits_a_run(tmp_path: Path) -> None:
    midnight = NOON_US + DAY_US // 2
    fill(tmp_path, messages(2_000), first_us=midnight - 10_000, step_us=1_000)
    made = compaction(tmp_path)
    made.run()
    days = {file.day for file in made.lake.files()}
    assert len(days) == 2
    for file in made.lake.files():
        rows = pq.read_table(tmp_path / "lake" / file.path, partitioning=None)
        assert {str(moment.date()) for moment in rows["timestamp"].to_pylist()} == {file.day}


def test_statistics_are_those_of_the_rows(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000), shards=2)
    made = compaction(tmp_path)
    made.run()
    for action in pa.table(made.lake.load().get_add_actions()).to_pylist():
        rows = pq.read_table(tmp_path / "lake" / action["path"], partitioning=None)
        assert action["num_records"] == rows.num_rows
        for name in ("shard", "offset", "timestamp", "topic", "qos"):
            values = rows[name].to_pylist()
            key: Callable[[Any], Any] = str.encode if name == "topic" else lambda value: value
            assert action["min"][name] == min(values, key=key)
            assert action["max"][name] == max(values, key=key)
            assert action["null_count"][name] == 0


def test_rows_of_a_topic_lie_together_and_by_offset(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), segment_bytes=1 << 20, seal=False)
    made = compaction(tmp_path, CompactionOptions(everything=True))
    made.run()
    (file,) = made.lake.files()
    rows = pq.read_table(tmp_path / "lake" / file.path, partitioning=None)
    pairs = list(zip(rows["topic"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert pairs == sorted(pairs, key=lambda pair: (pair[0].encode(), pair[1]))


def test_the_structure_of_the_history_orders_the_topics(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), segment_bytes=1 << 20, seal=False)
    fixed, name = Level("fixed", "site", 1), Level("name", "{name}", 40)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    shape = Shape("site/+/+/+", "site/+/+/+", 40, 3_000, 0, when, when, (fixed, name, name, name), (2, 1, 3))
    write_structure(Structure(40, 3_000, (shape,)), tmp_path / FILE_NAME)
    made = compaction(tmp_path, CompactionOptions(everything=True))
    made.run()
    (file,) = made.lake.files()
    rows = pq.read_table(tmp_path / "lake" / file.path, partitioning=None)
    found = [tuple(name.split("/")) for name in dict.fromkeys(rows["topic"].to_pylist())]
    assert len(found) == 40
    assert found == sorted(found, key=lambda levels: (levels[2], levels[1], levels[3]))
    assert lake_rows(made) == source_rows(tmp_path, {0: 3_000})


def test_spark_reads_the_files_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    fill(tmp_path, messages(3_000), shards=2)
    made = compaction(tmp_path)
    made.run()
    frame = spark.read.parquet(*made.lake.load().file_uris()).orderBy("shard", "offset")
    wanted = lake_rows(made)
    found = frame.select("shard", "offset", "topic", "levels", "payload", "user_properties").collect()
    assert [(row[0], row[1], row[2], row[3], bytes(row[4])) for row in found] == [
        (row[0], row[1], row[3], row[4], row[-1]) for row in wanted
    ]
    assert {tuple((row[5] or {}).items()) for row in found} == {(), (("a", "b"), ("c", ""))}


def test_files_need_no_feature_that_old_readers_lack(tmp_path: Path) -> None:
    fill(tmp_path, messages(500))
    made = compaction(tmp_path)
    made.run()
    protocol = made.lake.load().protocol()
    assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
    assert made.lake.load().metadata().configuration["delta.enableDeletionVectors"] == "false"


def test_duckdb_and_polars_read_the_same_rows(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), shards=2)
    made = compaction(tmp_path)
    made.run()
    wanted = lake_rows(made)
    paths = made.lake.load().file_uris()
    found = duckdb.sql(
        f'select shard, "offset", topic, levels, qos, payload, day from read_parquet({paths!r}) order by 1, 2'
    ).fetchall()
    assert [row[:4] for row in found] == [(row[0], row[1], row[3], row[4]) for row in wanted]
    assert [row[5] for row in found] == [row[-1] for row in wanted]
    frame = polars.read_delta(str(tmp_path / "lake")).sort("shard", "offset")
    assert frame["payload"].to_list() == [row[-1] for row in wanted]
    assert frame["timestamp"].to_list() == [row[2] for row in wanted]


class Meanwhile:
    """Runs tasks in this process and lets something happen before their results are committed."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self.calls = list(calls)

    def run(self, function: Any, items: Sequence[Any]) -> list[Any]:
        results = InProcess().run(function, items)
        if self.calls:
            self.calls.pop(0)()
        return results


def test_a_compaction_that_was_overtaken_adds_nothing_twice(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), shards=2)
    other = compaction(tmp_path)
    late = compaction(tmp_path, runner=Meanwhile(other.run))
    summary = late.run()
    assert (summary.overtaken, summary.rows) == (1, 0)
    assert lake_rows(late) == source_rows(tmp_path, ends_of(late))


def test_a_compaction_that_was_overtaken_in_part_goes_on_behind_it(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000))
    one_group = CompactionOptions(group_bytes=60_000, round_bytes=1)
    other = compaction(tmp_path, one_group)

    def one_round() -> None:
        from everlog.spark import CompactionSummary

        other.round(CompactionSummary())

    late = compaction(tmp_path, runner=Meanwhile(one_round))
    summary = late.run()
    assert summary.overtaken == 1
    assert summary.rows > 0
    assert lake_rows(late) == source_rows(tmp_path, ends_of(late))


def test_a_commit_between_check_and_commit_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, messages(3_000))
    other, late = compaction(tmp_path), compaction(tmp_path)
    really = Lake.ends

    def checked(self: Lake, shards: Any, table: DeltaTable | None = None) -> Any:
        found = really(self, shards, table)
        if table is not None and not other_ran:
            other_ran.append(True)
            other.run()
        return found

    other_ran: list[bool] = []
    monkeypatch.setattr(Lake, "ends", checked)
    summary = late.run()
    assert other_ran
    assert summary.overtaken == 1
    assert lake_rows(late) == source_rows(tmp_path, ends_of(late))


def test_a_task_that_fails_halfway_and_is_tried_again_adds_its_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, messages(3_000))

    class Retried:
        """Runs each task twice and believes the second time, as Spark does when the first attempt was lost."""

        def run(self, function: Any, items: Sequence[Any]) -> list[Any]:
            InProcess().run(function, items)
            return InProcess().run(function, items)

    made = compaction(tmp_path, runner=Retried())
    made.run()
    on_disk = len(list((tmp_path / "lake").glob("day=*/*.parquet")))
    assert on_disk == 2 * len(made.lake.files())
    assert lake_rows(made) == source_rows(tmp_path, ends_of(made))


def test_merging_keeps_every_row_and_leaves_fewer_files(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), shards=2, first_us=NOON_US + DAY_US // 2 - 10_000)
    made = compaction(tmp_path, CompactionOptions(group_bytes=20_000))
    made.run()
    before, rows = made.lake.files(), lake_rows(made)
    merging = compaction(tmp_path, CompactionOptions(merge=True))
    summary = merging.run()
    after = merging.lake.files()
    assert summary.merged == len(before)
    assert len(after) == 4 < len(before)
    assert lake_rows(merging) == rows
    assert merging.lake.ends([0, 1]) == made.lake.ends([0, 1])
    assert compaction(tmp_path, CompactionOptions(merge=True)).run().merged == 0


def test_two_merges_of_the_same_files_do_not_double_them(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000))
    compaction(tmp_path, CompactionOptions(group_bytes=20_000)).run()
    options = CompactionOptions(merge=True)
    other = compaction(tmp_path, options)
    late = compaction(tmp_path, options, Meanwhile(other.run))
    rows = lake_rows(late)
    summary = late.run()
    assert (summary.merged, summary.overtaken) == (0, 1)
    assert lake_rows(late) == rows


def test_a_rewrite_that_another_one_beats_to_the_commit_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    made = compaction(tmp_path, CompactionOptions(group_bytes=20_000))
    made.run()
    rows = lake_rows(made)
    first, second, *_ = made.lake.files()
    stale = made.lake.load()

    class Stale(Lake):
        """Sees the table as it was, as one does that checked just before another's commit."""

        def load(self) -> DeltaTable:
            return stale

    task = MergeTask((first, second), made.lake.location, str(tmp_path))
    made.lake.rewrite(task.files, [merge_files(task)], "test")
    with pytest.raises(Overtaken):
        Stale(made.lake.location, made.lake.store).rewrite(task.files, [merge_files(task)], "test")
    assert lake_rows(made) == rows


def test_retention_drops_old_days_and_they_do_not_come_back(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    published = messages(3_000)
    fill(tmp_path, published[:1_500], first_us=now - 5 * DAY_US)
    fill(tmp_path, published[1_500:], first_us=now - 2_000_000)
    made = compaction(tmp_path, CompactionOptions(everything=True, group_bytes=60_000, retain_us=2 * DAY_US))
    summary = made.run()
    assert summary.dropped > 0
    cold = LakeStore(made.lake.location)
    assert (cold.start(0), cold.end(0)) == (1_500, 3_000)
    assert made.run().rows == 0
    assert [row[1] for row in lake_rows(made)] == list(range(1_500, 3_000))


def test_vacuum_removes_what_failed_attempts_left_and_spares_what_is_young(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    made = compaction(tmp_path, CompactionOptions(group_bytes=20_000))
    made.run()
    kept = {file.path for file in made.lake.files()}
    day = next(iter(kept)).partition("/")[0].partition("=")[2]
    old, young = (tmp_path / "lake" / data_path(day, 0, 7, name) for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half a file")
    an_hour, a_week = 3_600, 7 * 86_400
    os.utime(old, (time.time() - 2 * a_week,) * 2)
    os.utime(young, (time.time() - an_hour,) * 2)
    lake = find_lake(locate(str(tmp_path / "lake")))
    with pytest.raises(UsageError, match="too few"):
        vacuum(lake, 1)
    assert [path.endswith(old.name) for path in vacuum(lake, 168, dry_run=True)] == [True]
    assert old.exists()
    assert len(vacuum(lake)) == 1
    assert not old.exists()
    assert young.exists()
    assert {str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").glob("day=*/*")} == {
        *kept,
        str(young.relative_to(tmp_path / "lake")),
    }


def test_vacuum_spares_readers_of_files_that_a_merge_replaced(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    made = compaction(tmp_path, CompactionOptions(group_bytes=20_000))
    made.run()
    before, rows = made.lake.load(), lake_rows(made)
    compaction(tmp_path, CompactionOptions(merge=True)).run()
    assert vacuum(made.lake) == []
    assert table_rows(before.to_pyarrow_table()) == rows
    replaced = vacuum(made.lake, 0, force=True)
    assert len(replaced) > 1
    assert lake_rows(made) == rows


def test_transactions_outlive_checkpoints_and_the_cleaning_of_the_tables_log(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000))
    made = compaction(tmp_path, CompactionOptions(group_bytes=8_000, round_bytes=1))
    summary = made.run()
    assert summary.rounds > 20
    table = made.lake.load()
    table.create_checkpoint()
    for path in (tmp_path / "lake" / "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()
    assert compaction(tmp_path).run().rows == 0
    assert lake_rows(made) == source_rows(tmp_path, ends_of(made))


def test_a_table_of_another_store_or_another_making_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "one", messages(200))
    fill(tmp_path / "two", messages(200))
    made = compaction(tmp_path / "one")
    with pytest.raises(UsageError, match="another store"):
        Compaction(str(tmp_path / "two"), made.lake.location, InProcess())
    DeltaTable.create(str(tmp_path / "foreign"), pa.schema([("x", pa.int64())]))
    with pytest.raises(UsageError, match="not one of this version"):
        Compaction(str(tmp_path / "one"), locate(str(tmp_path / "foreign")), InProcess())
    with pytest.raises(UsageError, match="holds no table"):
        find_lake(locate(str(tmp_path / "nothing")))


def test_damage_stops_compaction_unless_it_is_to_be_left_out(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000))
    path = sorted((tmp_path / "shard-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StorageError):
        compaction(tmp_path).run()
    assert lake_rows(compaction(tmp_path)) == []
    made = compaction(tmp_path, CompactionOptions(on_damage="skip"))
    summary = made.run()
    assert len(summary.damage) == 1
    assert path.name in summary.damage[0]
    assert ends_of(made)[0] - summary.rows == 200  # a segment is one batch once it is sealed
    assert lake_rows(made) == source_rows(tmp_path, ends_of(made))


class Elsewhere(InProcess):
    """Runs tasks whose files come to harm before the driver looks."""

    def __init__(self, harm: Callable[[Path], None], root: Path) -> None:
        self.harm, self.root = harm, root

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        made = super().run(function, items)
        last = made[-1].files[-1] if isinstance(made[-1], Written) else made[-1]
        self.harm(self.root / last.path)
        return made


def fewer_rows(path: Path) -> None:
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.slice(1), path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("harm", [Path.unlink, cut, fewer_rows])
def test_a_file_that_is_not_as_its_task_reported_it_is_not_committed(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    elsewhere = Elsewhere(harm, tmp_path / "lake")
    fill(tmp_path, messages(3_000))
    with pytest.raises(StorageError, match=r"nothing is committed: .*every worker must see the same"):
        compaction(tmp_path, runner=elsewhere).run()
    assert read_lake_record(str(tmp_path)) is None
    assert lake_rows(compaction(tmp_path)) == []
    made = compaction(tmp_path)
    made.run()
    with pytest.raises(StorageError, match="nothing is committed"):
        compaction(tmp_path, CompactionOptions(merge=True), elsewhere).run()
    assert lake_rows(made) == source_rows(tmp_path, ends_of(made))


def test_a_damaged_record_of_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake.json").write_text(json.dumps({"table": "x", "store": "y", "ends": {}, "version": 3}))
    with pytest.raises(StorageError, match="version 3"):
        read_lake_record(str(tmp_path))
    (tmp_path / "lake.json").write_text("{")
    with pytest.raises(StorageError, match=r"lake\.json"):
        read_lake_record(str(tmp_path))


def test_the_transaction_of_a_shard_names_the_store(tmp_path: Path) -> None:
    fill(tmp_path, messages(500))
    made = compaction(tmp_path)
    made.run()
    assert (
        made.lake.load().transaction_version(shard_transaction(take_snapshot(str(tmp_path)).identity, 0))
        == (ends_of(made)[0])
    )
    assert cold_rows(LakeStore(made.lake.location), 0) == log_rows(tmp_path, 0, ends_of(made)[0])
