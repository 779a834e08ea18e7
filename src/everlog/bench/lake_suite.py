"""What compaction writes a second, on two cores of this machine, what the cold tier reads back, and what a topic costs.

Compaction is timed from the plan to the commit, in a session whose workers are warm, as `--follow` has them; each
figure is the best of several runs, every one into a new table. The driver has 1 GB. Payloads are JSON readings.
"""

import random
from time import perf_counter
from typing import TYPE_CHECKING

from everlog.bench.measurement import Row
from everlog.bench.one_topic import one_topic_rows
from everlog.bench.spark_suite import NOT_MEASURED, RUN, TOPICS, bench_session, fill, is_installed, record_count
from everlog.bench.store_suite import PAYLOAD_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 100  # with different payloads; they are used in turn
ROUNDS = 3
STEP_RECORDS = 10_000
STEP_BYTES = 4 << 20


def run() -> list[Row]:
    """Return all rows in about three minutes; interpreted, with a hundredth of the records."""
    if not is_installed():
        return NOT_MEASURED
    records = record_count()
    with bench_session() as (spark, where):
        chance = random.Random(2)
        payloads = [b"".join(_reading(chance) for _ in range(RUN)) for _ in range(min(RUNS, records // RUN))]
        fill(f"{where}/data", records, TOPICS, payloads)
        compacted = compact_rows(spark, where, records)
        return [*compacted, *cold_rows(f"{where}/snappy-1"), *one_topic_rows(f"{where}/data", TOPICS)]


def _reading(chance: random.Random) -> bytes:
    """Return a payload of 100 bytes as a sensor may send it."""
    value, battery, number = chance.uniform(-20, 40), chance.randrange(100), chance.getrandbits(64)
    text = f'{{"value":{value:.4f},"battery":{battery},"id":"{number:016x}","unit":"celsius","state":"in service"}}'
    return text.encode().ljust(PAYLOAD_BYTES)[:PAYLOAD_BYTES]


def compact_rows(spark: "SparkSession", where: str, records: int) -> list[Row]:
    """Measure compaction with both codecs."""
    from everlog.spark import CODECS, Compaction, CompactionOptions, OnSpark, locate

    rows: list[Row] = []
    for codec in reversed(CODECS):
        best, cpu, size = 0.0, float("inf"), 0
        for number in range(ROUNDS + 1):
            options = CompactionOptions(codec=codec, everything=True)
            made = Compaction(f"{where}/data", locate(f"{where}/{codec}-{number}"), OnSpark(spark), options)
            began = perf_counter()
            summary = made.run()
            rate = summary.rows / (perf_counter() - began)
            if number:  # the first warms the workers
                best, cpu, size = max(best, rate), min(cpu, summary.cpu_seconds), summary.file_bytes
        note = f"{records:,} records of {PAYLOAD_BYTES} bytes, {TOPICS:,} topics, local[2]"
        rows.append((f"compaction, {codec}", best, "rows/s", f"{note}, {size / records:.0f} bytes a row"))
        rows.append((f"compaction, {codec}, by CPU", records / cpu, "rows/s CPU", "of the tasks; two run at once"))
    return rows


def cold_rows(table: str) -> list[Row]:
    """Measure reading the table back as records in one thread."""
    from everlog.spark import LakeStore, locate
    from everlog.topics import parse_filter

    rows: list[Row] = []
    for text in (None, "a/b/c/#"):
        cold = LakeStore(locate(table))
        offset, found, began = 0, 0, perf_counter()
        filters = None if text is None else [parse_filter(text)]
        while offset < cold.end(0):
            result = cold.read(0, offset, filters, STEP_RECORDS, STEP_BYTES)
            found += result.count
            offset = result.positions[0]
        spent = perf_counter() - began
        name = "cold read, all" if text is None else f"cold read, {text}"
        rows.append((name, found / spent, "records/s", f"{found:,} records in {spent:.2f} s, from snappy"))
    return rows
