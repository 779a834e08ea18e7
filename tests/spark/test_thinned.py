"""Segments whose short-lived topics were emptied: offsets with holes, which are no loss to anyone who reads."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.frames import compact, drop_log, kinds, planned, rows
from tests.spark.lake_data import NOON_US, cold_rows, log_rows, messages, table_rows
from tests.spark.streams import Gathered, follow, reader

from everlog.base import MessageColumns, TopicTable, Unavailable
from everlog.cli import main
from everlog.commitlog import LogSettings
from everlog.mqtt import Publish
from everlog.spark import LakeStore, Slice, locate
from everlog.spark.jobs import audit_store
from everlog.spark.lake_slices import LakeSlice
from everlog.store import LogStore, TopicClasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = 50
SHORT = "site/1/"
SETTINGS = LogSettings(durability="flush", segment_bytes=20_000, thin_percent=0)
KEPT = messages(2000)
# whole segments of nothing that is kept, but for the first ones, which retention would remove as they are
GONE = [Publish(f"{SHORT}all/s{n % 7}", b"%0200d" % n, 0) for n in range(600)]
SENT = [*GONE[:5], KEPT[0], *GONE[5:200], *KEPT[1:1000], *GONE[200:400], *KEPT[1000:], *GONE[400:]]
LEFT = [offset for offset, one in enumerate(SENT) if not one.topic.startswith(SHORT)]


def append(store: LogStore, sent: Sequence[Publish], time_us: int) -> None:
    """Messages without properties, as one commit."""
    table, columns, source = TopicTable(), MessageColumns(len(sent)), bytearray()
    for row, message in enumerate(sent):
        struct.pack_into("<I", columns.topics, 4 * row, table.intern(message.topic.encode()))
        columns.flags[row] = message.qos << 1
        for column, more in (
            (columns.property_starts, b""),
            (columns.payload_starts, b""),
            (columns.payload_ends, message.payload),
        ):
            source += more
            struct.pack_into("<I", column, 4 * row, len(source))
    columns.source = bytes(source)
    store.append(columns, 0, len(sent), time_us, table)
    for log in store.shards:
        log.commit_step()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store in which every sealed segment was emptied of the short-lived topics, which are all there were in some."""
    where = tmp_path / "data"
    store = LogStore.open(str(where), SETTINGS, classes=TopicClasses([(f"{SHORT}#", 1)]), background=False)
    for start in range(0, len(SENT), RUN):
        append(store, SENT[start : start + RUN], NOON_US + 1000 * (start // RUN))
    for _ in range(150):  # the last segment is never emptied
        append(store, [Publish("last", bytes(200), 0)], NOON_US + 200_000)
    (log,) = store.shards
    while log.seal_step():
        pass
    assert next(one.base_offset for one in log.segments() if not one.sealed) >= len(SENT)
    assert store.thin(NOON_US + 300_000)
    store.close()
    return where


def offsets(found: pa.Table) -> list[int]:
    return sorted(offset for offset in found["offset"].to_pylist() if offset < len(SENT))


def test_log_and_table_have_what_is_left_and_nothing_else(data: Path) -> None:
    log = planned(data)
    assert offsets(rows(log)) == LEFT
    before = table_rows(rows(log))
    assert not [row for row in before if row[3].startswith("$")]
    made = compact(data, merge=True)
    made.run()
    both = planned(data)
    assert kinds(both) == {Slice, LakeSlice}
    assert table_rows(rows(both)) == before
    end = made.lake.ends([0])[0]
    assert end is not None
    assert end >= len(SENT), "the end that is in the table goes behind what is empty"
    assert cold_rows(LakeStore(locate(str(data / "lake"))), 0) == log_rows(data, 0, end)
    drop_log(data)
    assert planned(data, tier="log").snapshot.shards[0].start >= len(SENT)
    assert table_rows(rows(planned(data))) == before


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "77"}, {"maxBytesPerTrigger": "10k"}])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_stream_goes_over_holes(data: Path, limit: dict[str, str], dropped: bool) -> None:
    stream = reader(data, **limit)
    if dropped:
        compact(data)
        drop_log(data)
    found = [offset for batch in follow(stream, stream.initialOffset()) for _, offset in batch]
    assert sorted(offset for offset in found if offset < len(SENT)) == LEFT


