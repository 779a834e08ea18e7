"""`everlog spark replay`: a selection of history in the order in which to publish it again."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART_ROWS = 100_000  # about; the driver holds two such parts: it fetches one while it hands out another
COLUMNS = ("shard", "offset", "timestamp", "topic", "qos", "retain", "properties", "payload")


class Kept(NamedTuple):
    """A message as it was kept; `properties` is its undecoded property section."""

    shard: int
    offset: int
    time_us: int
    topic: str
    qos: int
    retain: bool
    properties: bytes
    payload: bytes


def in_order(messages: "DataFrame", count: int) -> "DataFrame":
    """Sort a frame of about `count` rows by time, those of a shard by offset, so that each topic keeps its order."""
    rows = messages.select(
        "shard", "offset", F.unix_micros("timestamp").alias("us"), "topic", "qos", "retain", "properties", "payload"
    )
    parts = max(1, -(-count // PART_ROWS))
    return rows.repartitionByRange(parts, "us", "shard", "offset").sortWithinPartitions("us", "shard", "offset")


def kept_in(ordered: "DataFrame", chunk: int = 1000) -> Iterator[list[Kept]]:
    """Yield the messages of a frame made by `in_order`, some at a time."""
    rows = ordered.toLocalIterator(prefetchPartitions=True)
    while some := list(islice(rows, chunk)):
        yield [_kept(*row) for row in some]


def _kept(
    shard: int, offset: int, us: int, topic: str, qos: int, retain: bool, properties: bytes | None, payload: bytes
) -> Kept:
    return Kept(shard, offset, us, topic, qos, retain, bytes(properties or b""), bytes(payload))
