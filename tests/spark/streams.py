"""Streams asked as Spark asks them, without Spark, and what a query of Spark hands on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from everlog.spark.stream import EverlogStreamReader
from everlog.spark.stream_options import read_stream_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("shard", "integer", False).add("offset", "long", False).add("payload", "binary", False)
Offset = dict[str, Any]
Row = tuple[int, int, bytes]


def reader(where: Path | str, **options: str) -> EverlogStreamReader:
    return EverlogStreamReader(read_stream_options({"path": str(where), **options}), SCHEMA)


def rows(stream: EverlogStreamReader, start: Offset, end: Offset) -> list[tuple[int, int]]:
    """Where the rows of a micro-batch lie, in order of the shards."""
    found: list[tuple[int, int]] = []
    for partition in stream.partitions(start, end):
        for batch in stream.read(partition):
            found += [(row["shard"], row["offset"]) for row in batch.select(["shard", "offset"]).to_pylist()]
    return sorted(found)


def follow(stream: EverlogStreamReader, start: Offset, limit: ReadLimit | None = None) -> list[list[tuple[int, int]]]:
    """The micro-batches until there is nothing new."""
    batches = []
    while (end := stream.latestOffset(start, limit or stream.getDefaultReadLimit())) != start:
        batches.append(rows(stream, start, end))
        start = end
    return batches


class Gathered:
    """What a query handed on, batch by batch; `run` goes on from the checkpoint until nothing is left."""

    def __init__(self, spark: "SparkSession", where: Path, data: Path, **options: str) -> None:
        self.stream = spark.readStream.format("everlog").options(**options).load(str(data))
        self.checkpoint = where / "checkpoint"
        self.batches: list[tuple[int, list[Row]]] = []
        self.fail_at: int | None = None

    def run(self) -> list[Row]:
        before = len(self.batches)
        query = (
            self.stream.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [row for _, rows in self.batches[before:] for row in rows]

    def _take(self, frame: "DataFrame", number: int) -> None:
        if number == self.fail_at:
            raise RuntimeError("this batch was to fail")
        rows = frame.select("shard", "offset", "payload").collect()
        self.batches.append((number, sorted((row[0], row[1], bytes(row[2])) for row in rows)))
