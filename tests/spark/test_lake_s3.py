"""The table in a bucket: a server in a process of its own, which keeps to conditional puts, or does not."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyarrow import fs
from tests.s3_server import BUCKET, serve
from tests.spark.in_process import InProcess
from tests.spark.lake_data import cold_rows, fill, log_rows, messages

from everlog.base import StorageError
from everlog.spark import Compaction, CompactionOptions, LakeStore, Location, check_bucket, locate, vacuum
from everlog.spark.frame_plan import plan_frame
from everlog.spark.lake.file_check import check_files
from everlog.spark.lake_slices import LakeSlice, read_lake_slice
from everlog.spark.sink.table_sink import commit_files, write_file
from everlog.spark.source_options import read_options
from everlog.store import read_lake_record
from everlog.topics import parse_filter


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with serve("careful") as options:
        yield options


@pytest.fixture(scope="module")
def careless_bucket() -> Iterator[dict[str, str]]:
    with serve("careless") as options:
        yield options


def place(options: dict[str, str], name: str) -> Location:
    return locate(f"s3://{BUCKET}/{name}", options)


def test_a_table_in_a_bucket_holds_every_row_once(bucket: dict[str, str], tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000), shards=2)
    where = place(bucket, "lake")
    check_bucket(where)
    made = Compaction(str(tmp_path), where, InProcess(), CompactionOptions(group_bytes=60_000))
    assert made.run().rows > 1_000
    assert made.run().rows == 0
    cold = LakeStore(where)
    for shard in (0, 1):
        assert cold_rows(cold, shard) == log_rows(tmp_path, shard, cold.end(shard))


def test_a_table_in_a_bucket_is_read_without_its_log(
    bucket: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, messages(2_000), shards=2)
    where = place(bucket, "alone")
    made = Compaction(str(tmp_path), where, InProcess(), CompactionOptions(group_bytes=60_000)).run()
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    found = plan_frame(read_options({"path": where.uri}), 0)
    slices = found.slices(4)
    assert {type(piece) for piece in slices} == {LakeSlice}
    batches = [
        batch
        for piece in slices
        if isinstance(piece, LakeSlice)
        for batch in read_lake_slice(piece, ("shard", "offset"))
    ]
    assert len({tuple(row.values()) for batch in batches for row in batch.to_pylist()}) == made.rows
    topic = ["site/3/#"]
    some = [
        row
        for piece in found.slices(4, topic)
        if isinstance(piece, LakeSlice)
        for batch in read_lake_slice(piece, ("topic", "payload"), topic)
        for row in batch.to_pylist()
    ]
    assert 0 < len(some) < made.rows / 2
    assert all(row["topic"].startswith("site/3/") for row in some)


def test_files_in_a_bucket_are_looked_at_before_they_are_committed(bucket: dict[str, str], tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    for where in (place(bucket, "sunk"), locate(str(tmp_path / "sunk"))):
        rows = pa.record_batch([pa.array(Random(1).choices(range(1 << 60), k=200_000))], schema)
        file = write_file([rows], where, schema)
        assert file is not None
        for wrong in (replace(file, path="gone.parquet"), replace(file, size_bytes=1), replace(file, rows=1)):
            with pytest.raises(StorageError, match="nothing is committed"):
                commit_files(where, schema, [file, wrong], "app", 0)
        assert commit_files(where, schema, [file], "app", 0) == 1
    before = read_bytes()
    check_files(where, [file] * 10)
    assert file.size_bytes > 1 << 20
    assert read_bytes() - before < file.size_bytes, "of ten files the footers"


def read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_the_record_names_the_options_and_none_of_their_values(bucket: dict[str, str], tmp_path: Path) -> None:
    fill(tmp_path, messages(500))
    Compaction(str(tmp_path), place(bucket, "named"), InProcess()).run()
    text = (tmp_path / "lake.json").read_text()
    assert "AWS_SECRET_ACCESS_KEY" in text
    assert "a-secret" not in text
    record = read_lake_record(str(tmp_path))
    assert record is not None
    cold = LakeStore.of_record(record, bucket)
    assert cold_rows(cold, 0) == log_rows(tmp_path, 0, cold.end(0))


def test_merging_and_vacuum_work_in_a_bucket(bucket: dict[str, str], tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    where = place(bucket, "merged")
    Compaction(str(tmp_path), where, InProcess(), CompactionOptions(group_bytes=20_000)).run()
    made = Compaction(str(tmp_path), where, InProcess(), CompactionOptions(merge=True))
    assert made.run().merged > 1
    assert len(vacuum(made.lake, 0, force=True)) > 1
    cold = LakeStore(where)
    assert cold_rows(cold, 0) == log_rows(tmp_path, 0, cold.end(0))
    filters = [parse_filter("site/1/#"), parse_filter("+/+/temp/s0")]
    assert cold_rows(cold, 0, filters) == log_rows(tmp_path, 0, cold.end(0), filters)
    filesystem, root = where.filesystem()
    left = filesystem.get_file_info(fs.FileSelector(f"{root}/_topics", recursive=True))
    assert [Path(file.path).stem for file in left if file.is_file] == [Path(made.lake.files()[0].path).stem]


def test_a_bucket_that_ignores_conditions_is_refused(careless_bucket: dict[str, str]) -> None:
    with pytest.raises(StorageError, match="conditional puts"):
        check_bucket(place(careless_bucket, "lake"))


def test_a_bucket_that_is_not_there_is_an_understandable_error(bucket: dict[str, str]) -> None:
    with pytest.raises(StorageError, match="can't be written to"):
        check_bucket(locate("s3://no-such-bucket/lake", bucket))


def test_the_probe_leaves_nothing_behind(bucket: dict[str, str]) -> None:
    where = place(bucket, "probed")
    check_bucket(where)
    filesystem, root = where.filesystem()
    from pyarrow import fs

    found = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    assert [info.path for info in found if info.is_file] == []


def test_a_directory_needs_no_probe(tmp_path: Path) -> None:
    check_bucket(locate(str(tmp_path)))
    assert os.listdir(tmp_path) == []
