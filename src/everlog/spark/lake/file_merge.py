"""Merges small files into larger ones: a pure plan, and the task that carries it out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.location import Location
from everlog.spark.lake.parquet_writer import READ_COLUMNS, Codec, Writer
from everlog.spark.lake.row_order import Clustering
from everlog.spark.lake.table_layout import FILE_SCHEMA

SMALL_BYTES = 32 << 20  # a file below this is worth merging
MERGED_BYTES = 96 << 20  # at most, of the files that are merged into one
MERGED_ROWS = 4 << 20

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Neighbouring files of one shard and day, and how to write the one that takes their place."""

    files: tuple[DataFile, ...]
    location: Location
    data: str
    codec: Codec = "zstd"


def plan_merges(
    files: Sequence[DataFile],
    *,
    small_bytes: int = SMALL_BYTES,
    merged_bytes: int = MERGED_BYTES,
    merged_rows: int = MERGED_ROWS,
) -> list[tuple[DataFile, ...]]:
    """Return runs of small files that follow each other by offset in one shard and day; none with several shards."""
    listed = Counter(file.path for file in files)
    alone = [file for file in files if listed[file.path] == 1]
    ordered = sorted(alone, key=lambda file: (file.shard, file.first_offset))
    runs: list[tuple[DataFile, ...]] = []
    for _, neighbours in groupby(ordered, key=lambda file: (file.shard, file.day)):
        run: list[DataFile] = []
        for file in neighbours:
            small = file.size_bytes < small_bytes
            fits = sum(one.size_bytes for one in run) + file.size_bytes <= merged_bytes
            if run and not (small and fits and sum(one.rows for one in run) + file.rows <= merged_rows):
                runs.append(tuple(run))
                run = []
            if small:
                run.append(file)
        runs.append(tuple(run))
    return [run for run in runs if len(run) > 1]


def merge_files(task: MergeTask) -> DataFile:
    """Write the rows of several files as one."""
    filesystem, root = task.location.filesystem()
    parts = []
    wanted = pa.schema([FILE_SCHEMA.field(name) for name in READ_COLUMNS])
    for file in task.files:
        path = f"{root}/{file.path}"
        rows = pq.read_table(path, filesystem=filesystem, columns=wanted.names, partitioning=None)
        parts.append(rows.cast(wanted))
    rows = pa.concat_tables(parts)
    rows = rows.take(pc.sort_indices(rows["offset"]))
    day = (date.fromisoformat(task.files[0].day) - _EPOCH).days
    return Writer(task.location, Clustering.of_store(task.data), task.codec).write(rows, day)
