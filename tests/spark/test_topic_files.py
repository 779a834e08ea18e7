"""Topics in the table: only the pages that hold wanted topics are read, and what is found is the same without them."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.frames import compact, drop_log, planned, rows
from tests.spark.in_process import InProcess
from tests.spark.lake_data import cold_rows, damage, fill, log_rows, messages, table_rows

from everlog.base import StorageError
from everlog.spark import COLUMNS, Compaction, CompactionOptions, LakeStore, locate, vacuum
from everlog.spark.lake import parquet_writer, topic_reader
from everlog.spark.lake import thrift_compact as thrift
from everlog.spark.lake.parquet_writer import READ_COLUMNS, Writer
from everlog.spark.lake.row_order import Clustering
from everlog.spark.lake.topic_reader import topic_rows
from everlog.spark.lake_slices import LakeSlice, read_lake_slice
from everlog.spark.schema import SCHEMA
from everlog.topics import matches, parse_filter

FILTERS = (["site/1/#"], ["+/+/temp/+"], ["site/2/Strömung/s10"], ["site/3/#", "site/0/+/s0"], ["#"], ["nope", "site"])


@pytest.fixture(autouse=True)
def none_open() -> Iterator[None]:
    """Topic files are kept open for the tasks of a worker."""
    topic_reader._opened.clear()
    yield
    topic_reader._opened.clear()


def bytes_read() -> int:
    """What this process has read from files so far."""
    with open("/proc/self/io") as counts:
        return int(counts.readline().split()[1])


def made_rows(count: int, topics: int, payload_bytes: Sequence[int], seed: int = 1) -> pa.Table:
    """Rows of one shard with values in every column, in runs with and without properties."""
    chance = Random(seed)
    times = np.arange(count) + 1_700_000_000_000_000
    names = [f"site/{n % 5}/{'x' * (n % 7)}/s{n}" for n in range(topics)]

    def some(value: Any) -> list[Any]:
        return [value(n) if chance.random() < 0.3 else None for n in range(count)]

    columns: dict[str, Any] = {
        "shard": [3] * count,
        "offset": range(1000, 1000 + count),
        "timestamp": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        "topic": [chance.choice(names) for _ in range(count)],
        "qos": [chance.randrange(3) for _ in range(count)],
        "retain": [chance.random() < 0.5 for _ in range(count)],
        "expiry": some(lambda n: n),
        "content_type": some(lambda n: f"type/{n % 9}"),
        "response_topic": some(lambda n: f"answers/{n}"),
        "correlation_data": some(lambda n: b"%d" % n),
        "user_properties": some(lambda n: [(f"k{k}", f"v{n}") for k in range(n % 5)]),
        "client_id": some(lambda n: f"client-{n % 7}"),
        "properties": some(lambda n: b"\x01" * (n % 40)),
        "payload": [chance.randbytes(chance.choice(payload_bytes)) for _ in range(count)],
    }
    arrays = [pa.array(columns[name], SCHEMA.field(name).type) for name in READ_COLUMNS]
    return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in READ_COLUMNS]))


def found_rows(table: Path, path: str, texts: list[str]) -> list[tuple[Any, ...]]:
    """The rows that the topic file leads to."""
    filesystem, root = locate(str(table)).filesystem()
    found = topic_rows(filesystem, root, path, [parse_filter(text) for text in texts])
    assert found is not None
    parts = list(found.read(filesystem, f"{root}/{path}", 3, COLUMNS))
    assert sum(part.num_rows for part in parts) == found.rows
    for part in parts:
        part.validate(full=True)
    return [row for part in parts for row in table_rows(part)]


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
@pytest.mark.parametrize("payload_bytes", [(0, 10, 90), (0, 3, 9_000)])
def test_every_filter_finds_its_rows_with_every_column_in_any_number_of_row_groups_and_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any, payload_bytes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP", 1_100)
    monkeypatch.setattr(parquet_writer, "WRITE_BATCH", 64)
    monkeypatch.setattr(parquet_writer, "PAGE_BYTES", 2_000)
    whole = made_rows(4_000, 60, payload_bytes)
    path = Writer(locate(str(tmp_path)), Clustering(), codec).write(whole, 20_000).path
    stored = pq.read_table(tmp_path / path, partitioning=None)
    assert stored.num_rows == 4_000
    everything = sorted(table_rows(stored.cast(SCHEMA)))
    exact = stored["topic"][2_000].as_py()
    for texts in (*FILTERS[:2], [exact], ["site/+/#", "$SYS/#"], ["+/2/#", exact], ["nope"], ["site/0//s0"]):
        filters = [parse_filter(text) for text in texts]
        want = [row for row in everything if any(matches(flt, row[3]) for flt in filters)]
        assert sorted(found_rows(tmp_path, path, texts)) == want, texts


def test_one_topic_is_a_few_pages_of_a_file(tmp_path: Path) -> None:
    whole = made_rows(60_000, 300, (80, 100, 120))
    file = Writer(locate(str(tmp_path)), Clustering()).write(whole, 20_000)
    piece = LakeSlice(str(tmp_path), file.path, 3, 1000, 61_000, file.size_bytes, file.first_topic, file.last_topic)
    before = bytes_read()
    found = list(read_lake_slice(piece, COLUMNS, ["site/1/xxx/s101"]))
    narrow = bytes_read() - before
    before = bytes_read()
    everything = list(read_lake_slice(piece, COLUMNS))
    assert sum(batch.num_rows for batch in everything) == 60_000
    assert bytes_read() - before >= file.size_bytes
    assert 100 < sum(batch.num_rows for batch in found) < 400
    assert narrow < file.size_bytes / 5


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("topics", FILTERS)
def test_rows_are_the_same_with_topic_files_and_without(tmp_path: Path, topics: list[str], drop: bool) -> None:
    fill(tmp_path, messages(3_000), shards=2)
    compact(tmp_path)
    if drop:
        drop_log(tmp_path)
    columns = ("shard", "offset", "levels", "user_properties", "payload")
    with_them = rows(planned(tmp_path), columns, topics) if topics != ["nope", "site"] else None
    files = list((tmp_path / "lake" / "_topics").rglob("*.topics"))
    assert len(files) == len(list((tmp_path / "lake").glob("day=*/*.parquet")))
    for file in files:
        file.unlink()
    topic_reader._opened.clear()
    cold = LakeStore(locate(str(tmp_path / "lake")))
    filters = [parse_filter(text) for text in topics]
    if with_them is not None:
        without = rows(planned(tmp_path), columns, topics)
        assert sorted(map(str, without.to_pylist())) == sorted(map(str, with_them.to_pylist()))
    for shard in range(2) if not drop else ():
        assert cold_rows(cold, shard, filters) == log_rows(tmp_path, shard, cold.end(shard), filters)


def test_rows_of_a_topic_keep_their_order(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000))
    compact(tmp_path)
    found = rows(planned(tmp_path, tier="table"), ("offset", "topic"), ["site/1/#"]).to_pylist()
    seen: dict[str, int] = {}
    for row in found:
        assert seen.get(row["topic"], -1) < row["offset"]
        seen[row["topic"]] = row["offset"]


def test_from_and_to_hold_for_a_topic(tmp_path: Path) -> None:
    fill(tmp_path, messages(3_000), step_us=1_000_000)
    compact(tmp_path)
    before = rows(planned(tmp_path, tier="log"), ("offset", "timestamp"), ["site/1/#"]).to_pylist()
    drop_log(tmp_path)
    found = rows(planned(tmp_path, begin="0:500", end="0:1700"), ("offset",), ["site/1/#"]).to_pylist()
    assert sorted(row["offset"] for row in found) == [row["offset"] for row in before if 500 <= row["offset"] < 1700]
    low, high = "2024-10-04T12:00:05Z", "2024-10-04T12:00:41Z"
    found = rows(planned(tmp_path, begin=low, end=high), ("offset",), ["site/1/#"]).to_pylist()
    want = [row["offset"] for row in before if low <= f"{row['timestamp']:%Y-%m-%dT%H:%M:%SZ}" < high]
    assert want
    assert sorted(row["offset"] for row in found) == want


def test_a_damaged_topic_file_costs_time_and_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, messages(1_500), segment_bytes=1 << 20)
    compact(tmp_path, everything=True)
    (file,) = (tmp_path / "lake" / "_topics").rglob("*.topics")
    whole = file.read_bytes()
    want = sorted(map(str, rows(planned(tmp_path), COLUMNS, ["site/1/+/s1"]).to_pylist()))
    warned = 0
    for position in [*range(0, 200, 3), *range(200, len(whole), 41)]:
        file.write_bytes(whole)
        damage(file, position)
        topic_reader._opened.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert sorted(map(str, rows(planned(tmp_path), COLUMNS, ["site/1/+/s1"]).to_pylist())) == want
        warned += bool(caplog.records)
    assert warned > 50
    for length in (0, 10, len(whole) // 2):
        file.write_bytes(whole[:length])
        topic_reader._opened.clear()
        assert sorted(map(str, rows(planned(tmp_path), COLUMNS, ["site/1/+/s1"]).to_pylist())) == want


def test_a_topic_file_of_another_data_file_is_not_believed(tmp_path: Path) -> None:
    file = Writer(locate(str(tmp_path)), Clustering()).write(made_rows(500, 9, (20,)), 20_000)
    path = tmp_path / file.path
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(StorageError, match="by its topic file"):
        found_rows(tmp_path, file.path, ["site/1/#"])


def test_without_a_topic_file_row_groups_are_left_out_by_their_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP", 2_000)
    file = Writer(locate(str(tmp_path)), Clustering()).write(made_rows(40_000, 300, (100,)), 20_000)
    next((tmp_path / "_topics").rglob("*.topics")).unlink()
    piece = LakeSlice(str(tmp_path), file.path, 3, 1000, 41_000, file.size_bytes, file.first_topic, file.last_topic)
    before = bytes_read()
    found = list(read_lake_slice(piece, COLUMNS, ["site/1/xxx/s101"]))
    assert sum(batch.num_rows for batch in found) > 100
    assert bytes_read() - before < file.size_bytes / 4


def test_with_a_topic_for_each_row_there_is_no_topic_file(tmp_path: Path) -> None:
    Writer(locate(str(tmp_path)), Clustering()).write(made_rows(100, 1_000, (20,)), 20_000)
    assert not (tmp_path / "_topics").exists()


def test_a_plan_has_only_files_with_wanted_topics_and_weighs_them(tmp_path: Path) -> None:
    fill(tmp_path, [*messages(3_000, topics=40), *messages(1_200, seed=2, topics=60)])
    compact(tmp_path)
    found = planned(tmp_path, tier="table")
    everything = found.slices(4)
    rare = found.slices(4, ["site/3/état/s59"])
    assert 0 < len(rare) < len(everything) / 2
    assert {piece.start for piece in rare} < {piece.start for piece in everything}
    assert found.slices(4, ["site/2/temp/+/nope", "+/2/s1"]) == []


def test_merged_files_have_topic_files_and_vacuum_removes_those_of_files_that_are_gone(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    table = tmp_path / "lake"

    def paths(pattern: str) -> set[str]:
        return {
            path.relative_to(table).as_posix().removeprefix("_topics/").rpartition(".")[0]
            for path in table.glob(pattern)
        }

    made = Compaction(str(tmp_path), locate(str(table)), InProcess(), CompactionOptions(group_bytes=20_000))
    made.run()
    before = paths("day=*/*.parquet")
    assert paths("_topics/*/*.topics") == before
    Compaction(str(tmp_path), locate(str(table)), InProcess(), CompactionOptions(merge=True)).run()
    merged = {file.path.removesuffix(".parquet") for file in made.lake.files()}
    assert paths("_topics/*/*.topics") == before | merged
    assert vacuum(made.lake) == []  # others may still read what was replaced
    assert paths("_topics/*/*.topics") == before | merged
    assert vacuum(made.lake, 0, force=True, dry_run=True)
    assert paths("_topics/*/*.topics") == before | merged
    vacuum(made.lake, 0, force=True)
    assert paths("_topics/*/*.topics") == merged == paths("day=*/*.parquet")
    made.lake.drop(made.lake.files(), "test")
    vacuum(made.lake, 0, force=True)
    assert paths("_topics/*/*.topics") == set()


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -65, 2**31, -(2**31), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("count", [0, 1, 14, 15, 200])
def test_what_is_written_as_thrift_is_read_as_it_was(value: int, count: int) -> None:
    inner = thrift.struct((1, thrift.I64, thrift.integer(value)), (9, thrift.BINARY, thrift.text(b"x" * count)))
    packed = thrift.struct(
        (2, thrift.LIST, thrift.list_of(thrift.STRUCT, [inner] * count)), (3, thrift.I32, thrift.integer(-7))
    )
    reader = thrift.ThriftReader(packed + b"more")
    assert reader.struct() == {2: [{1: value, 9: b"x" * count}] * count, 3: -7}
    assert packed[reader.at :] == b""
    with pytest.raises((ValueError, IndexError)):
        thrift.ThriftReader(packed[:-2]).struct()
