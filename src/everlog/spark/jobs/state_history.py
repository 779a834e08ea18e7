"""Streams and key-value stores as a history: the columns that jobs read of messages, made of those of state.

The topic is the stream's name, or the store's with the key as its last levels. Of a key-value store only last values
are there.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def as_history(state: "DataFrame") -> "DataFrame":
    """Return a frame of streams or key-value stores with the columns of messages."""
    is_kv = "kv" in state.columns
    topic = F.concat_ws("/", "kv", "key") if is_kv else F.col("stream")
    return state.select(
        "shard",
        F.col("position").alias("offset"),
        F.col("time").alias("timestamp"),
        topic.alias("topic"),
        F.split(topic, "/").alias("levels"),
        F.lit(1).cast("tinyint").alias("qos"),
        F.lit(is_kv).alias("retain"),
        F.col("headers").alias("user_properties"),
        F.lit(None).cast("binary").alias("properties"),
        F.coalesce("value", F.lit(b"")).alias("payload"),
    )
