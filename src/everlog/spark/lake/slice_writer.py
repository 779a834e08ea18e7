"""The task of a compaction: reads a slice of the log, writes it as files of the table, and reports them.

The files mean nothing until the driver commits them, so a task may be run again, run twice at once, or die.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.location import Location
from everlog.spark.lake.parquet_writer import READ_COLUMNS, Codec, Writer
from everlog.spark.lake.row_order import Clustering
from everlog.spark.lake.table_layout import DAY_US, day_number
from everlog.spark.log_slices import OnDamage, ReadReport, read_slice
from everlog.spark.snapshot import Slice

FILE_BYTES = 512 << 20  # of rows in memory; beyond it the slice goes on in another file
BATCH_ROWS = 1 << 20  # usually all of a slice: joining batches later would copy the payloads once more
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A slice of the log and how to write it."""

    piece: Slice
    location: Location
    codec: Codec = "zstd"
    on_damage: OnDamage = "fail"
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True, slots=True)
class Written:
    """The files that a task wrote, and what it had to leave out."""

    files: tuple[DataFile, ...]
    damage: tuple[str, ...] = ()
    cpu_seconds: float = 0.0


def write_slice(task: WriteTask) -> Written:
    """Write one slice: a file a day, or several when it is large."""
    began = time.process_time()
    report = ReadReport()
    writer = Writer(task.location, Clustering.of_store(task.piece.path), task.codec)
    batches = read_slice(
        task.piece,
        READ_COLUMNS,
        on_damage=task.on_damage,
        report=report,
        batch_rows=BATCH_ROWS,
        batch_bytes=BATCH_BYTES,
    )
    files = [writer.write(rows, day) for day, rows in _by_file(_by_day(batches), task.file_bytes)]
    damage = tuple(str(damage) for damage in report.damage)
    return Written(tuple(files), damage, time.process_time() - began)


def _by_day(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches that lie within a day each; times never go back within a shard."""
    for batch in batches:
        times = np.asarray(batch["timestamp"].cast(pa.int64()))
        row = 0
        while row < len(times):
            day = day_number(int(times[row]))
            stop = int(np.searchsorted(times, (day + 1) * DAY_US, "left"))
            yield day, batch.slice(row, stop - row)
            row = stop


def _by_file(batches: Iterator[tuple[int, pa.RecordBatch]], file_bytes: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the day and rows of each file."""
    held: list[pa.RecordBatch] = []
    held_day, size = 0, 0
    for day, batch in batches:
        if held and (day != held_day or size + batch.nbytes > file_bytes):
            yield held_day, pa.Table.from_batches(held)
            held, size = [], 0
        held.append(batch)
        held_day, size = day, size + batch.nbytes
    if held:
        yield held_day, pa.Table.from_batches(held)
