"""`everlog spark structure`: which shapes the topics of a history have, and which topics fit none.

Messages are scanned once, into one row for each topic; all else works on those. Spark masks and counts them, the driver
sees masked topics only (at most MAX_PATTERNS), and learns shapes from them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from everlog.spark.jobs.history_summary import moment, topic_totals
from everlog.spark.jobs.level_masks import ANY, CLASSES, masked_levels
from everlog.spark.jobs.name_anomalies import odd_names, spellings
from everlog.spark.jobs.shape_anomalies import strangers
from everlog.spark.jobs.structure_file import FIXED, NAME, PATTERN, Level, Shape, Structure
from everlog.spark.jobs.topic_shapes import Draft, Pattern, learn_shapes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

MAX_PATTERNS = 200_000  # masked topics on the driver; with more, the level with most values is taken as `any` first


def structure_of(messages: "DataFrame", max_patterns: int = MAX_PATTERNS) -> Structure:
    """Learn the structure of the topics of a frame with the columns topic, timestamp and payload."""
    totals = topic_totals(messages).withColumn("levels", F.split("topic", "/", -1)).persist()
    values: DataFrame | None = None
    try:
        masked, rows = _masked(totals, max_patterns)
        drafts = learn_shapes([Pattern(tuple(text.split("/")), *numbers) for text, *numbers in rows])
        shaped = _shaped(masked, drafts, [row[0] for row in rows])
        values = _values(shaped).persist()
        numbered = _shapes(shaped, values, drafts)
        found = sorted(numbered.values(), key=lambda shape: (-shape.messages, shape.text))
        shapes, rare = strangers(found)
        notes = (*rare, *spellings(values, numbered), *odd_names(totals))
        counts = (sum(shape.topics for shape in found), sum(shape.messages for shape in found))
        return Structure(*counts, tuple(shapes), notes)
    finally:
        totals.unpersist()
        if values is not None:
            values.unpersist()


def _masked(totals: "DataFrame", max_patterns: int) -> "tuple[DataFrame, list[Row]]":
    """Return the topics with their patterns, and the patterns, at most `max_patterns`."""
    masks = totals.withColumn("masks", masked_levels(F.col("topic")))
    while True:
        frame = masks.withColumn("pattern", F.array_join("masks", "/"))
        counted = frame.groupBy("pattern").agg(F.count(F.lit(1)), F.sum("messages"))
        rows = counted.limit(max_patterns + 1).collect()
        if len(rows) <= max_patterns:
            return frame, sorted(rows)
        depth, level = _widest(masks)
        masks = masks.withColumn("masks", _without(depth, level))


def _without(depth: int, level: int) -> "Column":
    """Return the masks of each topic; topics of this depth lose the mask of this level."""

    def blur(mask: "Column", number: "Column") -> "Column":
        return F.when(number == level, F.lit(ANY)).otherwise(mask)

    return F.when(F.size("masks") == depth, F.transform("masks", blur)).otherwise(F.col("masks"))


def _widest(masks: "DataFrame") -> tuple[int, int]:
    """Return the depth and level with the most values."""
    levels = masks.select(F.size("masks").alias("depth"), F.posexplode("masks").alias("level", "mask"))
    row = (
        levels.groupBy("depth", "level")
        .agg(F.approx_count_distinct("mask").alias("values"))
        .orderBy(F.desc("values"), "depth", "level")
        .first()
    )
    assert row is not None
    return row["depth"], row["level"]


def _shaped(masked: "DataFrame", drafts: list[Draft], patterns: list[str]) -> "DataFrame":
    """Return the topics with the number of their shape."""
    pairs = [(patterns[row], number) for number, draft in enumerate(drafts) for row in draft.patterns]
    numbers = masked.sparkSession.createDataFrame(pairs, "pattern STRING, shape INT")
    return masked.join(F.broadcast(numbers), "pattern")


def _shapes(shaped: "DataFrame", values: "DataFrame", drafts: list[Draft]) -> dict[int, Shape]:
    """Return the shapes with their totals, by the numbers of their drafts."""
    totals = shaped.groupBy("shape").agg(
        F.count(F.lit(1)).alias("topics"),
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.array_distinct(
            F.array(F.max_by("topic", "messages"), F.min("topic"), F.max("topic"))
        ).alias("examples"),
    )  # fmt: skip
    levels: dict[int, dict[int, Any]] = {}
    for row in _level_values(values).collect():
        levels.setdefault(row["shape"], {})[row["level"]] = row
    found = {}
    for row in totals.collect():
        draft, own = drafts[row["shape"]], levels[row["shape"]]
        found[row["shape"]] = _shape(row, draft, [own[number] for number in range(len(draft.levels))])
    return found


def _values(shaped: "DataFrame") -> "DataFrame":
    """Return every value of every level of every shape."""
    return (
        shaped.select("shape", "messages", F.posexplode("levels").alias("level", "value"))
        .groupBy("shape", "level", "value")
        .agg(F.count(F.lit(1)).alias("topics"), F.sum("messages").alias("messages"))
    )


def _level_values(values: "DataFrame") -> "DataFrame":
    """Return for each level of each shape how many values it has, and some of them."""
    number = F.col("value").try_cast("double")
    return values.groupBy("shape", "level").agg(
        F.count(F.lit(1)).alias("values"),
        F.array_distinct(
            F.array(
                F.max_by("value", "messages"),
                F.coalesce(F.min_by("value", number), F.min("value")),
                F.coalesce(F.max_by("value", number), F.max("value")),
            )
        ).alias("examples"),
    )


def _shape(row: Any, draft: Draft, rows: list[Any]) -> Shape:
    levels = tuple(_level(slot, at["values"], at["examples"]) for slot, at in zip(draft.levels, rows, strict=True))
    varying = [number for number, level in enumerate(levels) if level.varies]
    return Shape(
        text="/".join(level.text for level in levels),
        filter="/".join("+" if level.varies else level.text for level in levels),
        topics=row["topics"],
        messages=row["messages"],
        bytes=row["bytes"],
        first=moment(row["first_us"]),
        last=moment(row["last_us"]),
        levels=levels,
        order=tuple(sorted(varying, key=lambda number: (levels[number].values, number))),
        examples=tuple(row["examples"]),
    )


def _level(slot: str | None, values: int, examples: Iterable[str]) -> Level:
    some = tuple(examples)
    if values == 1:  # though it looks like a number, it never was another
        return Level(FIXED, some[0], 1, some)
    if slot is None:
        return Level(NAME, f"{{{values:,} values}}", values, some)
    return Level(slot.strip("{}") if slot in CLASSES else PATTERN, slot, values, some)
