"""Holes in the table: what retention took before it was compacted is named to whoever reads over it, nothing else."""

import logging
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.frames import compact, drop_log
from tests.spark.in_process import InProcess
from tests.spark.lake_data import DAY_US, NOON_US, fill, messages
from tests.spark.streams import SCHEMA, Offset, follow, reader

from everlog.base import MessageColumns, TopicTable, Unavailable, UsageError
from everlog.cli import main
from everlog.commitlog import LogSettings
from everlog.mqtt import Decoder, Publish, encode
from everlog.spark import EverlogSource, lost_in, name_lost, take_snapshot
from everlog.spark.lake.lake_table import Overtaken
from everlog.store import LogStore, Lost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = messages(1500)


def add(where: Path, day: int, shards: int = 1) -> None:
    fill(where, SENT, shards=shards, first_us=NOON_US + day * DAY_US)


def lose(where: Path, day: int, shards: int = 1) -> list[Lost]:
    """Have the log drop what the table does not have, and more come."""
    ends = compact(where).lake.ends(range(shards))
    add(where, day, shards)
    drop_log(where)
    starts = {shard.shard: shard.start for shard in take_snapshot(str(where)).shards}
    add(where, day + 1, shards)
    return [Lost(shard, end or 0, starts[shard]) for shard, end in ends.items()]


@pytest.fixture
def hole(tmp_path: Path) -> Lost:
    """A store with one hole in its table, far below where its log begins."""
    add(tmp_path, 0)
    (lost,) = lose(tmp_path, 1)
    assert lost.from_offset < lost.to_offset
    compact(tmp_path)
    drop_log(tmp_path)
    return lost


def at(where: Path, offset: int) -> Offset:
    return {**reader(where).initialOffset(), "shards": {"0": offset}}


def offsets(where: Path, **options: str) -> list[int]:
    """What a batch finds."""
    found = EverlogSource({"path": str(where), **options}).reader(SCHEMA)
    return sorted(
        offset
        for partition in found.partitions()
        for batch in found.read(partition)
        for offset in batch.column("offset").to_pylist()
    )


def total(where: Path) -> int:
    return take_snapshot(str(where)).shards[0].end


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "1000"}])
def test_a_stream_that_comes_to_a_hole_ends_and_names_it(tmp_path: Path, hole: Lost, limit: dict[str, str]) -> None:
    stream = reader(tmp_path, **limit)
    with pytest.raises(Unavailable, match=rf"has not read: {hole.from_offset} to {hole.to_offset - 1} of shard 0 \("):
        follow(stream, stream.initialOffset())
    inside = at(tmp_path, hole.from_offset + 7)
    with pytest.raises(Unavailable, match=rf"read: {hole.from_offset + 7} to {hole.to_offset - 1} of shard 0 \("):
        follow(stream, inside)


