"""An owned shard of a cluster against a local file with a sync: commits a second, and this process's CPU a message;
and three brokers of a cluster, beside the single broker and Mosquitto.

The database is a primary with a synchronous standby, both of which sync, started for it; or that whose address is in
BENCH_POSTGRES, such as `postgresql://user@127.0.0.1/postgres`: a schema is made there and removed.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

from everlog.base import TopicTable
from everlog.bench.cluster import binaries, measure_brokers, synchronous_pair
from everlog.bench.commitlog_suite import messages, opened, place
from everlog.bench.measurement import Row
from everlog.cluster import ClusterDatabase, ClusterLog, ClusterSettings, make_message_tables
from everlog.commitlog import ShardLog, wall_clock_us
from everlog.tiering import Database, MemoryBucket

SECONDS = 1.0
ROUNDS = 3  # each kind in turn, so that what else runs on the machine hits both
_SETTINGS = ClusterSettings(tail_bytes=1 << 30)


def run() -> list[Row]:
    """Return the figures of both, measured in turn."""
    url = os.environ.get("BENCH_POSTGRES")
    if url:
        return measure(url)
    if binaries() is None:
        return [("cluster", 0.0, "", "install PostgreSQL, or set BENCH_POSTGRES to the address of one")]
    with synchronous_pair() as own:
        return measure(own)


def measure(url: str) -> list[Row]:
    """Return the figures with that database."""
    rows = []
    for run_size, topics in ((1, 1), (10, 10), (1000, 1), (1000, 1000)):
        best: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for kind, place_of in (("file, fsync", local), ("PostgreSQL", lambda act: in_cluster(url, act))):
                found = place_of(partial(committed, run_size=run_size, topics=topics))
                before = best.get(kind, (0.0, float("inf")))
                best[kind] = (max(before[0], found[0]), min(before[1], found[1]))
        for kind, (commits, cpu_us) in best.items():
            what = f"{run_size} messages, {topics} topics a commit: {kind}"
            rows.append((what, commits, "commits/s", "one at a time"))
            rows.append((what, cpu_us, "µs CPU a message", "this process, without the database's"))
    return rows + measure_brokers(url)


def committed(log: ShardLog, run_size: int, topics: int) -> tuple[float, float]:
    """Return commits a second and CPU µs a message of runs that are each waited for."""
    table = TopicTable()
    columns = messages(run_size, table, topics=topics)
    count = 0
    cpu, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < SECONDS / ROUNDS:
        log.append(columns, 0, run_size, wall_clock_us(), table)
        log.wait_committed(log.end, 30)
        count += 1
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu
    return count / taken, 1e6 * cpu / (count * run_size)


def local(act: Callable[[ShardLog], tuple[float, float]]) -> tuple[float, float]:
    """Do something with a log in local files."""
    with place() as path:
        log = opened(path, "fsync")
        try:
            log.on_commit = lambda log, committed: None  # so that its own thread commits, as in a broker under load
            return act(log)
        finally:
            log.close()


def in_cluster(url: str, act: Callable[[ShardLog], tuple[float, float]]) -> tuple[float, float]:
    """Do something with an owned shard."""
    database = ClusterDatabase(url, f"bench_{os.getpid()}")
    make_message_tables(url, 1, database.schema)
    with tempfile.TemporaryDirectory(prefix="everlog-bench-cluster-") as path:
        log = ClusterLog.join(path, database, MemoryBucket(), _SETTINGS)
        try:
            log.own({0: 1}, 1)
            return act(log.shards[0])
        finally:
            log.close()
            connection = Database(url, database.schema)
            connection.transact(lambda cursor: cursor.execute(_drop(database.schema)))
            connection.close()


def _drop(schema: str) -> bytes:
    return f"set local client_min_messages = error; drop schema {schema} cascade".encode()
