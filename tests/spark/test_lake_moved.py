"""A data directory that is moved, copied or parted from its table: no history is hidden, and none is mixed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.spark.in_process import InProcess
from tests.spark.lake_data import DAY_US, NOON_US, Row, cold_rows, fill, log_rows, messages

from everlog.app.cold_tier import ColdTier
from everlog.base import StorageError
from everlog.cli.spark.compact import table_of
from everlog.commitlog import LogSettings
from everlog.spark import Compaction, CompactionOptions, LakeStore, find_lake, locate, take_snapshot
from everlog.spark.frame_plan import plan_frame
from everlog.spark.source_options import SourceOptions
from everlog.store import LakeRecord, LogStore, read_lake_record, write_lake_record

SENT = messages(1_000)


def compact(data: Path, table: str | None = None, **options: Any) -> Compaction:
    """As the command does it."""
    made = Compaction(str(data), table_of(str(data), table, None), InProcess(), CompactionOptions(**options))
    made.run()
    return made


def record_of(data: Path) -> LakeRecord:
    record = read_lake_record(str(data))
    assert record is not None
    return record


def written_table(data: Path) -> Any:
    return json.loads((data / "lake.json").read_text())["table"]


def write_old_record(data: Path, table: Path) -> None:
    """`lake.json` as it was when every path was absolute."""
    old = json.loads((data / "lake.json").read_text()) | {"table": str(table), "version": 1}
    (data / "lake.json").write_text(json.dumps(old))


def drop_log(data: Path) -> None:
    """Have retention remove what it may of the log."""
    store = LogStore.open(str(data), LogSettings(retention_bytes=1), background=False)
    store.run_retention(NOON_US)
    store.close()
    assert take_snapshot(str(data)).shards[0].start > 0


def table_rows(made: Compaction) -> list[Row]:
    return cold_rows(LakeStore(made.lake.location), 0)


def check_read_whole(data: Path, count: int) -> None:
    """Frame and broker find all of history, from this directory's table."""
    pinned = plan_frame(SourceOptions(str(data)), NOON_US)
    assert pinned.ranges == {0: (0, count)}
    assert pinned.lake is not None
    assert pinned.lake.uri == str(data / "lake")
    tier = ColdTier(str(data), take_snapshot(str(data)).identity)
    tier.refresh()
    assert (tier.start(0), tier.end(0)) == (0, pinned.lake.ends[0])
    tier.close()


def test_a_moved_directory_goes_on_with_its_table(tmp_path: Path) -> None:
    data, moved = tmp_path / "d", tmp_path / "dmv"
    fill(data, SENT[:500])
    compact(data)
    drop_log(data)
    assert written_table(data) == "lake"
    data.rename(moved)
    check_read_whole(moved, 500)
    fill(moved, SENT[500:], first_us=NOON_US + DAY_US)
    assert compact(moved, everything=True).lake.location.uri == str(moved / "lake")
    check_read_whole(moved, 1_000)
    assert not data.exists()


@pytest.mark.parametrize("is_old", [False, True])
def test_a_copy_is_compacted_into_its_own_table(tmp_path: Path, is_old: bool) -> None:
    data, copy = tmp_path / "g", tmp_path / "gcopy"
    fill(data, SENT[:500])
    compact(data, everything=True)
    if is_old:
        write_old_record(data, data / "lake")
    shutil.copytree(data, copy)
    before = find_lake(locate(str(data / "lake"))).load().version()
    fill(copy, SENT[500:], first_us=NOON_US + DAY_US)
    compact(copy, everything=True)
    assert find_lake(locate(str(data / "lake"))).load().version() == before
    check_read_whole(copy, 1_000)
    check_read_whole(data, 500)
    assert (written_table(copy), record_of(copy).table) == ("lake", str(copy / "lake"))


def test_an_old_record_of_a_moved_directory_is_understood(tmp_path: Path) -> None:
    data, moved = tmp_path / "d", tmp_path / "dmv"
    fill(data, SENT[:500])
    compact(data)
    write_old_record(data, data / "lake")
    data.rename(moved)
    check_read_whole(moved, 500)
    compact(moved, everything=True)
    assert written_table(moved) == "lake"
    assert not data.exists()


def test_a_table_elsewhere_that_is_missing_is_not_replaced_by_one_in_the_directory(tmp_path: Path) -> None:
    data, table = tmp_path / "d", tmp_path / "disk/lake"
    fill(data, SENT)
    compact(data)
    compact(data, str(table))
    assert written_table(data) == str(table)
    table.rename(tmp_path / "unmounted")
    assert record_of(data).table == str(table)
    with pytest.raises(StorageError, match=r"holds no table, and lake\.json names it"):
        compact(data)


