"""A cluster of brokers as a table: its tail and its bucket, read without any broker's disk."""

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from tests.cluster_messages import WrittenCluster
from tests.spark.in_process import InProcess
from tests.spark.lake_data import NOON_US, messages, told
from tests.spark.streams import Gathered

from everlog.base import StorageError, UsageError
from everlog.cluster import ClusterOwnership, lift_restored
from everlog.cluster.restored import LIFT
from everlog.ownership import make_ownership_tables
from everlog.spark import (
    Compaction,
    CompactionOptions,
    EverlogSource,
    Slice,
    close_readers,
    cluster_log,
    locate,
    locate_cluster,
    read_slice,
)
from everlog.spark.frame_plan import FramePlan, plan_frame
from everlog.spark.source import EverlogReader
from everlog.spark.source_options import read_options
from everlog.topics import matches, parse_filter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = messages(2000)
STEP_US = 1_000_000


@pytest.fixture(autouse=True)
def no_connections() -> Iterator[None]:
    yield
    close_readers()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WrittenCluster]:
    with WrittenCluster(tmp_path, shards=2) as made:
        yield made


def plan(cluster: WrittenCluster, **options: str) -> FramePlan:
    return plan_frame(read_options({**cluster.options, **options}), NOON_US)


def numbers(found: FramePlan, topics: list[str] | None = None) -> list[int]:
    """The numbers of the messages in a frame's slices."""
    payloads = []
    for piece in found.slices(4, topics):
        assert isinstance(piece, Slice)
        for batch in read_slice(piece, ("payload",), topics):
            payloads += batch.column("payload").to_pylist()
    return sorted(int(payload.split(b":")[0]) for payload in payloads)


def positions(found: FramePlan) -> set[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    for piece in found.slices(4):
        assert isinstance(piece, Slice)
        for batch in read_slice(piece, ("shard", "offset")):
            rows += zip(batch.column("shard").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    assert len(set(rows)) == len(rows)
    return set(rows)


def test_bucket_and_tail_are_one_table_without_gaps(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:1200], step_us=STEP_US)
    cluster.store()
    cluster.write(SENT[1200:], first_us=NOON_US + 24 * STEP_US, step_us=STEP_US)
    found = plan(cluster)
    kinds = {(segment.sealed, shard.shard) for shard in found.snapshot.shards for segment in shard.segments}
    assert kinds == {(True, 0), (True, 1), (False, 0), (False, 1)}
    assert numbers(found) == list(range(2000))
    ends = cluster.log.committed()
    assert positions(found) == {(shard, n) for shard, end in enumerate(ends) for n in range(end)}
    wanted = parse_filter("site/1/#")
    assert numbers(found, ["site/1/#"]) == [n for n, one in enumerate(SENT) if matches(wanted, one.topic)]


def test_times_and_positions_cut_a_frame(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:1000], step_us=STEP_US)
    cluster.store()
    cluster.write(SENT[1000:], first_us=NOON_US + 20 * STEP_US, step_us=STEP_US)
    for first, last in ((3, 17), (15, 33), (25, 39), (0, 40)):  # in the bucket, over both, in the tail
        times = {"from": f"{NOON_US + first * STEP_US}us", "to": f"{NOON_US + last * STEP_US}us"}
        assert numbers(plan(cluster, **{name: _iso(text) for name, text in times.items()})) == [
            *range(50 * first, 50 * last)
        ]
    cut = plan(cluster, **{"from": "0:100,1:50", "to": "0:800,1:60"})
    assert positions(cut) == {(0, n) for n in range(100, 800)} | {(1, n) for n in range(50, 60)}
    assert positions(plan(cluster, shards="1")) == {(1, n) for n in range(cluster.log.committed()[1])}


def _iso(text: str) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(text[:-2]))).isoformat()


def test_rows_that_leave_the_tail_meanwhile_are_read_from_the_bucket(cluster: WrittenCluster) -> None:
    cluster.write(SENT)
    found = plan(cluster)
    assert not all(segment.sealed for shard in found.snapshot.shards for segment in shard.segments)
    cluster.store()
    cluster.empty_tail()
    assert numbers(found) == list(range(2000))


def test_a_gap_is_an_error_and_never_left_out(cluster: WrittenCluster) -> None:
    cluster.write(SENT)
    cluster.store()
    cluster.empty_tail()
    cluster.execute(
        "delete from message_segments where name = (select name from message_segments where shard = 0 "
        "order by base offset 1 limit 1)"
    )
    with pytest.raises(StorageError, match="neither tail nor bucket"):
        plan(cluster)


def test_the_gap_that_a_restore_leaves_is_no_hole(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:1200])
    cluster.store()
    cluster.log.close()
    lifted = lift_restored(cluster.database, pause=lambda seconds: None)
    cluster.log = cluster.join(cluster.folder)
    cluster.log.own({one.shard: one.epoch + 1 for one in lifted}, 2)
    cluster.write(SENT[1200:1600])
    cluster.store()
    cluster.write(SENT[1600:])
    found = plan(cluster)
    assert numbers(found) == list(range(2000))
    assert max(offset for _, offset in positions(found)) > LIFT


def test_many_rows_of_the_tail_go_by_objects(cluster: WrittenCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_log, "INLINE_BYTES", 1000)
    cluster.write(SENT)
    found = plan(cluster)
    assert numbers(found) == list(range(2000))
    stored = [one.name for one in cluster.bucket.find("pins")]
    assert stored
    assert all(name.startswith(f"pins/{found.snapshot.pin}/") for name in stored)


