"""A driver of a stream in a process of its own, which is killed with all that belongs to it at a chosen moment.

Run as `python -m tests.spark.stream_driver MODE DATA WHERE PORT MASTER`: copies the stream of a store into a table or
to the topics of a broker. The kill is real, by a signal that nothing can catch: of the process that commits, of Spark
and of the program that started it, or of an executor in the midst of a file.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from tests.spark.lake_driver import lose_executor, on_cluster, once

from everlog.spark import EverlogSource, spark_session
from everlog.spark.sink import batch_publisher, sink_writer
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.sink_writer import EverlogStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 400
WINDOW = 50
DRIVER = "EVERLOG_TEST_DRIVER"
MODES = ("dies-before-commit", "dies-after-commit", "dies-with-a-window-sent", "dies-with-a-window-noted")


def die() -> None:
    """End the driver, Spark and this process, which works for it."""
    driver = int(os.environ[DRIVER])
    chain, one = [], os.getpid()
    while one not in (1, driver):
        chain.append(one)
        one = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
    for process in (driver, *reversed(chain)):
        os.kill(process, signal.SIGKILL)


def prepare(mode: str) -> None:
    """Have something happen at the second batch."""
    commit: Any = sink_writer.commit_files
    note: Any = BatchJournal.receive
    batch_publisher.WINDOW = WINDOW

    def before(*values: Any, **options: Any) -> None:
        if values[-1] == 1:
            die()
        commit(*values, **options)

    def after(*values: Any, **options: Any) -> None:
        commit(*values, **options)
        if values[-1] == 1:
            die()

    def sent(self: BatchJournal, rows: int) -> None:
        if self.state is not None and self.state.batch == 1 and rows > 3 * WINDOW:
            die()
        note(self, rows)

    def noted(self: BatchJournal, rows: int) -> None:
        note(self, rows)
        if self.state is not None and self.state.batch == 1 and rows > 5 * WINDOW:
            die()

    match mode:
        case "dies-before-commit":
            sink_writer.commit_files = before  # type: ignore[assignment]
        case "dies-after-commit":
            sink_writer.commit_files = after  # type: ignore[assignment]
        case "dies-with-a-window-sent":
            BatchJournal.receive = sent  # type: ignore[method-assign]
        case "dies-with-a-window-noted":
            BatchJournal.receive = noted  # type: ignore[method-assign]


class Dying(EverlogStreamWriter):
    """A writer whose driver dies while it commits, or whose executor dies while it writes."""

    mode = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._losing(iterator) if self.mode == "executor-lost" else iterator)

    def _losing(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, and behind the first of the second micro-batch an end of the executor."""
        table = str(self._sink.options.table)
        for batch in iterator:
            yield batch
            if Path(f"{table}/_delta_log/{1:020d}.json").exists() and once(table, "losing"):
                lose_executor(table)

    def commit(self, messages: Any, batchId: int) -> None:
        prepare(self.mode)
        super().commit(messages, batchId)


class DyingSource(EverlogSource):
    """The sink, with an option that says what happens to it."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Dying:
        options: Mapping[str, str] = self.options
        mode = options["mode"]
        self.options = {name: value for name, value in options.items() if name != "mode"}
        writer = super().streamWriter(schema, overwrite)
        made = Dying(writer._sink.options, schema, overwrite)
        made.mode = mode
        return made


def copy(spark: "SparkSession", mode: str, data: Path, where: Path, port: int = 0) -> None:
    """Copy all that there is, to a table or to the broker at a port."""
    spark.dataSource.register(DyingSource)
    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", str(BATCH)).load(str(data))
    rows = stream.select(F.concat(F.lit("copy/"), "topic").alias("topic"), "payload") if port else stream
    target = {"broker": f"127.0.0.1:{port}"} if port else {"table": str(where / "table")}
    writer = rows.writeStream.format("dying").options(mode=mode, checkpointLocation=str(where / "checkpoint"), **target)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(mode: str, data: Path, where: Path, port: int, master: str) -> None:
    """Copy, unless it is killed."""
    os.environ[DRIVER] = str(os.getpid())
    spark = spark_session("stream test", master=master, settings=on_cluster(where))
    copy(spark, mode, data, where, port)
    spark.stop()


if __name__ == "__main__":
    from tests.spark import stream_driver  # what workers load by name, not as a copy of __main__

    stream_driver.main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
