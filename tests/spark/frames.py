"""Frames over log and table without Spark: compaction, retention, and the rows that a frame has."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.spark.in_process import InProcess
from tests.spark.lake_data import NOON_US

from everlog.commitlog import LogSettings
from everlog.spark import COLUMNS, Compaction, CompactionOptions, Slice, locate, read_slice
from everlog.spark.frame_plan import FramePlan, plan_frame
from everlog.spark.lake_slices import read_lake_slice
from everlog.spark.source_options import SourceOptions
from everlog.store import LogStore


def compact(data: Path, **options: Any) -> Compaction:
    made = Compaction(
        str(data), locate(str(data / "lake")), InProcess(), CompactionOptions(group_bytes=60_000, **options)
    )
    made.run()
    return made


def drop_log(data: Path) -> None:
    """Have retention remove what it may of the log."""
    store = LogStore.open(str(data), LogSettings(retention_bytes=1), background=False)
    store.run_retention(NOON_US)
    store.close()


def planned(data: Path, **options: Any) -> FramePlan:
    return plan_frame(SourceOptions(str(data), **options), NOON_US)


def batches(found: FramePlan, columns: Sequence[str], topics: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    for piece in found.slices(4):
        if isinstance(piece, Slice):
            yield from read_slice(piece, columns, topics)
        else:
            yield from read_lake_slice(piece, columns, topics)


def rows(found: FramePlan, columns: Sequence[str] = COLUMNS, topics: Sequence[str] | None = None) -> pa.Table:
    table = pa.Table.from_batches(list(batches(found, columns, topics)))
    table.validate(full=True)
    return table


def kinds(found: FramePlan) -> set[type]:
    return {type(piece) for piece in found.slices(4)}
