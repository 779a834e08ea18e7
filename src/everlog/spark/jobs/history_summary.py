"""Frames that several jobs begin with: totals of each topic, and the time that a history spans.

Times leave Spark as microseconds since 1970: its own conversion would move them into the driver's time zone.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def topic_totals(messages: "DataFrame") -> "DataFrame":
    """Return a row for each topic: messages, bytes of payload, first and last time in microseconds."""
    return messages.groupBy("topic").agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum(F.octet_length("payload")).alias("bytes"),
        F.unix_micros(F.min("timestamp")).alias("first_us"),
        F.unix_micros(F.max("timestamp")).alias("last_us"),
    )


def time_span(messages: "DataFrame") -> tuple[int, int] | None:
    """Return the times of the first and the last message in microseconds, or None for an empty history."""
    row = messages.agg(F.unix_micros(F.min("timestamp")), F.unix_micros(F.max("timestamp"))).first()
    return None if row is None or row[0] is None else (row[0], row[1])


def moment(time_us: int) -> datetime:
    """Return a time in microseconds as a datetime."""
    return _EPOCH + timedelta(microseconds=time_us)
