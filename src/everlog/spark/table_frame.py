"""A frame over a Delta table that is not a store's, such as the sink writes: its own columns, as of one version."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from everlog.base import Unavailable, UsageError
from everlog.spark.cluster_cores import task_count
from everlog.spark.lake.location import Location, locate
from everlog.spark.lake.table_layout import FORMAT_PROPERTY
from everlog.spark.pyspark_api import DataSourceReader, InputPartition
from everlog.spark.snapshot import pack, target_bytes
from everlog.spark.source_options import known_options, number_above_0, place_of
from everlog.spark.worker_process import settle

BATCH_ROWS = 32_768
OPTIONS = {
    "path": "the table: a directory or s3://bucket/prefix",
    "columns": "the columns to read",
    "tasks": "about how many tasks read",
}


@dataclass(frozen=True, slots=True)
class TableFileSlice:
    """A file of the table."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A version of a table: its columns and its files."""

    uri: str
    schema: pa.Schema
    files: tuple[TableFileSlice, ...]
    tasks: int | None = None


@dataclass
class TablePartition(InputPartition):
    """The files that one task reads."""

    files: tuple[TableFileSlice, ...]


def is_plain_table(location: Location) -> bool:
    """Return whether this is a Delta table, and not that of a store."""
    options = dict(location.options) or None
    if not DeltaTable.is_deltatable(location.uri, options):
        return False
    return FORMAT_PROPERTY not in DeltaTable(location.uri, storage_options=options).metadata().configuration


def plan_table(given: Mapping[str, str]) -> TablePlan:
    """Return what a frame with these options reads of a table."""
    options = known_options(given, OPTIONS)
    location = locate(place_of(options["path"]))
    table = DeltaTable(location.uri, storage_options=dict(location.options) or None)
    features = set(table.protocol().reader_features or ())
    if table.metadata().partition_columns or features & {"deletionVectors", "columnMapping"}:
        raise UsageError(
            f"{location.uri} has partitions, deletion vectors or mapped columns, which the sink does not write",
            hint="read it with a reader of Delta tables",
        )
    schema: pa.Schema = pa.schema(table.schema().to_arrow())
    wanted = [name.strip() for name in options["columns"].split(",")] if "columns" in options else schema.names
    unknown = [name for name in wanted if name not in schema.names]
    if unknown:
        raise UsageError(f"no column is called {unknown[0]}", hint=f"there are: {', '.join(schema.names)}")
    files: list[dict[str, Any]] = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    return TablePlan(
        location.uri,
        pa.schema([schema.field(name) for name in wanted]),
        tuple(TableFileSlice(file["path"], file["size_bytes"]) for file in files),
        number_above_0("tasks", options["tasks"]) if "tasks" in options else None,
    )


class TableReader(DataSourceReader):
    """Plans and reads the tasks of a frame."""

    def __init__(self, plan: TablePlan, schema: StructType) -> None:
        self.plan = plan
        self.columns = tuple(schema.names)

    def partitions(self) -> list[InputPartition]:
        """Return partitions of about equal size."""
        files = self.plan.files
        return [TablePartition(group) for group in pack(files, target_bytes(files, self.plan.tasks or task_count()))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, TablePartition):
            return
        settle()
        filesystem, root = locate(self.plan.uri).filesystem()
        schema = pa.schema([self.plan.schema.field(name) for name in self.columns])
        for file in partition.files:
            try:
                with filesystem.open_input_file(f"{root}/{file.path}") as source:
                    found = pq.ParquetFile(source, pre_buffer=True)
                    for batch in found.iter_batches(BATCH_ROWS, columns=list(self.columns), use_threads=False):
                        yield batch.select(list(self.columns)).cast(schema)
            except FileNotFoundError:
                raise Unavailable(
                    f"{file.path} is no longer in the table at {self.plan.uri}",
                    hint="it was vacuumed while it was read: load the frame again",
                ) from None