def test_a_stream_on_either_side_of_a_hole_misses_nothing(tmp_path: Path, hole: Lost) -> None:
    stream = reader(tmp_path)
    behind = follow(stream, at(tmp_path, hole.to_offset))
    assert [offset for batch in behind for _, offset in batch] == list(range(hole.to_offset, total(tmp_path)))
    assert len(stream.partitions(at(tmp_path, 0), at(tmp_path, hole.from_offset))) > 0


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "333"}])
def test_a_stream_that_skips_counts_every_lost_offset_once(
    tmp_path: Path, hole: Lost, limit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(tmp_path, onLost="skip", **limit)
    with caplog.at_level(logging.WARNING):
        found = [offset for batch in follow(stream, stream.initialOffset()) for _, offset in batch]
    assert found == [*range(hole.from_offset), *range(hole.to_offset, total(tmp_path))]
    counted = sum(int(str(record.args[0])) for record in caplog.records if isinstance(record.args, tuple))
    assert counted == hole.to_offset - hole.from_offset


@pytest.mark.parametrize("place", [".", "lake"])
def test_a_batch_over_a_hole_fails_unless_it_is_to_skip_it(
    tmp_path: Path, hole: Lost, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / place
    with pytest.raises(Unavailable, match=rf"are to be read: {hole.from_offset} to {hole.to_offset - 1} of shard 0 \("):
        offsets(where)
    with caplog.at_level(logging.WARNING):
        found = offsets(where, onLost="skip")
    assert found == [*range(hole.from_offset), *range(hole.to_offset, found[-1] + 1)]
    assert f"removed {hole.to_offset - hole.from_offset} offsets" in caplog.text
    assert offsets(where, to=f"0:{hole.from_offset}") == list(range(hole.from_offset))
    assert offsets(where, **{"from": f"0:{hole.to_offset}"})[0] == hole.to_offset
    with pytest.raises(UsageError, match="fail or skip"):
        offsets(where, onLost="cry")


def test_a_batch_over_what_is_neither_in_table_nor_log_fails_too(tmp_path: Path) -> None:
    add(tmp_path, 0)
    (lost,) = lose(tmp_path, 1)
    with pytest.raises(Unavailable, match=f"{lost.from_offset} to {lost.to_offset - 1} of shard 0"):
        offsets(tmp_path)
    assert lost_in({"path": str(tmp_path), "tier": "table"}) == lost_in({"path": str(tmp_path), "tier": "log"}) == []


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "100"}])
def test_a_position_below_the_log_fails_a_batch_and_a_stream_unless_it_is_to_skip(
    tmp_path: Path, limit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, 0)
    drop_log(tmp_path)
    start, end = take_snapshot(str(tmp_path)).shards[0].start, total(tmp_path)
    assert 7 < start < end
    assert offsets(tmp_path) == offsets(tmp_path, **{"from": "-9999d"}) == list(range(start, end))
    begin = {"from": "0:7"}
    with pytest.raises(Unavailable, match=rf"are to be read: 7 to {start - 1} of shard 0 \("):
        offsets(tmp_path, **begin)
    stream = reader(tmp_path, **begin, **limit)
    with pytest.raises(Unavailable, match=rf"has not read: 7 to {start - 1} of shard 0 \("):
        follow(stream, stream.initialOffset())
    stream = reader(tmp_path, onLost="skip", **begin, **limit)
    with caplog.at_level(logging.WARNING):
        assert offsets(tmp_path, onLost="skip", **begin) == list(range(start, end))
        batches = follow(stream, stream.initialOffset())
    assert [offset for batch in batches for _, offset in batch] == list(range(start, end))
    counted = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert counted == [start - 7, start - 7]


def test_a_position_below_a_tier_fails_though_another_tier_has_it(tmp_path: Path) -> None:
    add(tmp_path, 0)
    made = compact(tmp_path)
    first, *_ = made.lake.files()
    begin = {"from": "0:0"}
    shutil.copytree(tmp_path, copy := tmp_path.with_name("copy"))
    drop_log(tmp_path)
    assert offsets(tmp_path, **begin) == list(range(total(tmp_path)))
    stream = reader(tmp_path, **begin)
    assert sum(len(batch) for batch in follow(stream, stream.initialOffset())) == total(tmp_path)
    compact(copy).lake.drop([first], "retention")
    starts = {"log": take_snapshot(str(tmp_path)).shards[0].start, "table": first.last_offset + 1}
    for where, tier in ((tmp_path, "log"), (copy, "table")):
        with pytest.raises(Unavailable, match=rf"are to be read: 0 to {starts[tier] - 1} of shard 0 \("):
            offsets(where, tier=tier, **begin)
        assert offsets(where, tier=tier, onLost="skip", **begin)[0] == starts[tier]


def test_every_hole_of_every_shard_is_kept_over_merges_checkpoints_and_cleaning(tmp_path: Path) -> None:
    add(tmp_path, 0, shards=2)
    first, second = lose(tmp_path, 1, 2), lose(tmp_path, 3, 2)
    made = compact(tmp_path, merge=True)
    table = made.lake.load()
    table.create_checkpoint()
    table.cleanup_metadata()
    holes = [first[0], second[0], first[1], second[1]]
    assert made.lost() == lost_in({"path": str(tmp_path)}) == holes
    assert lost_in({"path": str(tmp_path), "shards": "1"}) == holes[2:]


