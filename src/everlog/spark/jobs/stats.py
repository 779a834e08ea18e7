"""`everlog spark stats`: rates, sizes, gaps and silence, by topic or shape; who talks most, and when.

Messages are scanned once, into one row for each topic and slice of time; all else works on those. Silence between two
messages in different slices is exact; within one slice it is not looked for, and is shorter than the slice.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from everlog.spark.jobs.history_summary import moment

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, Row

SECOND_US = 1_000_000
SLICES = (1, 10, 60, 600, 3600)  # seconds; each is a part of an hour
MANY_SLICES = 500  # of a history: with more, slices are longer, up to an hour
SILENT = 3  # times its longest gap, and SILENT_MEANS times its mean one: a topic that is quiet for longer is silent
SILENT_MEANS = 10


@dataclass(frozen=True, slots=True)
class KeyStats:
    """A topic, shape or group of topics in numbers."""

    key: str
    topics: int
    messages: int
    bytes: int
    smallest: int
    largest: int
    first: datetime
    last: datetime
    rate: float  # messages a second, from the first to the last
    peak: float  # messages a second in the busiest slice, or from the first to the last if that is shorter
    longest_gap_s: float  # between two messages of different slices; 0 when all are in one
    gap_from: datetime | None
    silent_s: float  # from the last message to the end of the history
    is_silent: bool

    @property
    def mean_bytes(self) -> float:
        """Of a payload."""
        return self.bytes / self.messages


@dataclass(frozen=True, slots=True)
class Stats:
    """A history in numbers; `keys` are those with most messages, of `key_count`."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    slice_s: float
    key_count: int
    keys: tuple[KeyStats, ...]
    heaviest: tuple[KeyStats, ...]  # those with most bytes
    silent: tuple[KeyStats, ...]  # those that have been silent for longest
    slices: tuple[tuple[datetime, int, int], ...]  # messages and bytes of each slice of time that has any


def choose_slice(first_us: int, last_us: int) -> int:
    """Return the length of a slice of time, in microseconds, for a history of that span."""
    span_s = (last_us - first_us) / SECOND_US
    return next((s for s in SLICES if span_s / s <= MANY_SLICES), SLICES[-1]) * SECOND_US


def slices_of(messages: "DataFrame", slice_us: int) -> "DataFrame":
    """Return a row for each topic and slice of time."""
    time_us, size = F.unix_micros("timestamp"), F.octet_length("payload")
    return (
        messages.select("topic", time_us.alias("us"), size.alias("size"))
        .groupBy("topic", F.expr(f"us div {slice_us}").alias("slice"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("size").alias("bytes"),
            F.min("size").alias("smallest"),
            F.max("size").alias("largest"),
            F.min("us").alias("first_us"),
            F.max("us").alias("last_us"),
        )
    )


def stats_of(
    slices: "DataFrame", slice_us: int, key: "Column | None" = None, top: int = 20, end_us: int | None = None
) -> Stats:
    """Compute the numbers of a history from its slices, which are best persisted; by `key`, or else by topic."""
    line = _timeline(slices, slice_us)
    if not line:
        return Stats(0, 0, None, None, slice_us / SECOND_US, 0, (), (), (), ())
    times = slices.agg(F.min("first_us"), F.max("last_us")).first()
    assert times is not None
    keys = _by_key(slices, key, slice_us, times[1] if end_us is None else end_us).persist()
    try:
        return Stats(
            messages=sum(messages for _, messages, _ in line),
            bytes=sum(size for _, _, size in line),
            first=moment(times[0]),
            last=moment(times[1]),
            slice_s=slice_us / SECOND_US,
            key_count=keys.count(),
            keys=_top(keys, "messages", slice_us, top),
            heaviest=_top(keys, "bytes", slice_us, top),
            silent=_top(keys.where("is_silent"), "silent_us", slice_us, top),
            slices=line,
        )
    finally:
        keys.unpersist()


def _timeline(slices: "DataFrame", slice_us: int) -> tuple[tuple[datetime, int, int], ...]:
    rows = slices.groupBy("slice").agg(F.sum("messages"), F.sum("bytes")).collect()
    return tuple((moment(number * slice_us), messages, size) for number, messages, size in sorted(rows))


def _by_key(slices: "DataFrame", key: "Column | None", slice_us: int, end_us: int) -> "DataFrame":
    """Return the columns of KeyStats, times in microseconds."""
    keyed = slices.withColumn("key", F.col("topic") if key is None else key)
    if key is not None:
        topics = keyed.groupBy("key").agg(F.count_distinct("topic").alias("topics"))
        keyed = _joined(keyed.groupBy("key", "slice"))
    before = F.lag("last_us").over(Window.partitionBy("key").orderBy("slice"))
    gaps = keyed.withColumn("gap_from_us", before).withColumn("gap_us", F.col("first_us") - F.col("gap_from_us"))
    found = _joined(
        gaps.groupBy("key"),
        F.max("messages").alias("peak_messages"),
        F.max("gap_us").alias("longest_us"),
        F.max_by("gap_from_us", "gap_us").alias("gap_from_us"),
    ).withColumn("silent_us", F.lit(end_us) - F.col("last_us"))
    found = found.withColumn("topics", F.lit(1)) if key is None else found.join(topics, "key")
    longest = F.greatest(F.coalesce("longest_us", F.lit(0)), F.lit(slice_us))
    usual = (F.col("last_us") - F.col("first_us")) / F.greatest(F.col("messages") - 1, F.lit(1))
    quiet = (F.col("silent_us") > SILENT * longest) & (F.col("silent_us") > SILENT_MEANS * usual)
    return found.withColumn("is_silent", quiet & (F.col("messages") > 1))


def _joined(grouped: "GroupedData", *more: "Column") -> "DataFrame":
    return grouped.agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("smallest").alias("smallest"),
        F.max("largest").alias("largest"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        *more,
    )


def _top(keys: "DataFrame", order: str, slice_us: int, count: int) -> tuple[KeyStats, ...]:
    rows = keys.orderBy(F.desc(order), "key").limit(count).collect()
    return tuple(_key_stats(row, slice_us) for row in rows)


def _key_stats(row: "Row", slice_us: int) -> KeyStats:
    span_us = row["last_us"] - row["first_us"]
    gap_from_us = row["gap_from_us"]
    rate = (row["messages"] - 1) * SECOND_US / span_us if span_us else 0.0
    return KeyStats(
        key=row["key"],
        topics=row["topics"],
        messages=row["messages"],
        bytes=row["bytes"],
        smallest=row["smallest"],
        largest=row["largest"],
        first=moment(row["first_us"]),
        last=moment(row["last_us"]),
        rate=rate,
        peak=max(rate, row["peak_messages"] * SECOND_US / slice_us),
        longest_gap_s=(row["longest_us"] or 0) / SECOND_US,
        gap_from=None if gap_from_us is None else moment(gap_from_us),
        silent_s=row["silent_us"] / SECOND_US,
        is_silent=row["is_silent"],
    )