@pytest.mark.parametrize("dropped", [False, True])
def test_a_stream_that_was_stopped_before_the_emptying_goes_on_behind_it(data: Path, dropped: bool) -> None:
    """Its checkpoint names offsets that are empty now, in the log or in the table that was made of it."""
    if dropped:
        compact(data)
        drop_log(data)
    stream = reader(data)
    start = stream.initialOffset()
    for offset in (0, 100, 250, 1250, 2500):
        at = {**start, "shards": {"0": offset}}
        found = [one for batch in follow(stream, at) for _, one in batch]
        assert [one for one in sorted(found) if one < len(SENT)] == [one for one in LEFT if one >= offset]


def test_what_the_table_dropped_is_a_loss_though_it_begins_with_a_hole(data: Path) -> None:
    made = compact(data)
    drop_log(data)
    first, second = made.lake.files()[:2]
    assert LakeStore(made.lake.location).start(0) == 0 < first.first_offset
    made.lake.drop([first], "retention")
    assert LakeStore(made.lake.location).start(0) == second.first_offset
    stream = reader(data)
    at = {**stream.initialOffset(), "shards": {"0": 0}}
    with pytest.raises(Unavailable, match=f"has not read: 0 to {second.first_offset - 1} of shard 0"):
        follow(stream, at)


def test_spark_streams_and_counts_what_is_left(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    frame = spark.read.format("everlog").load(str(data))
    assert frame.filter(frame["offset"] < len(SENT)).count() == len(LEFT)
    assert frame.filter(frame["topic"].startswith(SHORT)).count() == 0
    got = Gathered(spark, tmp_path, data, maxRecordsPerTrigger="300").run()
    assert sorted(offset for _, offset, _ in got if offset < len(SENT)) == LEFT


def test_an_audit_counts_what_was_emptied_and_not_as_missing(
    spark: "SparkSession", data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emptied = len(SENT) - len(LEFT) - LEFT[0]  # what lies before the first record is no hole
    for _ in range(2):  # of the log alone, and of log and table
        (shard,) = audit_store(spark.read.format("everlog").load(str(data)))
        assert shard.is_good
        assert (shard.first, shard.emptied, shard.records) == (LEFT[0], emptied, len(LEFT) + 150)
        compact(data)
    assert main(["spark", "audit", str(data)]) == 0
    assert f"{emptied:,} emptied offsets" in capsys.readouterr().out


def test_an_audit_tells_holes_from_what_was_emptied(spark: "SparkSession", data: Path) -> None:
    lost = LEFT[700:703]
    messages = spark.read.format("everlog").load(str(data))
    (shard,) = audit_store(messages.where(f"offset not between {lost[0]} and {lost[-1]}"))
    assert [one for low, high in shard.missing_ranges for one in range(low, high + 1)] == lost
    assert shard.emptied == len(SENT) - len(LEFT) - LEFT[0]


def test_an_audit_of_a_part_counts_what_was_emptied_in_it(spark: "SparkSession", data: Path) -> None:
    first, last = LEFT[10], LEFT[1000]
    messages = spark.read.format("everlog").option("from", f"0:{first}").option("to", f"0:{last + 1}").load(str(data))
    (shard,) = audit_store(messages)
    assert shard.is_good
    assert (shard.records, shard.emptied) == (991, last - first + 1 - 991)


def test_a_record_that_the_table_had_before_it_was_emptied_is_there_once(spark: "SparkSession", data: Path) -> None:
    messages = spark.read.format("everlog").load(str(data))
    kept = messages.select("shard", "offset", "timestamp")
    emptied = [offset for offset in range(LEFT[0], len(SENT)) if offset not in set(LEFT)]
    (whole,) = audit_store(kept)
    again = kept.where(f"offset = {LEFT[0]}").selectExpr("shard", f"{emptied[0]}L AS offset", "timestamp")
    (shard,) = audit_store(kept.union(again))
    assert (shard.duplicated, shard.missing) == (0, 0)
    assert (shard.emptied, shard.records) == (whole.emptied - 1, whole.records + 1)
