"""What Spark reads a second from the log itself, and from the compacted table beside it, on two cores of this machine.

Each figure is the best of several runs in one session, as other programs can only slow it down; the first, which starts
Python's workers and compiles the query, is not counted. The driver has 1 GB.
"""

import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from everlog import _kernels
from everlog.base import MessageColumns, TopicTable
from everlog.bench.store import topic_names
from everlog.bench.table import Row
from everlog.commitlog import LogSettings
from everlog.store import LogStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 10_000_000
TOPICS = 10_000
PAYLOAD_BYTES = 100
RUN = 5_000
ROUNDS = 3
FILTER = "a/b/c/#"  # 1% of the topics


def run() -> list[Row]:
    """Rows of name, value, unit and note; about three minutes, interpreted a hundredth of the records."""
    if find_spec("pyspark") is None:
        return [("not measured", 0, "", "pip install 'everlog[spark]'")]
    from everlog.spark import spark_session

    records = RECORDS if not _kernels.interpreted() else RECORDS // 100
    where = tempfile.mkdtemp(prefix="everlog-bench-")
    spark = spark_session("everlog bench", master="local[2]", settings={"spark.local.dir": f"{where}/scratch"})
    try:
        fill(f"{where}/data", records, TOPICS)
        return read_rows(spark, f"{where}/data", records)
    finally:
        spark.stop()
        shutil.rmtree(where, ignore_errors=True)


def fill(where: str, records: int, topics: int) -> None:
    """A store of sealed segments, but for the last, with records on topics in random order."""
    store = LogStore.open(where, LogSettings(durability="flush", tail_bytes=0), background=False)
    table = TopicTable()
    ids = [table.intern(name) for name in topic_names(topics)]
    chance = random.Random(2)
    columns = MessageColumns(RUN)
    columns.source = os.urandom(RUN * PAYLOAD_BYTES)
    starts = array("I", range(0, RUN * PAYLOAD_BYTES, PAYLOAD_BYTES))
    columns.property_starts[:] = columns.payload_starts[:] = starts.tobytes()
    columns.payload_ends[:] = array("I", [start + PAYLOAD_BYTES for start in starts]).tobytes()
    columns.flags[:] = b"\x02" * RUN
    choices = [array("I", chance.choices(ids, k=RUN)).tobytes() for _ in range(40)]
    (log,) = store.shards
    for number in range(records // RUN):
        columns.topics[:] = chance.choice(choices)
        store.append(columns, 0, RUN, 1_700_000_000_000_000 + 100_000 * number, table)
        log.commit_step()
        log.seal_step()
    while log.seal_step():
        pass
    store.close()


def read_rows(spark: "SparkSession", where: str, records: int) -> list[Row]:
    """The queries on the log."""

    def load(**options: str) -> "DataFrame":
        return spark.read.format("everlog").options(**options).load(where)

    frames = {
        "count, all columns": load(),
        "count, offset only": load(columns="offset"),
        "count by topic": load(columns="topic"),
        f"count, topic {FILTER}": load(topic=FILTER),
    }
    note = f"{records:,} records of {PAYLOAD_BYTES} bytes, {TOPICS:,} topics, local[2]"
    spent = {}
    found = 0
    for name, frame in frames.items():
        ask = _by_topic if "by topic" in name else _count
        spent[name] = _best(partial(ask, frame))
    found = frames[f"count, topic {FILTER}"].count()
    full = spent["count, all columns"]
    rows: list[Row] = [(name, records / seconds, "rows/s", note) for name, seconds in list(spent.items())[:3]]
    part = spent[f"count, topic {FILTER}"]
    rows.append(
        (f"count, topic {FILTER}", 100 * part / full, "% of full", f"{found:,} rows, {part:.2f} of {full:.2f} s")
    )
    return rows


def _count(frame: "DataFrame") -> Any:
    """Every column crosses from Python to Spark; only `count` is done with them."""
    return frame.count()


def _by_topic(frame: "DataFrame") -> Any:
    return frame.groupBy("topic").count().count()


def _best(ask: Callable[[], Any]) -> float:
    """Seconds of the quickest of several, after one that is not counted."""
    ask()
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        ask()
        best = min(best, perf_counter() - began)
    return best
