"""What Spark reads a second from the log itself, and from the compacted table beside it, on two cores of this machine.

Each figure is the best of several runs in one session, as other programs can only slow it down; those of the first
seconds, in which Python's workers start and Java compiles, are not counted. Compaction takes turns with its codecs.
The driver has 1 GB. Rates are by the clock: beside each stands the CPU time of Spark and its workers, and what else
ran, in percent of one CPU; where that is not near 0, go by CPU.
"""

import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from everlog import _kernels
from everlog.base import TopicTable
from everlog.bench.load.usage import sample
from everlog.bench.measurement import Found, Row
from everlog.bench.store_suite import PAYLOAD_BYTES, columns_of, topic_names
from everlog.commitlog import LogSettings
from everlog.store import LogStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 10_000_000
TOPICS = 10_000
RUN = 5_000
ROUNDS = 4
WARM_UP_S = 5.0
Codec = Literal["snappy", "zstd"]
COMPACTIONS: tuple[Codec, ...] = ("snappy", "snappy", "zstd", "zstd", "snappy")  # the first is not counted
FILTER = "a/b/c/#"  # 1% of the topics
NOT_MEASURED: list[Row] = [("not measured", 0, "", "pip install 'everlog[spark]'")]


def run() -> list[Row]:
    """Return all rows in about four minutes; interpreted, with a hundredth of the records."""
    if not is_installed():
        return NOT_MEASURED
    records = record_count()
    with bench_session() as (spark, where):
        fill(f"{where}/data", records, TOPICS)
        rows = read_rows(spark, f"{where}/data", records)
        return [*rows, *table_rows(spark, f"{where}/data", f"{where}/table", records)]


def is_installed() -> bool:
    """Return whether Spark and Delta tables can be used here."""
    return find_spec("pyspark") is not None and find_spec("deltalake") is not None


def record_count() -> int:
    """Return how many records to measure with: a hundredth when the kernels are interpreted."""
    return RECORDS if not _kernels.interpreted() else RECORDS // 100


@contextmanager
def bench_session() -> "Iterator[tuple[SparkSession, str]]":
    """Yield a session on two cores, and a directory that is deleted afterwards."""
    from everlog.spark import spark_session

    with tempfile.TemporaryDirectory(prefix="everlog-bench-", ignore_cleanup_errors=True) as where:
        spark = spark_session("everlog bench", master="local[2]", settings={"spark.local.dir": f"{where}/scratch"})
        try:
            yield spark, where
        finally:
            spark.stop()


