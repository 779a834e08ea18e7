"""What messages are counted by: their topic, its shape, or its first levels."""

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from everlog.base import UsageError
from everlog.spark.jobs.structure_file import Structure

if TYPE_CHECKING:
    from pyspark.sql import Column

NO_SHAPE = "(no shape)"


def levels_key(count: int) -> "Column":
    """Return a column with the first levels of each topic, and `#` if it has more."""
    if count < 1:
        raise UsageError(f"a topic has no first {count} levels")
    levels = F.split("topic", "/", -1)
    first = F.array_join(F.slice(levels, 1, count), "/")
    return F.when(F.size(levels) > count, F.concat(first, F.lit("/#"))).otherwise(first)


def shape_key(structure: Structure) -> "Column":
    """Return a column with the shape of each topic, found once for each topic of an Arrow batch."""

    def shape(topics: pa.Array) -> pa.Array:
        coded = topics.dictionary_encode()
        texts = pa.array([_text(structure, topic) for topic in coded.dictionary.to_pylist()], pa.string())
        return texts.take(coded.indices)

    return arrow_udf(shape, "string")(F.col("topic"))  # type: ignore[call-overload, no-any-return]


def _text(structure: Structure, topic: str) -> str:
    number = structure.shape_of(topic)
    return NO_SHAPE if number is None else structure.shapes[number].text
