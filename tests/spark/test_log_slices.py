"""The log read from its files alone: what a snapshot pins, how it is split, and that slices give every row once."""

import pickle
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from tests.spark.frames import drop_log
from tests.spark.in_process import close_stores
from tests.spark.lake_data import NOON_US, damage, fill, messages, publishers_of, told

from everlog.base import MessageColumns, StorageError, TopicTable, Unavailable, UsageError
from everlog.commitlog import LogSettings
from everlog.mqtt import Decoder, Publish, encode
from everlog.spark import COLUMNS, SCHEMA, ReadReport, Slice, pack, plan, read_slice, take_snapshot
from everlog.spark.frame_plan import plan_frame
from everlog.spark.snapshot import snapshot_of
from everlog.spark.source_options import SourceOptions
from everlog.spark.store_cache import open_fresh
from everlog.store import LogStore, TopicClasses
from everlog.topics import matches, parse_filter

SHARDS = pytest.mark.parametrize("shards", [1, 4])


def read(where: Path, columns: Sequence[str] | None = COLUMNS, topics: Sequence[str] | None = None) -> pa.Table:
    """All rows of a store, checked by Arrow, in the order of time."""
    return read_slices(plan(take_snapshot(str(where)), tasks=5), columns, topics)


def read_slices(
    slices: Sequence[Slice],
    columns: Sequence[str] | None = COLUMNS,
    topics: Sequence[str] | None = None,
    **more: Any,
) -> pa.Table:
    batches = [batch for piece in slices for batch in read_slice(piece, columns, topics, **more)]
    table = pa.Table.from_batches(batches, schema=None if batches else SCHEMA)
    table.validate(full=True)
    return table


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table in the order they were sent, which the payload tells, without their places in the log."""
    rows = table.to_pylist()
    rows.sort(key=lambda row: int(row["payload"].split(b":")[0]))
    return [{name: value for name, value in row.items() if name in told(messages(1))[0]} for row in rows]


@SHARDS
def test_every_row_is_read_once_with_all_its_columns(tmp_path: Path, shards: int) -> None:
    sent = messages(3000)
    fill(tmp_path, sent, shards=shards)
    table = read(tmp_path)
    assert table.schema.equals(SCHEMA)
    assert plain(table) == told(sent)
    for shard in range(shards):
        offsets = table.filter(pa.compute.equal(table["shard"], shard))["offset"].to_pylist()
        assert offsets == list(range(len(offsets)))
    times = sorted(table["timestamp"].cast(pa.int64()).to_pylist())
    assert times == [NOON_US + 1_000 * (n // 50) for n in range(3000)]


def test_properties_are_the_bytes_that_were_sent(tmp_path: Path) -> None:
    sent = messages(200)
    fill(tmp_path, sent, run=1)
    rows = read(tmp_path, ["properties", "payload"]).to_pylist()
    store = LogStore.open(str(tmp_path), writable=False)
    kept = [row for records in store.shards[0].read(0, 1 << 30) for row in records.rows()]
    store.close()
    assert [(row["properties"], row["payload"]) for row in rows][: len(kept)] == [
        (properties or None, payload) for _, _, _, _, properties, payload in kept
    ]


@SHARDS
@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("texts", [["site/1/#"], ["+/+/temp/+", "site/2/+/s2"], ["site/3/état/s11"], ["nope"], ["#"]])
def test_a_filter_finds_what_matches(tmp_path: Path, shards: int, seal: bool, texts: list[str]) -> None:
    sent = messages(1500)
    fill(tmp_path, sent, shards=shards, seal=seal)
    filters = [parse_filter(text) for text in texts]
    expected = [one for one in sent if any(matches(flt, one.topic) for flt in filters)]
    assert plain(read(tmp_path, topics=texts)) == told(expected)


def test_only_the_asked_columns_are_made(tmp_path: Path) -> None:
    fill(tmp_path, messages(100))
    assert read(tmp_path, ["payload", "offset"]).column_names == ["payload", "offset"]
    with pytest.raises(UsageError, match="no column is called topics"):
        read(tmp_path, ["topics"])
    with pytest.raises(UsageError, match="named twice"):
        read(tmp_path, ["topic", "topic"])


def test_batches_have_the_rows_they_should_and_end_with_their_slice(tmp_path: Path) -> None:
    fill(tmp_path, messages(1000), run=7)
    (piece,) = plan(take_snapshot(str(tmp_path)), tasks=1)[:1]
    cut = Slice(piece.path, 0, piece.identity, 13, 97, piece.size_bytes, piece.segments)
    sizes = [batch.num_rows for batch in read_slice(cut, ["offset"], batch_rows=32)]
    assert sizes == [32, 32, 20]
    assert read_slices([cut])["offset"].to_pylist() == list(range(13, 97))


def test_a_slice_with_a_filter_ends_where_it_should(tmp_path: Path) -> None:
    sent = messages(1000)
    fill(tmp_path, sent, segment_bytes=1 << 20)
    snapshot = take_snapshot(str(tmp_path))
    (segment,) = snapshot.shards[0].segments
    for topics in (["site/1/#"], ["site/1/temp/s9"]):
        cut = Slice(snapshot.path, 0, snapshot.shards[0].identity, 100, 700, 1, (segment,))
        expected = [n for n in range(100, 700) if matches(parse_filter(topics[0]), sent[n].topic)]
        assert read_slices([cut], ["offset"], topics)["offset"].to_pylist() == expected


@SHARDS
def test_slices_cover_a_snapshot_without_gap_or_overlap(tmp_path: Path, shards: int) -> None:
    fill(tmp_path, messages(2000), shards=shards)
    snapshot = take_snapshot(str(tmp_path))
    for tasks in (1, 3, 50):
        slices = plan(snapshot, tasks=tasks)
        for shard in snapshot.shards:
            ranges = [(piece.start, piece.stop) for piece in slices if piece.shard == shard.shard]
            assert ranges[0][0] == shard.start
            assert ranges[-1][1] == shard.end
            assert all(before[1] == after[0] for before, after in pairwise(ranges))
        assert [piece for group in pack(slices, 10_000) for piece in group] == slices


def test_large_segments_are_split_and_small_ones_share_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.spark.snapshot.SMALLEST_BYTES", 1)
    fill(tmp_path, messages(4000), segment_bytes=100_000)
    snapshot = take_snapshot(str(tmp_path))
    sealed = [segment for segment in snapshot.shards[0].segments if segment.sealed]
    assert len(sealed) > 2
    slices = plan(snapshot, tasks=40)
    assert len(slices) > len(snapshot.shards[0].segments)
    assert len(pack(slices, sum(piece.size_bytes for piece in slices) // 3)) == 3
    assert pack([], 5) == []


def test_a_part_of_a_snapshot_can_be_planned(tmp_path: Path) -> None:
    fill(tmp_path, messages(2000), shards=4)
    snapshot = take_snapshot(str(tmp_path))
    rows = read_slices(plan(snapshot, ranges={1: (5, 9), 3: (0, 2)}), ["shard", "offset"]).to_pylist()
    assert [(row["shard"], row["offset"]) for row in rows] == [(1, 5), (1, 6), (1, 7), (1, 8), (3, 0), (3, 1)]
    with pytest.raises(UsageError, match="no offsets"):
        plan(snapshot, ranges={0: (0, snapshot.shards[0].end + 1)})


def test_snapshots_and_slices_travel(tmp_path: Path) -> None:
    fill(tmp_path, messages(100))
    snapshot = take_snapshot(str(tmp_path))
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    slices = plan(snapshot)
    assert pickle.loads(pickle.dumps(slices)) == slices
    assert hash(snapshot) == hash(pickle.loads(pickle.dumps(snapshot)))


def test_a_store_keeps_its_identity_when_it_is_moved_and_no_other_has_it(tmp_path: Path) -> None:
    fill(tmp_path / "a", messages(10))
    fill(tmp_path / "b", messages(10))
    before = take_snapshot(str(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "c")
    after = take_snapshot(str(tmp_path / "c"))
    assert before.identity == after.identity != take_snapshot(str(tmp_path / "b")).identity
    (tmp_path / "c/shard-0/mark").unlink()
    assert take_snapshot(str(tmp_path / "c")).identity == before.identity


def test_an_empty_store_and_an_empty_shard_have_no_rows(tmp_path: Path) -> None:
    LogStore.open(str(tmp_path / "a"), shards=2, background=False).close()
    snapshot = take_snapshot(str(tmp_path / "a"))
    assert snapshot.records == 0
    assert plan(snapshot) == []
    fill(tmp_path / "b", [one for one in messages(50) if one.topic == "site/1/temp/s9"], shards=4)
    assert len([shard for shard in take_snapshot(str(tmp_path / "b")).shards if shard.end]) == 1
    assert read(tmp_path / "b").num_rows > 0


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no store"):
        take_snapshot(str(tmp_path))


class Writing:
    """A store that is being written to."""

    def __init__(self, where: Path, **settings: Any) -> None:
        self.store = LogStore.open(str(where), LogSettings(durability="flush", **settings), background=False)
        (self.log,) = self.store.shards
        self.table = TopicTable()

    def append(self, sent: Sequence[Publish], commit: bool = True, now_us: int = NOON_US) -> None:
        decoder = Decoder(MessageColumns(len(sent)), self.table, max_aliases=0, version=5)
        (run,) = decoder.feed(b"".join(encode(one, 5) for one in sent))
        self.store.append(run.columns, run.start, run.stop, now_us, self.table, publisher=publishers_of(sent))
        if commit:
            self.log.commit_step()


def test_beside_a_writer_only_what_is_committed_is_there(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    sent = messages(300)
    writing.append(sent[:100])
    writing.append(sent[100:200], commit=False)
    assert plain(read(tmp_path)) == told(sent[:100])
    writing.append(sent[200:])
    assert plain(read(tmp_path)) == told(sent)
    writing.store.close()


def test_a_snapshot_stays_what_it_is_while_its_segment_grows_is_sealed_and_merged(tmp_path: Path) -> None:
    writing = Writing(tmp_path, segment_bytes=20_000, merge_below=1000)
    sent = messages(2000)
    for one in sent[:60]:
        writing.append([one])
    slices = plan(take_snapshot(str(tmp_path)))
    assert not slices[-1].segments[-1].sealed
    before = read_slices(slices)
    for start in range(60, 2000, 5):
        writing.append(sent[start : start + 5])
    while writing.log.seal_step():
        pass
    assert take_snapshot(str(tmp_path)).shards[0].segments[0].sealed
    assert read_slices(slices).equals(before)
    assert plain(before) == told(sent[:60])
    writing.store.close()


def test_a_segment_that_is_sealed_while_it_is_planned_is_read_once(tmp_path: Path) -> None:
    writing = Writing(tmp_path, segment_bytes=20_000, merge_below=1000)
    sent = messages(1000)
    for start in range(0, 1000, 5):
        writing.append(sent[start : start + 5])
    reading = LogStore.open(str(tmp_path), writable=False)
    while writing.log.seal_step():
        pass
    snapshot = snapshot_of(reading, str(tmp_path))  # of what was listed before the seal
    reading.close()
    assert plain(read_slices(plan(snapshot))) == told(sent)
    writing.store.close()


def test_retention_while_reading_is_an_error_that_names_what_is_gone(tmp_path: Path) -> None:
    writing = Writing(tmp_path, segment_bytes=20_000, retention_bytes=30_000)
    sent = messages(1000)
    for start in range(0, 1000, 20):
        writing.append(sent[start : start + 20])
    slices = plan(take_snapshot(str(tmp_path)), tasks=1)
    assert len(slices) > 1
    writing.log.run_retention(NOON_US)
    with pytest.raises(Unavailable, match=f"retention removed offsets 0 to {slices[0].stop - 1} of shard 0"):
        read_slices(slices)
    with pytest.raises(Unavailable, match="retention removed"):
        read_slices(slices, ["offset"], ["site/1/#"])
    assert read_slices(slices[-1:]).num_rows > 0
    writing.store.close()


@pytest.mark.parametrize("topics", [None, ["site/1/#"], ["site/1/temp/s9"]])
def test_what_retention_takes_from_a_store_that_a_worker_has_open_is_no_silent_gap(
    tmp_path: Path, topics: list[str] | None
) -> None:
    fill(tmp_path, messages(2000))
    slices = plan(take_snapshot(str(tmp_path)), tasks=4)
    want = [read_slices([piece], ["offset"], topics).num_rows for piece in slices]
    close_stores()
    open_fresh(str(tmp_path))  # knows all segments, and has none of them open
    read_slices(slices[:1], ["offset"], topics)
    drop_log(tmp_path)
    for piece, count in zip(slices, want, strict=True):
        report = ReadReport()
        found = sum(batch.num_rows for batch in read_slice(piece, ["offset"], topics, on_lost="skip", report=report))
        assert (found, report.removed) in {(count, 0), (0, piece.stop - piece.start)}
        if report.removed:
            with pytest.raises(Unavailable, match="retention removed offsets"):
                read_slices([piece], ["offset"], topics)


def test_short_lived_topics_that_were_emptied_are_no_rows_and_no_loss(tmp_path: Path) -> None:
    store = LogStore.open(
        str(tmp_path),
        LogSettings(durability="flush", segment_bytes=20_000, thin_percent=0),
        classes=TopicClasses([("site/1/#", 1)]),
        background=False,
    )
    writing = Writing.__new__(Writing)
    writing.store, (writing.log,), writing.table = store, store.shards, TopicTable()
    sent = messages(1000)
    for start in range(0, 1000, 20):
        writing.append(sent[start : start + 20])
    while writing.log.seal_step():
        pass
    slices = plan(take_snapshot(str(tmp_path)), tasks=5)
    end = [one for one in writing.log.segments() if one.sealed][-1].end_offset
    short = parse_filter("site/1/#")
    assert store.thin(NOON_US + 10)
    left = [one for number, one in enumerate(sent) if number >= end or not matches(short, one.topic)]
    assert len(left) < len(sent)
    report = ReadReport()
    assert plain(read_slices(slices, on_damage="fail", report=report)) == told(left), "planned before, read after"
    assert plain(read(tmp_path)) == told(left)
    assert plain(read(tmp_path, COLUMNS, ["site/1/#", "site/2/#"])) == [
        row for row in told(left) if row["topic"].split("/")[:2] in (["site", "1"], ["site", "2"])
    ]
    assert (report.rows, report.lost, report.removed) == (len(left), 0, 0)
    store.close()


def test_another_store_in_the_same_place_is_not_read(tmp_path: Path) -> None:
    fill(tmp_path / "a", messages(100))
    slices = plan(take_snapshot(str(tmp_path / "a")))
    assert read_slices(slices).num_rows == 100
    (tmp_path / "a").rename(tmp_path / "gone")
    with pytest.raises(Unavailable, match="holds no store any more"):
        read_slices(slices)
    fill(tmp_path / "a", messages(100))
    with pytest.raises(StorageError, match="is another one than when the frame was loaded"):
        read_slices(slices)


@pytest.mark.parametrize("topics", [None, ["site/#"], ["site/1/#"], ["site/1/temp/s9"]])
def test_a_damaged_batch_is_reported_and_the_rest_is_read(tmp_path: Path, topics: list[str] | None) -> None:
    sent = messages(1000)
    fill(tmp_path, sent, segment_bytes=40_000)
    segment = sorted((tmp_path / "shard-0").glob("*.log"))[1]
    view = take_snapshot(str(tmp_path)).shards[0].segments[1]
    damage(segment, view.size_bytes // 2)
    report = ReadReport()
    slices = plan(take_snapshot(str(tmp_path)))
    found = read_slices(slices, ["offset"], topics, on_damage="skip", report=report)["offset"].to_pylist()
    flt = parse_filter(topics[0]) if topics else None
    wanted = [n for n, one in enumerate(sent) if flt is None or matches(flt, one.topic)]
    if topics not in (None, ["site/#"]) and not report.damage:  # rows by their lists: the bad one is no such row
        assert found == wanted
        return
    (broken,) = report.damage
    assert broken.path == str(segment)
    assert 0 < broken.position < view.size_bytes
    assert report.lost == broken.to_offset - broken.from_offset > 0
    assert found == [n for n in wanted if not broken.from_offset <= n < broken.to_offset]
    assert report.rows == len(found)


def test_damage_is_an_error_unless_it_is_to_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, messages(500))
    damage(sorted((tmp_path / "shard-0").glob("*.log"))[0], 5_000)
    slices = plan(take_snapshot(str(tmp_path)))
    read_slices(slices, on_damage="skip")
    assert "left out of what is read" in caplog.text
    with pytest.raises(StorageError, match=r"at byte \d+: .*offsets \d+ to \d+ are not readable"):
        read_slices(slices)


def test_a_damaged_side_file_costs_time_and_no_rows(tmp_path: Path) -> None:
    sent = messages(1000)
    fill(tmp_path, sent)
    for side in (tmp_path / "shard-0").glob("*.idx"):
        damage(side, 600)
    assert plain(read(tmp_path)) == told(sent)
    assert read(tmp_path, ["offset"], ["site/1/#"]).num_rows == sum(one.topic.startswith("site/1/") for one in sent)


def reversioned(data: bytes, at: int, check_at: int) -> bytes:
    """A header with a version from the future, its check right."""
    head = bytearray(data[:check_at])
    struct.pack_into("<H", head, at, 99)
    return bytes(head) + struct.pack("<I", crc32c.crc32c(head)) + data[check_at + 4 :]


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, messages(100))
    about = (tmp_path / "store").read_bytes()
    (tmp_path / "store").write_bytes(reversioned(about, 4, 20))
    with pytest.raises(StorageError, match=r"store version 99 is not known.*newer Everlog"):
        take_snapshot(str(tmp_path))


def test_a_segment_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, messages(1000))
    segment = sorted((tmp_path / "shard-0").glob("*.log"))[0]
    data = segment.read_bytes()
    head = reversioned(data[:64], 4, 60)
    segment.write_bytes(head + head + data[128:])
    with pytest.raises(StorageError, match=r"version 99 is not known"):
        read(tmp_path)


def test_a_mark_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, messages(100))
    mark = tmp_path / "shard-0/mark"
    mark.write_bytes(reversioned(mark.read_bytes(), 4, 68))
    with pytest.raises(StorageError, match="mark version 99 is not known"):
        take_snapshot(str(tmp_path))


def test_a_side_file_of_a_newer_version_is_not_needed(tmp_path: Path) -> None:
    sent = messages(1000)
    fill(tmp_path, sent)
    for side in (tmp_path / "shard-0").glob("*.idx"):
        side.write_bytes(reversioned(side.read_bytes(), 4, 508))
    assert plain(read(tmp_path)) == told(sent)


def test_values_too_large_for_a_column_come_as_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from everlog.spark import arrow_batch

    sent = messages(100)
    fill(tmp_path, sent)
    usual = arrow_batch.payload_column

    def narrow(pieces: Any) -> Any:
        if arrow_batch.count_rows(pieces) > 7:
            raise OverflowError
        return usual(pieces)

    monkeypatch.setattr(arrow_batch, "payload_column", narrow)
    batches = [batch for piece in plan(take_snapshot(str(tmp_path))) for batch in read_slice(piece)]
    assert all(batch.num_rows <= 7 for batch in batches)
    assert plain(pa.Table.from_batches(batches)) == told(sent)


def test_a_plan_leaves_out_what_a_filter_can_not_find(tmp_path: Path) -> None:
    early = [one for one in messages(2000) if one.topic.startswith("site/1/")]
    late = [one for one in messages(2000) if one.topic.startswith("site/2/")]
    fill(tmp_path, [*early, *late])
    found = plan_frame(SourceOptions(str(tmp_path)), NOON_US)
    everything = found.slices(8)
    some = found.slices(8, ["site/1/#"])
    assert 0 < len(some) < len(everything)
    assert some[0].start == 0
    rare = found.slices(8, ["site/1/temp/s9"])
    assert sum(piece.size_bytes for piece in rare) < sum(piece.size_bytes for piece in some) / 2
    assert plain(read_slices(some, topics=["site/1/#"])) == sorted(
        told(early), key=lambda row: int(row["payload"].split(b":")[0])
    )
    assert not [piece for piece in found.slices(8, ["nope"]) if piece.segments[0].sealed]
