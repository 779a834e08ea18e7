"""Topics that are valid MQTT and probably not meant: spellings that differ in case only, empty and invisible parts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from everlog.spark.jobs.structure_file import Anomaly, Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_NOTES = 100  # of one kind that are told one by one, those with most messages


def spellings(values: "DataFrame", shapes: Mapping[int, Shape]) -> list[Anomaly]:
    """Find names at one level of a shape that differ in case or blanks only, the usual spelling first."""
    rows = (
        values.groupBy("shape", "level", F.lower(F.trim("value")).alias("plain"))
        .agg(
            F.sort_array(F.collect_list(F.struct("messages", "value")), asc=False).alias("found"),
            F.sum("topics").alias("topics"),
            F.sum("messages").alias("messages"),
        )
        .where(F.size("found") > 1)
        .orderBy(F.desc("messages"), "plain")
        .limit(MAX_NOTES)
        .collect()
    )
    notes = []
    for row in rows:
        words = " and ".join(repr(one["value"]) for one in row["found"])
        why = f"level {row['level'] + 1} is spelled {words}"
        notes.append(Anomaly("spelling", shapes[row["shape"]].text, row["topics"], row["messages"], why))
    return notes


def odd_names(totals: "DataFrame") -> list[Anomaly]:
    """Find topics with an empty level, blanks at the edge of one, or invisible characters."""
    reason = _reason()
    rows = (
        totals.withColumn("why", reason)
        .where(F.col("why").isNotNull())
        .orderBy(F.desc("messages"), "topic")
        .limit(MAX_NOTES)
        .select("topic", "messages", "why")
        .collect()
    )
    return [Anomaly("odd name", row["topic"], 1, row["messages"], row["why"]) for row in rows]


def _reason() -> "Column":
    topic = F.col("topic")
    return (
        F.when(topic.startswith("/"), F.lit("begins with a slash, so its first level is empty"))
        .when(topic.endswith("/"), F.lit("ends with a slash, so its last level is empty"))
        .when(topic.contains("//"), F.lit("has an empty level"))
        .when(topic.rlike(r"(^|/)\s|\s(/|$)"), F.lit("has a blank at the edge of a level"))
        .when(topic.rlike(r"[\p{Cc}\p{Cf}]"), F.lit("has characters that don't show"))
    )