def test_a_path_through_a_link_lies_in_the_directory_too(tmp_path: Path) -> None:
    data, link = tmp_path / "d", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    for table in (data / "lake", link / "lake"):
        write_lake_record(str(link), LakeRecord(table=str(table), store="x", ends={}))
        assert written_table(data) == "lake"
    for outside in ("s3://bucket/lake", str(tmp_path / "dlake"), str(tmp_path)):
        write_lake_record(str(data), LakeRecord(table=outside, store="x", ends={}))
        assert (written_table(data), record_of(data).table) == (outside, outside)


def test_a_missing_table_is_refused_until_the_record_is_removed(tmp_path: Path) -> None:
    fill(tmp_path, SENT)
    compact(tmp_path)
    drop_log(tmp_path)
    shutil.rmtree(tmp_path / "lake")
    said = r"holds no table, and lake.json names it as the one with offsets up to \d+"
    with pytest.raises(StorageError, match=said) as refused:
        compact(tmp_path, everything=True)
    assert "put the table back, or remove lake.json" in (refused.value.hint or "")
    assert not (tmp_path / "lake").exists()
    with pytest.raises(StorageError, match=said):
        plan_frame(SourceOptions(str(tmp_path)), NOON_US)
    with pytest.raises(StorageError, match=said):
        ColdTier(str(tmp_path), take_snapshot(str(tmp_path)).identity).refresh()
    (tmp_path / "lake.json").unlink()
    assert compact(tmp_path, everything=True).lake.ends([0]) == {0: 1_000}


def test_another_table_must_have_what_the_log_has_dropped(tmp_path: Path) -> None:
    data, other = tmp_path / "d", tmp_path / "other"
    fill(data, SENT)
    compact(data)
    shutil.copytree(data / "lake", tmp_path / "copied")
    assert compact(data, str(other)).lake.ends([0]) == record_of(data).ends  # the log has all of it
    drop_log(data)
    with pytest.raises(StorageError, match=r"has offsets of shard 0 up to 0, .* and the log has dropped those below"):
        compact(data, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert compact(data, str(tmp_path / "copied")).lake.location.uri == str(tmp_path / "copied")


def test_an_older_copy_of_the_table_is_refused_where_the_log_can_not_fill_it_up(tmp_path: Path) -> None:
    fill(tmp_path, SENT[:500])
    compact(tmp_path, everything=True)
    shutil.copytree(tmp_path / "lake", tmp_path / "older")
    fill(tmp_path, SENT[500:], first_us=NOON_US + DAY_US)
    compact(tmp_path)
    drop_log(tmp_path)
    shutil.rmtree(tmp_path / "lake")
    (tmp_path / "older").rename(tmp_path / "lake")
    with pytest.raises(StorageError, match="has offsets of shard 0 up to 500"):
        compact(tmp_path)


def test_copies_of_a_store_are_not_mixed_in_one_table(tmp_path: Path) -> None:
    data, copy, table = tmp_path / "g", tmp_path / "gcopy", tmp_path / "table"
    fill(data, SENT[:500])
    compact(data, str(table), everything=True)
    shutil.copytree(data, copy)
    fill(data, SENT[500:600], first_us=NOON_US + DAY_US)
    fill(copy, SENT[500:], first_us=NOON_US + 2 * DAY_US)
    made = compact(data, everything=True)
    rows = table_rows(made)
    with pytest.raises(StorageError, match=r"another record at offset 599 .* another copy of the store"):
        compact(copy, everything=True)
    with pytest.raises(StorageError, match="another copy of the store"):
        plan_frame(SourceOptions(str(copy)), NOON_US)
    assert table_rows(made) == rows == log_rows(data, 0, 600)
    behind = LakeRecord(table=str(table), store=made.lake.store, ends={0: 500})  # killed before it was written
    write_lake_record(str(data), behind)
    assert plan_frame(SourceOptions(str(data)), NOON_US).ranges == {0: (0, 600)}


def test_a_log_that_ends_before_its_table_is_not_compacted(tmp_path: Path) -> None:
    data, copy, table = tmp_path / "g", tmp_path / "gcopy", tmp_path / "table"
    fill(data, SENT[:500])
    shutil.copytree(data, copy)
    fill(data, SENT[500:], first_us=NOON_US + DAY_US)
    compact(data, str(table), everything=True)
    with pytest.raises(StorageError, match="ends at offset 500, the table has it up to 1000"):
        compact(copy, str(table), everything=True)


def test_a_copy_that_another_overtakes_while_it_compacts_is_refused(tmp_path: Path) -> None:
    data, copy, table = tmp_path / "g", tmp_path / "gcopy", tmp_path / "table"
    fill(data, SENT[:500])
    first = compact(data, str(table), everything=True)
    shutil.copytree(data, copy)
    fill(copy, SENT[500:600], first_us=NOON_US + DAY_US)
    compact(copy, everything=True)
    fill(data, SENT[500:], first_us=NOON_US + 2 * DAY_US)
    with pytest.raises(StorageError, match="another copy of the store"):
        first.run()