def test_a_hole_below_where_the_table_begins_now_is_no_hole_in_it(tmp_path: Path, hole: Lost) -> None:
    made = compact(tmp_path)
    files = made.lake.files()
    made.lake.drop([file for file in files if file.first_offset < hole.to_offset], "retention")
    assert made.lost() == []
    assert offsets(tmp_path)[0] == hole.to_offset
    stream = reader(tmp_path)
    with pytest.raises(Unavailable, match=rf"read: 0 to {hole.to_offset - 1} of shard 0 \("):
        follow(stream, at(tmp_path, 0))


def test_a_hole_is_recorded_with_the_rows_behind_it_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, 0)
    holes = lose(tmp_path, 1)
    run = InProcess.run

    def overtaken(*args: object) -> list[object]:
        written = run(*args)  # type: ignore[arg-type]
        monkeypatch.setattr(InProcess, "run", run)
        compact(tmp_path)
        return written

    monkeypatch.setattr(InProcess, "run", overtaken)
    made = compact(tmp_path)
    assert made.lost() == holes
    with pytest.raises(Overtaken):
        made.lake.append([], {0: (0, 1)}, lost=holes)
    assert made.lost() == holes


def crash(where: Path, copy: Path, sent: list[Publish]) -> None:
    """Append to a store without syncs, and leave it as a crash does: the next start leaves offsets out."""
    store = LogStore.open(str(where), LogSettings(durability="flush", segment_bytes=20_000), background=False)
    table = TopicTable()
    for start in range(0, len(sent), 50):
        decoder = Decoder(MessageColumns(50), table, max_aliases=0, version=5)
        (found,) = decoder.feed(b"".join(encode(one, 5) for one in sent[start : start + 50]))
        store.append(found.columns, found.start, found.stop, NOON_US, table)
        store.shards[0].commit_step()
    shutil.copytree(where, copy)
    store.close()


@pytest.mark.parametrize("everything", [False, True])
def test_offsets_that_were_never_given_are_no_hole(tmp_path: Path, everything: bool) -> None:
    data = tmp_path / "data"
    crash(tmp_path / "crashed", data, SENT)
    if everything:  # up to the very end of what there was before the crash
        compact(data, everything=True)
    fill(data, SENT[:50], first_us=NOON_US + DAY_US)
    sizes = [(one.base_offset, one.end_offset) for one in take_snapshot(str(data)).shards[0].segments]
    assert any(base > 1_000_000 > end for (_, end), (base, _) in pairwise(sizes))
    compact(data)
    drop_log(data)
    assert take_snapshot(str(data)).shards[0].start > 1_000_000
    sent = len(SENT) + 50
    assert len(offsets(data)) == sent
    add(data, 2)
    made = compact(data)
    assert made.lost() == []
    sent += len(SENT)
    assert len(offsets(data)) == sent
    stream = reader(data)
    assert sum(len(batch) for batch in follow(stream, stream.initialOffset())) == sent


def test_many_holes_are_named_in_part() -> None:
    many = [Lost(0, 10 * n, 10 * n + 5) for n in range(25)]
    assert name_lost(many[:2]) == "0 to 4 of shard 0, 10 to 14 of shard 0"
    assert name_lost(many).endswith("190 to 194 of shard 0, and 5 more")


def test_commands_name_holes_and_go_on(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path, 0)
    (lost,) = lose(tmp_path, 1)
    which = f"{lost.from_offset} to {lost.to_offset - 1}"
    assert main(["spark", "compact", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"lost before it was compacted: shard 0, offsets {which}\n" in said
    assert "earlier" not in said
    assert main(["spark", "compact", str(tmp_path)]) == 0
    assert f"lost before earlier compactions, for good: {which} of shard 0\n" in capsys.readouterr().out
    assert main(["spark", "stats", str(tmp_path)]) == 0
    assert f"before it was compacted: {which} of shard 0\n" in capsys.readouterr().out
    frame = spark.read.format("everlog").load(str(tmp_path))
    with pytest.raises(Exception, match=f"are to be read: {which} of shard 0"):
        frame.count()
    whole = spark.read.format("everlog").option("onLost", "skip").load(str(tmp_path))
    assert whole.count() == total(tmp_path) - (lost.to_offset - lost.from_offset)