def test_a_frame_is_pinned_after_its_end_is_known(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:100])
    found = plan(cluster, pinHours="3")
    ((hours,),) = cluster.execute("select extract(epoch from until - since) / 3600 from message_pins")
    assert found.snapshot.pin
    assert round(hours) == 3


def test_tasks_know_nothing_of_the_database(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:200])
    options = {**cluster.options, "path": cluster.options["path"].replace("@", ":a-secret@")}
    source = EverlogSource(options)
    made = EverlogReader(read_options(options), plan(cluster), source.schema())  # type: ignore[arg-type]
    sent = pickle.dumps((made, made.partitions()))
    assert b"a-secret" not in sent


def test_the_tables_of_a_cluster_are_compacted_from_the_bucket(cluster: WrittenCluster, tmp_path: Path) -> None:
    cluster.write(SENT[:1500])
    cluster.store()
    place = locate_cluster(cluster.options["path"], cluster.options)
    table = locate(str(tmp_path / "lake"))
    summary = Compaction(place, table, InProcess(), CompactionOptions(group_bytes=60_000)).run()
    assert 0 < summary.rows < 1500
    cluster.write(SENT[1500:])
    everything = Compaction(place, table, InProcess(), CompactionOptions(everything=True)).run()
    assert summary.rows + everything.rows == 2000
    found = plan(cluster)
    assert found.lake is not None
    assert found.lake.ends == cluster.log.committed()
    only = plan(cluster, tier="table")
    assert sum(end - start for start, end in only.ranges.values()) == 2000
    assert numbers(plan(cluster, tier="log")) == list(range(2000))


def test_what_is_misspelt_or_missing_is_said(cluster: WrittenCluster) -> None:
    with pytest.raises(UsageError, match="where is the cluster's bucket"):
        read_options({"path": cluster.options["path"]})
    with pytest.raises(UsageError, match="says nothing about"):
        read_options({"path": "data", "bucket": "elsewhere"})
    with pytest.raises(UsageError, match="others"):
        read_options({**cluster.options, "bucket": "memory:"})


def test_spark_reads_a_cluster_with_200_tasks_and_one_connection(
    spark: "SparkSession", cluster: WrittenCluster
) -> None:
    cluster.write(SENT[:1200], step_us=STEP_US)
    cluster.store()
    cluster.write(SENT[1200:], first_us=NOON_US + 24 * STEP_US, step_us=STEP_US)
    url, role = cluster.reader_role(connections=2)
    with Beats(cluster) as beats:
        read_with_200_tasks(spark, cluster, url)
    assert beats.errors == []
    assert beats.count > 0
    ((most,),) = cluster.execute("select count(*) from pg_stat_activity where usename = %s", role)
    assert most <= 2
    assert beats.most_readers <= 2


def read_with_200_tasks(spark: "SparkSession", cluster: WrittenCluster, url: str) -> None:
    frame = spark.read.format("everlog").options(**cluster.more, tasks="200").load(url)
    cut = frame.repartition(200).select("topic", "payload")
    rows = sorted(cut.collect(), key=lambda row: int(bytes(row["payload"]).split(b":")[0]))
    assert [row["topic"] for row in rows] == [one.topic for one in SENT]
    whole = {row["shard"] for row in frame.select("shard").distinct().collect()}
    assert whole == {0, 1}
    plain = [
        {**{name: row[name] for name in told(SENT[:1])[0]}, "n": n}
        for n, row in enumerate(sorted(frame.collect(), key=lambda row: int(bytes(row["payload"]).split(b":")[0])))
    ]
    assert [row["topic"] for row in plain] == [row["topic"] for row in told(SENT)]
    assert [row["client_id"] for row in plain] == [row["client_id"] for row in told(SENT)]


class Beats:
    """A broker that beats meanwhile, each time by a connection of its own."""

    def __init__(self, cluster: WrittenCluster) -> None:
        make_ownership_tables(cluster.database.url, cluster.schema)
        self.count = self.most_readers = 0
        self.errors: list[Exception] = []
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> "Beats":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        me = 0
        while not self._stop.wait(0.05):
            try:
                ownership = ClusterOwnership(self._cluster.database)
                me = me or ownership.join("a", "a:1")
                ownership.beat(me)
                ownership.close()
                query = "select count(*) from pg_stat_activity where usename = %s"
                ((readers,),) = self._cluster.execute(query, f"reader_{self._cluster.schema}")
                self.most_readers = max(self.most_readers, readers)
                self.count += 1
            except Exception as error:  # noqa: BLE001 - the test tells
                self.errors.append(error)


def test_a_stream_of_a_cluster_has_every_row_once_across_restarts(
    spark: "SparkSession", cluster: WrittenCluster, tmp_path: Path
) -> None:
    cluster.write(SENT[:800])
    gathered = Gathered(spark, tmp_path, cluster.options["path"], **cluster.more, maxRecordsPerTrigger="200")
    rows = gathered.run()
    assert [len(batch) for _, batch in gathered.batches] == [200, 200, 200, 200]
    cluster.store()
    cluster.empty_tail()
    assert gathered.run() == []
    cluster.write(SENT[800:])
    rows += gathered.run()
    assert sorted(int(payload.split(b":")[0]) for _, _, payload in rows) == list(range(2000))
    ((pins,),) = cluster.execute("select count(*) from message_pins")
    assert pins <= 6 < len(gathered.batches)  # of runs, not of batches


def test_a_cluster_without_its_bucket_is_refused_by_spark(spark: "SparkSession", cluster: WrittenCluster) -> None:
    with pytest.raises(AnalysisException, match="where is the cluster's bucket"):
        spark.read.format("everlog").load(cluster.options["path"])
