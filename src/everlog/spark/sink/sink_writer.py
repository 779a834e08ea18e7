"""The writers that Spark calls: tasks stage rows, the driver makes a batch of them and publishes or commits it.

A task may fail, be tried again or run twice at once: what it wrote counts only if its message reaches the driver.
"""

import hashlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from everlog.base import UsageError
from everlog.spark.lake.location import locate
from everlog.spark.pyspark_api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    to_arrow_schema,
)
from everlog.spark.sink.batch_journal import BatchJournal, app_directory
from everlog.spark.sink.batch_publisher import publish_batch
from everlog.spark.sink.blocking_client import BlockingClient
from everlog.spark.sink.sink_options import SinkOptions
from everlog.spark.sink.staged_rows import check_messages, check_schema, stage
from everlog.spark.sink.state_rows import StateCheck, check_state_schema
from everlog.spark.sink.table_sink import TableFile, commit_files, write_file

QUERY_ID = "sql.streaming.queryId"  # the property by which tasks know their stream: an id that its checkpoint keeps
MAX_CLIENT_ID = 64

Messages = Sequence[WriterCommitMessage | None]


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote, and for which application."""

    app: str
    staged: str | None = None
    file: TableFile | None = None


class Sink:
    """The part that batch writers and stream writers share."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite and options.table is None:
            raise UsageError("what is published can't be taken back", hint='append: .mode("append")')
        self.options = options
        self.overwrite = overwrite
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        if options.broker is not None:
            check_schema(self.schema)
        if options.state is not None:
            check_state_schema(self.schema, options.state)

    def write(self, batches: Iterator[pa.RecordBatch], app: str) -> Written:
        """Write the rows of a task."""
        if self.options.table is not None:
            return Written(app, file=write_file(batches, locate(self.options.table), self.schema))
        check = check_messages if self.options.state is None else StateCheck(self.options.state)
        name, _ = stage(batches, app_directory(self.options.staging, app), self.schema, check)
        return Written(app, staged=name)

    def commit(self, messages: Messages, batch: int) -> None:
        """Commit what the tasks wrote, once all are done."""
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        app = written[0].app
        if self.options.table is not None:
            files = [one.file for one in written if one.file is not None]
            commit_files(locate(self.options.table), self.schema, files, app, batch, overwrite=self.overwrite)
            return
        with closing(BatchJournal(self.options.staging, app)) as journal:
            if not journal.take(batch, [one.staged for one in written if one.staged is not None]):
                return
            if self.options.state is None:
                publish_batch(journal, partial(self._dial, app), self.options.qos, self.options.timeout_s)
            else:
                from everlog.spark.sink.state_publisher import write_batch

                write_batch(journal, self.options.state, self.options.timeout_s)

    def abort(self, messages: Messages) -> None:
        """Discard what tasks wrote, unless it is part of a batch by now."""
        written = [message for message in messages if isinstance(message, Written)]
        if written and self.options.table is None:
            with closing(BatchJournal(self.options.staging, written[0].app)) as journal:
                journal.sweep()

    def _dial(self, app: str, clean_start: bool) -> BlockingClient:
        assert self.options.broker is not None
        return BlockingClient(self.options.broker, client_id(app), clean_start=clean_start)


def client_id(app: str) -> str:
    """Return the MQTT client id of an application, the same whenever it comes back."""
    plain = f"everlog-spark-{app}"
    if len(plain.encode()) <= MAX_CLIENT_ID:
        return plain
    return f"everlog-spark-{hashlib.blake2b(app.encode(), digest_size=20).hexdigest()}"


class EverlogWriter(DataSourceArrowWriter):
    """`df.write.format("everlog")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite)
        self._batch = options.batch or 0
        self._is_known = options.batch is not None  # otherwise it is the only batch of an application of its own
        self._app = options.app or "write"
        if not self._is_known:
            self._app += f"-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return self._sink.write(iterator, self._app)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks wrote, once all are done."""
        try:
            self._sink.commit(messages, self._batch)
        finally:
            self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard what the tasks wrote, when one has failed."""
        self._sink.abort(messages)
        self._forget()

    def _forget(self) -> None:
        """Remove the directory of a write without a number: nobody comes back to it."""
        if not self._is_known and self._sink.options.table is None:
            shutil.rmtree(app_directory(self._sink.options.staging, self._app), ignore_errors=True)


class EverlogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("everlog")`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if options.batch is not None:
            raise UsageError("a stream numbers its batches itself", hint='leave out the option "batch"')
        self._sink = Sink(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return self._sink.write(iterator, self._sink.options.app or _query_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit what the tasks of a micro-batch wrote, once all are done."""
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard what the tasks wrote, when one has failed."""
        self._sink.abort(messages)


def _query_id() -> str:
    """Return the id of the stream that this task belongs to."""
    context = TaskContext.get()
    found = context.getLocalProperty(QUERY_ID) if context is not None else None
    if not found:
        raise UsageError("Spark does not say which stream this is", hint='name it with the option "app"')
    return str(found)
