"""The table as the store's cold tier: the very records that the log had."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.in_process import InProcess
from tests.spark.lake_data import DAY_US, NOON_US, Row, cold_rows, fill, log_rows, messages

from everlog.base import StorageError
from everlog.spark import Compaction, CompactionOptions, LakeStore, locate, vacuum
from everlog.spark.lake import lake_store
from everlog.store import ColdStore, Lost, read_lake_record
from everlog.topics import parse_filter


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("cold")
    fill(where, messages(4_000), shards=2, first_us=NOON_US + DAY_US // 2 - 20_000)
    Compaction(str(where), locate(str(where / "lake")), InProcess(), CompactionOptions(group_bytes=60_000)).run()
    return where


@pytest.fixture
def cold(data: Path) -> Iterator[LakeStore]:
    record = read_lake_record(str(data))
    assert record is not None
    found = LakeStore.of_record(record)
    yield found
    found.close()


def test_it_is_what_the_store_declares(cold: LakeStore) -> None:
    declared: ColdStore = cold
    assert declared.start(0) == 0
    assert declared.end(0) > 500


@pytest.mark.parametrize("step", [1, 97, 100_000])
def test_records_are_byte_for_byte_those_of_the_log(cold: LakeStore, data: Path, step: int) -> None:
    for shard in (0, 1):
        offset = 0 if step > 1 else cold.end(shard) - 50
        wanted = [row for row in log_rows(data, shard, cold.end(shard)) if row[0] >= offset]
        assert cold_rows(cold, shard, step=step, offset=offset) == wanted


def test_batches_pass_every_check_and_say_their_offsets(cold: LakeStore) -> None:
    result = cold.read(0, 10, [parse_filter("site/+/temp/#")], 100, 1 << 20)
    for found in result.batches:
        assert found.records.verify()
        assert found.records.with_offsets
    whole = cold.read(0, 10, None, 100, 1 << 20)
    assert whole.batches[0].records.verify()
    assert not whole.batches[0].records.with_offsets
    assert whole.batches[0].records.base_offset == 10
    assert whole.positions == (110,)


@pytest.mark.parametrize(
    "texts", [["site/1/#"], ["+/+/temp/+"], ["site/2/Strömung/s2", "site/0/état/+"], ["none/#"], ["#"], ["site/#", "#"]]
)
def test_a_filter_finds_what_it_finds_in_the_log(cold: LakeStore, data: Path, texts: list[str]) -> None:
    filters = [parse_filter(text) for text in texts]
    for shard in (0, 1):
        assert cold_rows(cold, shard, filters, step=33) == log_rows(data, shard, cold.end(shard), filters)


def test_a_step_keeps_to_its_bytes_and_has_one_record_at_least(cold: LakeStore) -> None:
    small = cold.read(0, 0, None, 1_000, 1)
    assert (small.count, small.positions) == (1, (1,))
    some = cold.read(0, 0, None, 1_000, 5_000)
    assert 1 < some.count < 1_000
    assert sum(found.records.size for found in some.batches) < 6_000


def test_what_lies_below_the_table_is_lost_and_its_end_is_caught_up(data: Path, cold: LakeStore) -> None:
    end = cold.end(0)
    at_end = cold.read(0, end, None, 10, 1_000)
    assert (at_end.batches, at_end.positions, at_end.caught_up) == ([], (end,), True)
    missing = cold.read(7, 0, None, 10, 1_000)
    assert (missing.batches, missing.caught_up) == ([], True)
    assert cold.start(7) == cold.end(7) == 0


def test_times_are_found_in_the_table(cold: LakeStore, data: Path) -> None:
    rows: list[Row] = log_rows(data, 0, cold.end(0))
    for time_us in {rows[0][1] - 5, rows[0][1], rows[300][1], rows[300][1] + 1, rows[-1][1]}:
        wanted = next(row[0] for row in rows if row[1] >= time_us)
        assert cold.position_at(0, time_us) == wanted
    assert cold.position_at(0, rows[-1][1] + 1) == cold.end(0)


def test_only_files_that_can_hold_a_topic_are_opened(
    cold: LakeStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    really = lake_store.load_files

    def counted(filesystem: Any, root: str, files: Any, filters: Any) -> Any:
        opened.append(files[0].path)
        return really(filesystem, root, files, filters)

    monkeypatch.setattr(lake_store, "load_files", counted)
    assert cold_rows(cold, 0, [parse_filter("zoo/#")]) == []
    assert opened == []
    last = cold.end(0) - 1
    assert [row[0] for row in cold_rows(cold, 0, offset=last)] == [last]
    assert len(opened) == 1


def test_a_refresh_takes_in_what_was_added_and_dropped(tmp_path: Path) -> None:
    published = messages(2_000)
    fill(tmp_path, published[:1_000])
    options = CompactionOptions(everything=True, group_bytes=60_000)
    made = Compaction(str(tmp_path), locate(str(tmp_path / "lake")), InProcess(), options)
    made.run()
    cold = LakeStore(made.lake.location)
    fill(tmp_path, published[1_000:], first_us=NOON_US + 3 * DAY_US)
    made.run()
    assert cold.end(0) == 1_000
    cold.refresh()
    assert cold.end(0) == 2_000
    made.lake.drop([file for file in made.lake.files() if file.last_offset < 1_000], "test")
    cold.refresh()
    assert cold.start(0) == 1_000
    result = cold.read(0, 400, None, 10, 1 << 20)
    assert result.lost == (Lost(0, 400, 1_000),)
    assert result.batches[0].records.base_offset == 1_000


def test_a_file_that_was_vacuumed_under_a_reader_is_an_error_and_a_refresh_helps(tmp_path: Path) -> None:
    fill(tmp_path, messages(2_000))
    made = Compaction(str(tmp_path), locate(str(tmp_path / "lake")), InProcess(), CompactionOptions(group_bytes=20_000))
    made.run()
    cold = LakeStore(made.lake.location)
    Compaction(str(tmp_path), made.lake.location, InProcess(), CompactionOptions(merge=True)).run()
    assert vacuum(made.lake, 0, force=True)
    with pytest.raises(StorageError, match="refresh"):
        cold.read(0, 0, None, 10, 1 << 20)
    cold.refresh()
    assert cold_rows(cold, 0) == log_rows(tmp_path, 0, cold.end(0))


def test_threads_that_want_one_file_load_it_once(cold: LakeStore, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    really = lake_store.load_files
    ready = threading.Barrier(4)

    def counted(filesystem: Any, root: str, files: Any, filters: Any) -> Any:
        loads.append(files[0].path)
        return really(filesystem, root, files, filters)

    monkeypatch.setattr(lake_store, "load_files", counted)
    counts: list[int] = []

    def read() -> None:
        ready.wait()
        counts.append(cold.read(0, 0, None, 100, 1 << 20).count)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [100] * 4
    assert len(loads) == 1


def test_the_cache_keeps_to_its_bytes(data: Path) -> None:
    cold = LakeStore(locate(str(data / "lake")), cache_bytes=1)
    assert cold_rows(cold, 0) == log_rows(data, 0, cold.end(0))
    assert len(cold._cache) == 1
