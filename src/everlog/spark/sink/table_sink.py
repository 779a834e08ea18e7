"""A Delta table as a sink: tasks write files, the driver commits them together with the application and its batch.

A commit names its batch, and is not made if the table has that batch already: so a batch that Spark computes again adds
nothing, whether its driver died before the commit or after. Files that were not committed mean nothing; a vacuum
removes them.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everlog.base import Unavailable, UsageError
from everlog.spark.file_sync import sync_path
from everlog.spark.lake.data_file import WrittenFile
from everlog.spark.lake.file_check import check_files
from everlog.spark.lake.lake_table import sync_log
from everlog.spark.lake.location import Location
from everlog.spark.lake.table_layout import FORMAT_PROPERTY

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from pyspark.sql import DataFrame

TRIES = 5  # to commit, when others commit at the same time


@dataclass(frozen=True, slots=True)
class TableFile(WrittenFile):
    """A file of rows with any columns, and the statistics of those that files are skipped by."""

    modified_ms: int
    statistics: str


def write_batch(frame: "DataFrame", app: str, batch: int, **options: str) -> None:
    """Write a micro-batch once, with the options of `df.write.format("everlog")`; for `foreachBatch`, in any mode."""
    frame.write.format("everlog").mode("append").options(**options, app=app, batch=str(batch)).save()


def append_batch(frame: "DataFrame", table: str, app: str, batch: int) -> None:
    """Append a micro-batch to a Delta table once; for `foreachBatch`."""
    write_batch(frame, app, batch, table=table)


def write_file(batches: Iterable[pa.RecordBatch], location: Location, schema: pa.Schema) -> TableFile | None:
    """Write rows to a new file of the table, durable when this returns; returns None if there are no rows."""
    name = f"part-{uuid.uuid4().hex}.parquet"
    filesystem, root = location.filesystem()
    where = f"{root}/{name}"
    if location.is_local:
        os.makedirs(root, exist_ok=True)
    seen = _Bounds()
    with filesystem.open_output_stream(where) as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
            seen.add(batch)
    if not seen.rows:
        filesystem.delete_file(where)
        return None
    if location.is_local:
        sync_path(where)
        sync_path(root)
    size = int(filesystem.get_file_info(where).size)
    return TableFile(name, size, seen.rows, time.time_ns() // 1_000_000, seen.statistics())


def commit_files(
    location: Location, schema: pa.Schema, files: Sequence[TableFile], app: str, batch: int, *, overwrite: bool = False
) -> int | None:
    """Commit files as a batch of an application; returns the version, or None when the table had the batch.

    With `overwrite` they take the place of all that the table has.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction

    check_files(location, files)
    added: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size_bytes, {}, file.modified_ms, True, file.statistics) for file in files
    ]
    about = CommitProperties(
        custom_metadata={"userMetadata": f"everlog sink {app} {batch}"}, app_transactions=[Transaction(app, batch)]
    )
    for _ in range(TRIES):
        table = _open(location, schema)
        known = table.transaction_version(app)
        if known is not None and known >= batch:
            return None
        mode: Literal["append", "overwrite"] = "overwrite" if overwrite else "append"  # which removes what is there
        try:
            table.create_write_transaction(added, mode, schema, [], commit_properties=about)
        except CommitFailedError:
            continue  # another commit came first: look again whether it was this batch
        if location.is_local:
            sync_log(location.uri)
        table.update_incremental()
        return table.version()
    raise Unavailable(f"others commit to {location.uri} all the time", hint="start the query again")


def _open(location: Location, schema: pa.Schema) -> "DeltaTable":
    """Open the table, or make it; refuses one with other columns, and the table of a store."""
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import TableNotFoundError

    options = dict(location.options) or None
    try:
        table = DeltaTable(location.uri, storage_options=options)
    except TableNotFoundError:
        table = DeltaTable.create(location.uri, schema, mode="ignore", storage_options=options)
    if FORMAT_PROPERTY in table.metadata().configuration:
        raise UsageError(f"{location.uri} is what a store is compacted to", hint="give another table")
    if table.metadata().partition_columns:
        raise UsageError(f"{location.uri} is partitioned", hint="give another table")
    there, given = _columns(table.schema()), _columns(Schema.from_arrow(schema))
    if there != given:
        names = (", ".join(f"{name} {kind}" for name, kind in columns.items()) for columns in (there, given))
        raise UsageError(
            f"{location.uri} has the columns {next(names)}, and the rows have {next(names)}",
            hint="select the table's columns, or give another table",
        )
    return table


def _columns(schema: "Schema") -> dict[str, str]:
    """Return names and types; whether a column may be null is left to the table."""
    nested = ("array", "map", "struct")
    return {
        field.name: str(field.type) if field.type.type in nested else str(field.type.type) for field in schema.fields
    }


class _Bounds:
    """The smallest and largest value of columns that files are skipped by."""

    def __init__(self) -> None:
        self.rows = 0
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}
        self._nulls: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not (pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)):
                continue
            self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                low, high = self._low.get(field.name), self._high.get(field.name)
                self._low[field.name] = found["min"] if low is None else min(low, found["min"])
                self._high[field.name] = found["max"] if high is None else max(high, found["max"])

    def statistics(self) -> str:
        low, high = ({name: _plain(value) for name, value in each.items()} for each in (self._low, self._high))
        return json.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": self._nulls})


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
