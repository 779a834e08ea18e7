"""Retention of a cluster: dropped behind the fence, deleted when nobody can read it, copies trimmed."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_messages import WrittenCluster
from tests.spark.lake_data import messages

from everlog.base import Fenced
from everlog.cluster import ClusterRetention, LogReader, RetentionLimits, ShardHistory
from everlog.cluster.segment_list import SegmentList

SENT = messages(2000)
DAY_S = 24 * 3600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WrittenCluster]:
    with WrittenCluster(tmp_path, shards=2) as made:
        made.write(SENT)
        made.store()
        yield made


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def retention(cluster: WrittenCluster, clock: Clock, **options: object) -> ClusterRetention:
    limits = RetentionLimits(**options)  # type: ignore[arg-type]
    return ClusterRetention(cluster.log, cluster.database, cluster.bucket, limits, clock=clock)


def objects(cluster: WrittenCluster) -> set[str]:
    return {one.name for folder in ("shard-0", "shard-1", "pins") for one in cluster.bucket.find(folder)}


def listed(cluster: WrittenCluster, state: int) -> set[str]:
    return {name for (name,) in cluster.execute("select name from message_segments where state = %s", state)}


def make_older(cluster: WrittenCluster, seconds: float) -> None:
    """Have all that was stored happened earlier."""
    cluster.execute(f"update message_segments set changed = changed - interval '{seconds} seconds'")
    cluster.execute(
        f"update message_pins set since = since - interval '{seconds} seconds', "
        f"until = until - interval '{seconds} seconds'"
    )
    for path in cluster.place.rglob("*.*"):
        os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_what_is_too_old_is_dropped_then_deleted_then_forgotten(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock, age_s=3600.0)
    there = objects(cluster)
    made.step()
    assert made.trouble is None
    assert listed(cluster, 2) == set()
    make_older(cluster, 3700)
    made.step()
    gone = listed(cluster, 2)
    kept = listed(cluster, 1)
    assert len(gone) > 2
    assert len(kept) == 2  # the last one of each shard stays
    assert objects(cluster) == there  # a reader may be in them
    assert [shard.log.start for shard in cluster.log.cluster_shards] == [0, 0]
    make_older(cluster, DAY_S + 60)
    made.step()
    cluster.log.run_retention(0)
    assert objects(cluster) == there - gone | _newest_dropped(cluster)
    starts = [shard.log.start for shard in cluster.log.cluster_shards]
    assert starts == [start for (start,) in cluster.execute("select start from message_shards order by shard")]
    assert min(starts) > 0
    made.close()
    history = ShardHistory(cluster.database, cluster.bucket, 0)
    found = history.read(starts[0])
    assert found is not None
    history.close()


def _newest_dropped(cluster: WrittenCluster) -> set[str]:
    """Names of what is dropped and still there: it alone has the numbers of origins."""
    return listed(cluster, 2)


def test_size_limits_a_shard(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock, shard_bytes=50_000)
    made.step()
    sizes = cluster.execute("select shard, sum(size) from message_segments where state = 1 group by shard")
    assert all(0 < size <= 50_000 for _, size in sizes)
    assert listed(cluster, 2)
    made.close()


def test_what_must_stay_stays_and_is_told(cluster: WrittenCluster, clock: Clock) -> None:
    limits = RetentionLimits(shard_bytes=1)
    made = ClusterRetention(cluster.log, cluster.database, cluster.bucket, limits, lambda: [0, 0], clock)
    made.step()
    assert listed(cluster, 2) == set()
    assert made.held_bytes > 0
    made.close()


def test_a_pin_holds_what_was_listed_when_it_was_stored(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock, shard_bytes=1)
    reader = LogReader(cluster.database)
    pin = reader.pin("a test", 10 * DAY_S)
    cluster.bucket.put(f"pins/{pin}/rows", b"rows")
    there = objects(cluster)
    made.step()
    make_older(cluster, 2 * DAY_S)
    made.step()
    assert objects(cluster) == there
    make_older(cluster, 9 * DAY_S)
    made.step()
    assert f"pins/{pin}/rows" not in objects(cluster)
    assert len(objects(cluster)) < len(there) - 2
    assert cluster.execute("select count(*) from message_pins") == [(0,)]
    reader.close()
    made.close()


def test_objects_that_nobody_lists_go_after_a_day_and_no_others(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock)
    there = objects(cluster)
    stray = f"shard-0/{7:020d}-1-{'ab' * 8}.log"
    others = "shard-0/journal/00000000.rec"  # of a persist server that has the same bucket
    cluster.bucket.put(stray, b"of a zombie")
    cluster.bucket.put(others, b"not ours")
    made.step()
    assert stray in objects(cluster)
    make_older(cluster, DAY_S + 60)
    made.step()
    assert stray in objects(cluster)  # looked at once an hour
    clock.now += 3700
    made.accept()
    made.step()
    assert objects(cluster) == there | {others}
    made.close()


def test_nothing_goes_by_age_while_the_clock_of_the_database_has_jumped(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock, age_s=3600.0)
    made.step()
    make_older(cluster, 7200)
    clock.now -= 120  # as if the other one had jumped ahead
    made.step()
    assert listed(cluster, 2) == set()
    assert "jumped" in str(made.trouble)
    made.accept()
    made.step()
    assert listed(cluster, 2)
    made.close()


def test_an_owner_that_was_replaced_drops_nothing(cluster: WrittenCluster, clock: Clock) -> None:
    made = retention(cluster, clock, shard_bytes=1)
    cluster.execute("update message_shards set epoch = epoch + 1")
    made.step()
    assert listed(cluster, 2) == set()
    segments = SegmentList(cluster.database, 0)
    with pytest.raises(Fenced):
        segments.drop(100, 1)
    segments.close()
    made.close()
