"""The data source that `spark.read.format("everlog")` finds, and its batch reader.

What a frame reads is fixed when it is loaded. Filters of a query are not pushed down, as pyspark 4.3 mixes up those of
two scans of one frame: the options say what to read.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from everlog.base import Unavailable, UsageError
from everlog.spark.cluster_cores import task_count
from everlog.spark.cluster_place import is_cluster
from everlog.spark.frame_plan import NOTHING, FramePlan, is_table, plan_frame, unkept_in
from everlog.spark.given_options import is_table_made, options_in, own_options, with_options
from everlog.spark.log_slices import ReadReport, read_slice
from everlog.spark.lost_offsets import lost_of, name_lost
from everlog.spark.payload import check_json_type, decoder, needs_topics, spark_type
from everlog.spark.pyspark_api import DataSource, DataSourceReader, InputPartition, from_arrow_schema, to_arrow_schema
from everlog.spark.schema import check_columns, schema_of, spark_ddl
from everlog.spark.snapshot import Slice, pack, target_bytes
from everlog.spark.source_options import SourceOptions, place_of, read_options
from everlog.spark.state.state_options import is_state, read_state_options
from everlog.spark.worker_process import settle

if TYPE_CHECKING:
    from everlog.spark.lake_slices import LakeSlice
    from everlog.spark.sink.sink_writer import EverlogStreamWriter, EverlogWriter
    from everlog.spark.state.state_reader import StatePlan, StateReader
    from everlog.spark.stream import EverlogStreamReader
    from everlog.spark.table_frame import TablePlan, TableReader

log = logging.getLogger(__name__)


class EverlogSource(DataSource):
    """One load of the log as a table."""

    def __init__(self, options: Mapping[str, str]) -> None:
        settle()
        self.options = own_options(options)
        self._is_made = is_table_made(options)
        self._plan: FramePlan | None = None
        self._state: StatePlan | None = None
        self._table: TablePlan | None = None
        path = self.options.get("path")
        if path and not is_state(self.options) and not is_cluster(path) and _has_store(path) and self._is_batch():
            self._plan = plan_frame(read_options(self.options), _now_us())

    def _is_batch(self) -> bool:
        """Return whether all options are those of a batch read, and not of a stream or a sink."""
        try:
            read_options(self.options)
        except UsageError:
            return False
        return True

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "everlog"

    def schema(self) -> StructType | str:
        """Return the columns that the options choose; those of a table in Spark's catalog carry the options."""
        found = self._schema()
        if not self._is_made:
            return found
        columns = StructType.fromDDL(found) if isinstance(found, str) else found
        assert isinstance(columns, StructType)
        return with_options(columns, self.options)

    def _schema(self) -> StructType | str:
        from everlog.spark.stream_options import STREAM_OPTIONS

        if is_state(self.options):
            return self._state_schema()
        if self._is_plain_table():
            from everlog.spark.table_frame import plan_table

            self._table = plan_table(self.options)
            return from_arrow_schema(self._table.schema)
        options = read_options(self.options, STREAM_OPTIONS)
        if self._plan is None and self._is_batch():
            self._plan = plan_frame(options, _now_us())
        if options.payload not in ("binary", "string"):
            return spark_ddl(options.columns, payload=spark_type(options.payload, options.payload_schema))
        schema = schema_of(options.columns)
        if options.payload == "string" and "payload" in options.columns:
            at = options.columns.index("payload")
            schema = schema.set(at, schema.field(at).with_type(pa.string()))
        return from_arrow_schema(schema)  # unlike DDL it can say that no level is null, which saves Spark the check

    def _is_plain_table(self) -> bool:
        """Return whether a table is meant that is not a store's."""
        path = {name.lower(): value for name, value in self.options.items()}.get("path", "")
        if not path or is_cluster(path) or not is_table(place_of(path)):
            return False
        from everlog.spark.lake.location import locate
        from everlog.spark.table_frame import is_plain_table

        return is_plain_table(locate(place_of(path)))

    def _state_schema(self) -> StructType:
        """Return the columns of streams or key-value stores, which are taken as they are now."""
        from everlog.spark.state.state_columns import schema_of as state_schema_of
        from everlog.spark.state.state_reader import plan_state

        options = read_state_options(self.options)
        if self._state is None:
            self._state = plan_state(options)
        return from_arrow_schema(state_schema_of(options.kind, options.is_text))

    def reader(self, schema: StructType) -> "EverlogReader | StateReader | TableReader":
        """Return a reader of the store as it was when the frame was loaded."""
        self.options = {**options_in(schema), **self.options}
        if is_state(self.options):
            from everlog.spark.state.state_reader import StateReader, plan_state

            wanted = read_state_options(self.options)
            return StateReader(wanted, self._state or plan_state(wanted), schema)
        if self._table is not None or self._is_plain_table():
            from everlog.spark.table_frame import TableReader, plan_table

            return TableReader(self._table or plan_table(self.options), schema)
        options = read_options(self.options)
        plan = self._plan or plan_frame(options, _now_us())
        _account(plan, options)
        return EverlogReader(options, plan, schema)

    def streamReader(self, schema: StructType) -> "EverlogStreamReader":
        """Return a reader of what is there now and of what comes later."""
        from everlog.spark.stream import EverlogStreamReader
        from everlog.spark.stream_options import read_stream_options

        self.options = {**options_in(schema), **self.options}
        if is_state(self.options):
            raise UsageError(
                "streams and key-value stores are read as they are, not followed",
                hint="read them as a batch, or follow them with everlog.client",
            )
        return EverlogStreamReader(read_stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "EverlogWriter":
        """Return a writer of a frame's rows to topics or a table."""
        from everlog.spark.sink.sink_options import read_sink_options
        from everlog.spark.sink.sink_writer import EverlogWriter

        return EverlogWriter(read_sink_options({**options_in(schema), **self.options}), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "EverlogStreamWriter":
        """Return a writer of a stream's rows to topics or a table."""
        from everlog.spark.sink.sink_options import read_sink_options
        from everlog.spark.sink.sink_writer import EverlogStreamWriter

        return EverlogStreamWriter(read_sink_options(self.options), schema, overwrite)


@dataclass
class LogPartition(InputPartition):
    """What one task reads."""

    slices: "tuple[Slice | LakeSlice, ...]"


class EverlogReader(DataSourceReader):
    """Plans and reads the tasks of a frame."""

    def __init__(self, options: SourceOptions, plan: FramePlan, schema: StructType) -> None:
        self.options = options
        self.plan = plan
        self.columns = check_columns(schema.names)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        if "payload" in self.columns and options.payload == "json":
            check_json_type(self.schema.field("payload").type)
        for field, own in zip(self.schema, schema_of(self.columns), strict=True):
            if field.name != "payload" and not _same(field.type, own.type):
                raise UsageError(f"the column {field.name} is {own.type}, not {field.type}")

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks get: nothing by which a database could be asked, and no plan."""
        return {**self.__dict__, "options": for_tasks(self.options), "plan": NOTHING}

    def partitions(self) -> list[InputPartition]:
        """Return about as many partitions as were asked for, of about equal size."""
        settle()
        tasks = self.options.tasks or task_count()
        slices = self.plan.slices(tasks, self.options.filters)
        return [LogPartition(group) for group in pack(slices, target_bytes(slices, tasks))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; an empty plan arrives as a partition without slices."""
        if not isinstance(partition, LogPartition):
            return
        settle()
        report = ReadReport()
        columns = self.columns
        if "payload" in columns and needs_topics(self.options.payload) and "topic" not in columns:
            columns = (*columns, "topic")
        for piece in partition.slices:
            for batch in self._read(piece, columns, report):
                yield self._shaped(batch)
        if report.damage:
            log.warning("left out: %d offsets are damaged, in %d places", report.lost, len(report.damage))
        if report.removed:
            log.warning("left out: retention removed %d offsets before they were read", report.removed)

    def _read(
        self, piece: "Slice | LakeSlice", columns: tuple[str, ...], report: ReadReport
    ) -> Iterator[pa.RecordBatch]:
        filters = self.options.filters
        if isinstance(piece, Slice):
            options = self.options
            return read_slice(
                piece, columns, filters, on_damage=options.on_damage, on_lost=options.on_lost, report=report
            )
        from everlog.spark.lake_slices import read_lake_slice

        return read_lake_slice(piece, columns, filters, report=report)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the schema that Spark was told."""
        arrays = [batch.column(name) for name in self.columns]
        if "payload" in self.columns and self.options.payload != "binary":
            at = self.columns.index("payload")
            topics = batch.column("topic") if needs_topics(self.options.payload) else None
            arrays[at] = decoder(self.options.payload, self.schema.field("payload").type)(arrays[at], topics)
        if "levels" in self.columns:
            at = self.columns.index("levels")
            arrays[at] = _retyped(arrays[at], self.schema.field("levels").type)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _account(plan: FramePlan, options: SourceOptions) -> None:
    """Refuse a batch that would pass over what is lost, or say how much that is; say what nothing keeps."""
    for note in unkept_in(options):
        log.warning("%s", note)
    lost = lost_of(plan)
    if lost and options.on_lost == "fail":
        raise Unavailable(
            f"retention removed offsets that are to be read: {name_lost(lost)}",
            hint='set the option onLost to "skip" to read the others, or begin with "earliest"',
        )
    for one in lost:
        size = one.to_offset - one.from_offset
        log.warning("left out of the frame: retention removed %d offsets of it, %s", size, name_lost([one]))


def rows_in(partitions: list[InputPartition]) -> list[str]:
    """Return the objects with rows of a cluster's tail that were stored for these tasks."""
    slices = [piece for one in partitions if isinstance(one, LogPartition) for piece in one.slices]
    held = [segment for piece in slices if isinstance(piece, Slice) and piece.bucket for segment in piece.segments]
    return [segment.path for segment in held if not segment.sealed and segment.path]


def for_tasks(options: SourceOptions) -> SourceOptions:
    """Return options without what tasks need not know."""
    return options if options.cluster is None else replace(options, cluster=options.cluster.for_tasks())


def _has_store(path: str) -> bool:
    return os.path.exists(f"{place_of(path)}/store")


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether types are the same but for the nullability of a list's values."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return bool(one.value_type == other.value_type)
    return bool(one == other)


def _retyped(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists with another nullability of their values."""
    if lists.type == kind:
        return lists
    return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:2], offset=lists.offset, children=[lists.values])


def _now_us() -> int:
    return time.time_ns() // 1000