def fill(where: str, records: int, topics: int, payloads: Sequence[bytes] = ()) -> None:
    """Fill a store with records on topics in random order; all segments but the last are sealed.

    `payloads` are those of one run each and are used in turn; otherwise all runs have the same random bytes.
    """
    store = LogStore.open(where, LogSettings(durability="flush", tail_bytes=0), background=False)
    table = TopicTable()
    ids = [table.intern(name) for name in topic_names(topics)]
    chance = random.Random(2)
    columns = columns_of(RUN)
    choices = [array("I", chance.choices(ids, k=RUN)).tobytes() for _ in range(40)]
    (log,) = store.shards
    for number in range(records // RUN):
        columns.topics[:] = chance.choice(choices)
        if payloads:
            columns.source = payloads[number % len(payloads)]
        store.append(columns, 0, RUN, 1_700_000_000_000_000 + 100_000 * number, table)
        log.commit_step()
        log.seal_step()
    while log.seal_step():
        pass
    store.close()


def read_rows(spark: "SparkSession", where: str, records: int) -> list[Row]:
    """Measure the queries on the log."""

    def load(**options: str) -> "DataFrame":
        return spark.read.format("everlog").options(tier="log", **options).load(where)

    note = f"{records:,} records of {PAYLOAD_BYTES} bytes, {TOPICS:,} topics, local[2]"
    full = _best(load(), _count)
    part = _best(load(topic=FILTER), _count)
    found = load(topic=FILTER).count()
    return [
        ("count, all columns", records / full.wall_s, "rows/s", f"{note}; {full}"),
        *(
            (name, records / spent.wall_s, "rows/s", str(spent))
            for name, spent in (
                ("count, offset only", _best(load(columns="offset"), _count)),
                ("count by topic", _best(load(columns="topic"), _by_topic)),
            )
        ),
        (f"count, topic {FILTER}", 100 * part.wall_s / full.wall_s, "% of full", f"{found:,} rows; {part}"),
    ]


def table_rows(spark: "SparkSession", where: str, table: str, records: int) -> list[Row]:
    """Measure compaction, then the same queries on the table through Spark's own reader of Parquet."""
    from everlog.spark import find_lake, locate

    rows = compaction_rows(spark, where, table)
    frame = spark.read.parquet(*(f"{table}-zstd/{file.path}" for file in find_lake(locate(f"{table}-zstd")).files()))
    wanted = frame.filter("topic LIKE 'a/b/c/%'")
    full = _best(frame, _payload_bytes)
    part = _best(wanted, _payload_bytes)
    for name, spent in (
        ("table: hash of all columns", full),
        ("table: count by topic", _best(frame.select("topic"), _by_topic)),
    ):
        rows.append((name, records / spent.wall_s, "rows/s", f"zstd, Spark's Parquet reader; {spent}"))
    return [*rows, (f"table: topic {FILTER}", 100 * part.wall_s / full.wall_s, "% of full", str(part))]


def compaction_rows(spark: "SparkSession", where: str, table: str) -> list[Row]:
    """Measure compaction from the plan to the commit; the last table of each codec stays."""
    from everlog.spark import Compaction, CompactionOptions, OnSpark, locate

    best: dict[str, Row] = {}
    for number, codec in enumerate(COMPACTIONS):
        shutil.rmtree(f"{table}-{codec}", ignore_errors=True)
        Path(where, "lake.json").unlink(missing_ok=True)  # else it would not leave the last table
        options = CompactionOptions(codec=codec, everything=True)
        made = Compaction(where, locate(f"{table}-{codec}"), OnSpark(spark), options)
        summary, spent = Spent.by(made.run)
        rate = summary.rows / spent.wall_s
        if number and (codec not in best or rate > best[codec][1]):
            best[codec] = (f"compact, {codec}", rate, "rows/s", f"{summary.file_bytes >> 20} MB; {spent}")
    return list(best.values())


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a query: on the clock, of CPU in this process and its children, and of CPU elsewhere."""

    wall_s: float
    cpu_s: float
    other_s: float

    @classmethod
    def by(cls, work: Callable[[], Found]) -> "tuple[Found, Spent]":
        """Return the result of some work, and what it took."""
        before = sample([os.getpid()])
        result = work()
        after = sample([os.getpid()])
        cpu = (after.cpu_s or 0.0) - (before.cpu_s or 0.0)
        other = after.machine_cpu_s - before.machine_cpu_s - cpu
        return result, cls((after.at_ns - before.at_ns) / 1e9, cpu, max(0.0, other))

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s, CPU {self.cpu_s:.2f} s, others {100 * self.other_s / self.wall_s:.0f} %"


def _count(frame: "DataFrame") -> Any:
    """Count the rows in Spark: every column crosses from Python to it."""
    return frame.count()


def _by_topic(frame: "DataFrame") -> Any:
    return frame.groupBy("topic").count().count()


def _payload_bytes(frame: "DataFrame") -> Any:
    """Hash every column, as Spark's own reader would leave out what is not used."""
    from pyspark.sql import functions as F

    hashable = [name for name, kind in frame.dtypes if not kind.startswith("map")]
    return frame.select(F.count(F.struct(*frame.columns)), F.sum(F.hash(*hashable))).collect()


def _best(frame: "DataFrame", ask: Callable[["DataFrame"], Any]) -> Spent:
    """Return the quickest of several runs, after some that are not counted."""
    warm = perf_counter() + WARM_UP_S
    while perf_counter() < warm:
        ask(frame)
    return min((Spent.by(lambda: ask(frame))[1] for _ in range(ROUNDS)), key=lambda one: one.wall_s)
