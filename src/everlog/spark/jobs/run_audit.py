"""`everlog spark audit`: what was lost, duplicated or reordered on the way from publishers to subscribers.

A message is known by publisher, topic and sequence number. Each step is compared with what should have arrived there:
the log with what was published and acknowledged, a subscriber with what the log has (or was published) of its topics.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from everlog.topics import parse_filter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

MESSAGE = ("publisher", "topic", "sequence")
LOG = "the log"
COUNTS = ("expected", "arrived", "lost", "duplicated", "redelivered", "reordered", "foreign")
FINDINGS = ("lost", "duplicated", "reordered", "foreign")


@dataclass(frozen=True, slots=True)
class Line:
    """What arrived somewhere of one publisher and topic, in numbers of messages; examples are sequence numbers."""

    where: str  # a subscriber, or LOG
    publisher: str
    topic: str
    expected: int
    arrived: int  # different ones
    lost: int
    duplicated: int  # copies beyond the first that the broker did not announce as such
    redelivered: int  # copies that it did, as it may at QoS 1
    reordered: int  # came after one with a higher number
    foreign: int  # arrived and were not expected
    lost_from: int | None
    lost_to: int | None
    duplicated_at: int | None
    reordered_at: int | None

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not any(getattr(self, name) for name in FINDINGS)


@dataclass(frozen=True, slots=True)
class Audit:
    """The sums for each place, and the lines with findings, the worst first."""

    places: tuple[tuple[str, dict[str, int]], ...]
    lines: tuple[Line, ...]
    unacked: int  # published, and never acknowledged: they may arrive or not

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong anywhere."""
        return not any(sums[name] for _, sums in self.places for name in FINDINGS)


def audit_histories(
    *,
    published: "DataFrame | None" = None,
    logged: "DataFrame | None" = None,
    delivered: "DataFrame | None" = None,
    subscriptions: "DataFrame | None" = None,
    top: int = 100,
) -> Audit:
    """Compare the histories that are given; see `run_history` for their columns."""
    sent = None if published is None else published.groupBy(*MESSAGE).agg(F.max("acked").alias("acked")).persist()
    parts = []
    if logged is not None:
        arrived = _arrived(logged.withColumn("where", F.lit(LOG)).withColumn("dup", F.lit(False)), "offset")
        expected = arrived.select("where", *MESSAGE, F.lit(True).alias("acked"))
        if sent is not None:
            expected = sent.withColumn("where", F.lit(LOG))
        parts.append(_lines(expected, arrived))
    if delivered is not None:
        arrived = _arrived(delivered.withColumnRenamed("subscriber", "where"), "position")
        source = _source(sent, logged, arrived)
        parts.append(_lines(_expected(source, arrived, subscriptions), arrived))
    lines = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    lines = lines.persist()
    try:
        unacked = 0 if sent is None else sent.where("not acked").count()
        return Audit(_sums(lines), _worst(lines, top), unacked)
    finally:
        lines.unpersist()
        if sent is not None:
            sent.unpersist()


def _source(sent: "DataFrame | None", logged: "DataFrame | None", arrived: "DataFrame") -> "DataFrame":
    """Return the messages that there were to deliver."""
    if logged is not None:
        return logged.select(*MESSAGE).distinct().withColumn("acked", F.lit(True))
    return sent if sent is not None else arrived.select(*MESSAGE).distinct().withColumn("acked", F.lit(True))


def _arrived(history: "DataFrame", order: str) -> "DataFrame":
    """Return a row for each message at each place: how often it came, how often announced as a copy, whether late."""
    once = history.groupBy("where", *MESSAGE).agg(
        F.count(F.lit(1)).alias("copies"),
        F.least(F.count_if("dup"), F.count(F.lit(1)) - 1).alias("again"),
        F.min(order).alias("at"),
    )
    earlier = (
        Window.partitionBy("where", "publisher", "topic")
        .orderBy("at", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    late = F.coalesce(F.col("sequence") < F.max("sequence").over(earlier), F.lit(False))
    return once.withColumn("late", late)


def _expected(source: "DataFrame", arrived: "DataFrame", subscriptions: "DataFrame | None") -> "DataFrame":
    """Return what each subscriber should have: all messages of topics that it got any of or subscribed to."""
    topics = arrived.select("where", "topic").distinct()
    if subscriptions is not None:
        spark = source.sparkSession
        filters = [(row["subscriber"], filter_regex(row["filter"])) for row in subscriptions.distinct().collect()]
        wanted = spark.createDataFrame(filters, "`where` STRING, pattern STRING")
        named = source.select("topic").distinct().crossJoin(F.broadcast(wanted))
        topics = topics.union(named.where("topic rlike pattern").select("where", "topic")).distinct()
    return source.join(topics, "topic")


def filter_regex(text: str) -> str:
    """Return an MQTT filter as a regular expression for Spark."""
    flt = parse_filter(text)
    levels = [r"[^/]*" if level == "+" else _quote(level) for level in flt.levels if level != "#"]
    pattern = "/".join(levels)
    if flt.ends_open:
        pattern = f"{pattern}(/.*)?" if levels else ".*"
    return f"^{r'(?![$])' if flt.starts_wild else ''}{pattern}$"


def _quote(level: str) -> str:
    return "".join(char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}" for char in level)


def _lines(expected: "DataFrame", arrived: "DataFrame") -> "DataFrame":
    """Return a row for each place, publisher and topic, with the columns of `Line`."""
    both = expected.withColumn("wanted", F.lit(True)).join(arrived, ["where", *MESSAGE], "full_outer")
    wanted = F.coalesce("wanted", F.lit(False))
    here = F.col("copies").isNotNull()
    lost = wanted & F.col("acked") & ~here
    twice = F.coalesce(F.col("copies") - 1 - F.col("again"), F.lit(0))
    late = F.coalesce("late", F.lit(False))

    def first(condition: "Column") -> "Column":
        return F.min(F.when(condition, F.col("sequence")))

    return both.groupBy("where", "publisher", "topic").agg(
        F.count_if(wanted & F.col("acked")).alias("expected"),
        F.count_if(here).alias("arrived"),
        F.count_if(lost).alias("lost"),
        F.sum(twice).alias("duplicated"),
        F.sum(F.coalesce("again", F.lit(0))).alias("redelivered"),
        F.count_if(late).alias("reordered"),
        F.count_if(here & ~wanted).alias("foreign"),
        first(lost).alias("lost_from"),
        F.max(F.when(lost, F.col("sequence"))).alias("lost_to"),
        first(twice > 0).alias("duplicated_at"),
        first(late).alias("reordered_at"),
    )


def _sums(lines: "DataFrame") -> tuple[tuple[str, dict[str, int]], ...]:
    rows = lines.groupBy("where").agg(*(F.sum(name).alias(name) for name in COUNTS)).collect()
    ordered = sorted(rows, key=lambda row: (row["where"] != LOG, row["where"]))
    return tuple((row["where"], {name: row[name] for name in COUNTS}) for row in ordered)


def _worst(lines: "DataFrame", top: int) -> tuple[Line, ...]:
    bad = sum((F.col(name) for name in FINDINGS[1:]), F.col(FINDINGS[0]))
    rows = (
        lines.withColumn("bad", bad).where("bad > 0")
        .orderBy(F.desc("bad"), "where", "publisher", "topic").drop("bad").limit(top).collect()
    )  # fmt: skip
    return tuple(_line(row) for row in rows)


def _line(row: "Row") -> Line:
    return Line(**row.asDict())
