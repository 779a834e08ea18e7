"""Slices of the lake table's files, for the part of history that lies there.

A shard's records below the table's end are read from the table, the others from the log: each once, though the log may
still have both. The snapshot names a version of the table, whose files stay until `vacuum` removes those that were
replaced long enough ago.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from everlog.base import StorageError, Unavailable
from everlog.spark.cluster_place import ClusterPlace
from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.file_reader import (
    group_bounds,
    own_rows,
    position_at,
    range_may_match,
    wanted_groups,
    wanted_mask,
)
from everlog.spark.lake.identity import check_same_history, find_recorded
from everlog.spark.lake.lake_table import Lake, find_lake
from everlog.spark.lake.location import Location, locate
from everlog.spark.lake.topic_reader import count_rows, topic_rows
from everlog.spark.log_slices import BATCH_ROWS, ReadReport, parse_filters
from everlog.spark.schema import SCHEMA
from everlog.spark.snapshot import ROW_COST, Snapshot
from everlog.store import MAX_SHARDS, LakeRecord, Lost
from everlog.topics import Filter

LEAST_BYTES = 128 << 10  # about what is read to find a single row in a file by its topic


@dataclass(frozen=True, slots=True)
class LakeSlice:
    """Offsets of one shard from a file of the table."""

    uri: str
    path: str
    shard: int
    start: int
    stop: int
    size_bytes: int
    first_topic: str
    last_topic: str
    is_foreign: bool = False  # another program wrote the file, which may have rows of other shards


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A version of the table: its files by shard and offset, and where it begins and ends in each shard."""

    uri: str
    files: tuple[DataFile, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    lost: tuple[Lost, ...] = ()  # holes in it, by shard and offset

    def position_at(self, shard: int, time_us: int) -> int:
        """Return the first record of a shard in the table that is not older than a time, or its end there."""
        files = [file for file in self.files if file.shard == shard]
        return position_at(files, time_us, self.ends[shard], locate(self.uri).filesystem)


def take_lake_snapshot(record: LakeRecord, snapshot: Snapshot, cluster: ClusterPlace | None = None) -> LakeSnapshot:
    """Return the table that a data directory names, as it is now."""
    lake = find_recorded(record, None if cluster is None else dict(cluster.bucket.options))
    if lake.store != snapshot.identity:
        raise StorageError(
            f"{record.table} is the table of another store ({lake.store}, not {snapshot.identity})",
            hint='remove lake.json from the data directory, or set the option "tier" to "log"',
        )
    found = _snapshot_of(lake, lake.load(), len(snapshot.shards))
    moved = {shard for shard, end in enumerate(found.ends) if end > record.ends.get(shard, 0)}
    if moved:  # and not known by whom
        check_same_history(found.uri, found.files, snapshot, moved, cluster)
    return found


def take_table_snapshot(place: str) -> tuple[str, LakeSnapshot]:
    """Return the store that a table belongs to, and the table as it is now, to be read without its log."""
    lake = find_lake(locate(place))
    table = lake.load()
    ends = lake.ends(range(MAX_SHARDS), table)
    return lake.store, _snapshot_of(lake, table, 1 + max((shard for shard, end in ends.items() if end), default=0))


def _snapshot_of(lake: Lake, table: DeltaTable, shards: int) -> LakeSnapshot:
    files = lake.files(table)
    ends = tuple(end or 0 for end in lake.ends(range(shards), table).values())
    starts = lake.starts(range(shards), files, table)
    return LakeSnapshot(lake.location.uri, tuple(files), tuple(starts.values()), ends, tuple(lake.lost(starts, table)))


def plan_lake(
    lake: LakeSnapshot, ranges: Mapping[int, tuple[int, int]], filters: Sequence[str] | None = None
) -> list[LakeSlice]:
    """Return one slice for each file that holds wanted offsets; with filters, for those that may hold wanted topics."""
    wanted = None if filters is None else parse_filters(filters)
    place = locate(lake.uri)
    is_local, (filesystem, root) = place.is_local, place.filesystem()
    slices = []
    for file in lake.files:
        first, last = ranges.get(file.shard, (0, 0))
        start, stop = max(first, file.first_offset), min(last, file.last_offset + 1)
        topics = (file.first_topic, file.last_topic)
        if start >= stop or (wanted is not None and not range_may_match(wanted, *topics)):
            continue
        piece = LakeSlice(lake.uri, file.path, file.shard, start, stop, file.size_bytes, *topics, file.is_foreign)
        if wanted is not None and is_local:  # a bucket would take its time to answer for every file
            rows = count_rows(filesystem, root, file.path, wanted)
            if rows == 0:
                continue
            piece = piece if rows is None else replace(piece, size_bytes=_bytes_of(file, rows))
        slices.append(piece)
    return slices


def _bytes_of(file: DataFile, rows: int) -> int:
    """Return about how much is read to find so many rows by their topics."""
    return min(file.size_bytes, LEAST_BYTES + ROW_COST * file.size_bytes * rows // file.rows)


def read_lake_slice(
    piece: LakeSlice,
    columns: Sequence[str],
    filters: Sequence[str] | None = None,
    *,
    report: ReadReport | None = None,
    location: Location | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice whose topic matches any of the filters, in the order of the file."""
    report = report if report is not None else ReadReport()
    wanted = None if filters is None else parse_filters(filters)
    if wanted is not None and not range_may_match(wanted, piece.first_topic, piece.last_topic):
        return
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    filesystem, root = (location or locate(piece.uri)).filesystem()
    found = None if wanted is None else topic_rows(filesystem, root, piece.path, wanted)
    asked = dict.fromkeys((*columns, "offset", *(("shard", "topic") if piece.is_foreign else ())))
    batches: Iterator[pa.RecordBatch]
    try:
        if found is not None and not found.everything:
            rows = found.read(filesystem, f"{root}/{piece.path}", piece.shard, list(asked))
            batches = (batch for table in rows for batch in table.to_batches(BATCH_ROWS))
        else:
            batches = _batches(filesystem, root, piece, asked, None if found is not None else wanted)
        for batch in batches:
            kept = _within(batch, piece)
            if kept.num_rows:
                report.rows += kept.num_rows
                yield pa.RecordBatch.from_arrays([_column(kept, field) for field in schema], schema=schema)
    except FileNotFoundError:
        raise Unavailable(
            f"{piece.path} is no longer in the table at {piece.uri}",
            hint="it was vacuumed while it was read: load the frame again, and vacuum less eagerly",
        ) from None


def _batches(
    filesystem: fs.FileSystem, root: str, piece: LakeSlice, asked: Iterable[str], wanted: tuple[Filter, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield at least the wanted rows, from the row groups that may hold some by their statistics."""
    with filesystem.open_input_file(f"{root}/{piece.path}") as source:
        if piece.is_foreign:
            yield from _foreign_batches(pq.ParquetFile(source, pre_buffer=True), piece, list(asked), wanted)
            return
        file = pq.ParquetFile(source, read_dictionary=["topic"] if wanted is not None else None, pre_buffer=True)
        there = [name for name in asked if name in file.schema_arrow.names]
        groups = [n for n in range(file.num_row_groups) if _overlaps(file.metadata.row_group(n), piece)]
        if wanted is None:
            yield from file.iter_batches(BATCH_ROWS, row_groups=groups, columns=there, use_threads=False)
            return
        for number, mask in wanted_groups(file, groups, wanted):
            row = 0
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[number], columns=there, use_threads=False):
                yield batch.filter(mask.slice(row, batch.num_rows))
                row += batch.num_rows


def _foreign_batches(
    file: pq.ParquetFile, piece: LakeSlice, asked: list[str], wanted: tuple[Filter, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a shard from a file that another program wrote, in types of its own."""
    groups = [n for n in range(file.num_row_groups) if _overlaps(file.metadata.row_group(n), piece)]
    there = [name for name in asked if name in file.schema_arrow.names]
    for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=there, use_threads=False):
        rows = own_rows(pa.Table.from_batches([batch]))
        rows = rows.filter(pc.equal(rows["shard"], piece.shard))
        if wanted is not None:
            rows = rows.filter(wanted_mask(rows["topic"], wanted))
        yield from rows.to_batches()


def _overlaps(group: pq.RowGroupMetaData, piece: LakeSlice) -> bool:
    """Return whether a row group may hold offsets of the slice."""
    bounds = group_bounds(group, "offset")
    return bounds is None or (bounds[0] < piece.stop and bounds[1] >= piece.start)


def _within(batch: pa.RecordBatch, piece: LakeSlice) -> pa.RecordBatch:
    """Return the rows of a batch that belong to the slice."""
    offsets = batch.column("offset")
    bounds = pc.min_max(offsets).as_py()
    if bounds["min"] is not None and (bounds["min"] < piece.start or bounds["max"] >= piece.stop):
        return batch.filter(pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.stop)))
    return batch


def _column(rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return a column as the schema has it; null in files that were written before there was such a column."""
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    return column if column.type == field.type else column.cast(field.type)
