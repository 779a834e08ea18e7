"""Reads a file of the table into memory, by rising offset, as the columns that records are made of.

Only rows whose topic is wanted are kept, and only pages or row groups that may have some are read. The columns are
those of the log, so the records made from them are the same.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from everlog.base import HAS_EXPIRY, QOS_SHIFT, RETAIN, Records, StorageError, TopicTable, assemble
from everlog.spark.lake.data_file import DataFile, are_apart
from everlog.spark.lake.table_layout import FILE_SCHEMA
from everlog.spark.lake.topic_reader import topic_rows
from everlog.topics import Filter, matches

_COLUMNS = ("offset", "timestamp", "topic", "qos", "retain", "expiry", "properties", "payload")
_SPAN = 0xFFFFFFFF  # the most that offsets and microseconds may span in a batch
_ROW_BYTES = 25  # for each record of a batch, without properties and payload
_BATCH_ROWS = 8192
_HELD_BYTES = 64 << 10  # for a file without rows


class LoadedFile:
    """The wanted rows of one file. Never changed once made, so any thread may read it."""

    def __init__(self, rows: pa.Table) -> None:
        order = pc.sort_indices(rows["offset"])
        whole = rows.take(order).combine_chunks()
        self.size_bytes = whole.nbytes + _HELD_BYTES
        self.offsets: npt.NDArray[np.int64] = np.asarray(whole["offset"])
        self.times: npt.NDArray[np.int64] = np.asarray(whole["timestamp"].cast(pa.int64()))
        self._flags = _flags(whole)
        self._topics, self.table = _topics(whole["topic"])
        self._property_ends, self._properties = _bytes_of(whole["properties"])
        self._payload_ends, self._payloads = _bytes_of(whole["payload"])

    def __len__(self) -> int:
        return len(self.offsets)

    def find(self, offset: int) -> int:
        """Return the first row at or after an offset."""
        return int(np.searchsorted(self.offsets, offset, "left"))

    def rows_within(self, first: int, max_records: int, max_bytes: int) -> int:
        """Return the row after as many as fit, at least one."""
        stop = min(len(self), first + max_records)
        sizes = self._payload_ends[first + 1 : stop + 1] - self._payload_ends[first]
        sizes = sizes + (self._property_ends[first + 1 : stop + 1] - self._property_ends[first])
        sizes += _ROW_BYTES * np.arange(1, len(sizes) + 1)
        return first + max(1, int(np.searchsorted(sizes, max_bytes, "right")))

    def records(self, first: int, stop: int) -> list[Records]:
        """Return rows as batches."""
        batches = []
        while first < stop:
            behind = min(stop, first + _BATCH_ROWS)
            behind = min(behind, int(np.searchsorted(self.times, self.times[first] + _SPAN, "right")))
            behind = min(behind, int(np.searchsorted(self.offsets, self.offsets[first] + _SPAN, "right")))
            batches.append(self._batch(first, behind))
            first = behind
        return batches

    def _batch(self, first: int, stop: int) -> Records:
        offsets = self.offsets[first:stop] - self.offsets[first]
        times = self.times[first:stop] - self.times[first]
        property_ends, properties = _part(self._property_ends, self._properties, first, stop)
        payload_ends, payloads = _part(self._payload_ends, self._payloads, first, stop)
        return assemble(
            int(self.offsets[first]),
            int(self.times[first]),
            None if offsets[-1] == len(offsets) - 1 else offsets.astype("<u4").tobytes(),
            times.astype("<u4").tobytes(),
            self._topics[first:stop].tobytes(),
            self._flags[first:stop].tobytes(),
            property_ends if properties else None,
            properties,
            payload_ends,
            payloads,
            self.table,
        )


def load_files(
    filesystem: fs.FileSystem, root: str, files: Sequence[DataFile], filters: Sequence[Filter] | None
) -> LoadedFile:
    """Load the rows of files of one shard whose topic matches any of the filters; None for all."""
    return LoadedFile(pa.concat_tables([_load(filesystem, root, file, filters) for file in files]))


def _load(filesystem: fs.FileSystem, root: str, data: DataFile, filters: Sequence[Filter] | None) -> pa.Table:
    path = data.path
    found = None if filters is None else topic_rows(filesystem, root, path, filters)
    if found is not None:
        parts = list(found.read(filesystem, f"{root}/{path}", 0, _COLUMNS))
        return _plain(pa.concat_tables(parts) if parts else _no_rows())
    with filesystem.open_input_file(f"{root}/{path}") as source:
        if data.is_foreign:
            return _load_foreign(source, data, filters)
        file = pq.ParquetFile(source, read_dictionary=["topic"], pre_buffer=True)
        missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise StorageError(f"{path} has no column {missing[0]}", hint="it is not a file of an Everlog table")
        if filters is None:
            return _plain(file.read(columns=list(_COLUMNS), use_threads=False))
        parts = [
            file.read_row_group(number, columns=list(_COLUMNS), use_threads=False).filter(mask)
            for number, mask in wanted_groups(file, range(file.num_row_groups), filters)
        ]
        return _plain(pa.concat_tables(parts) if parts else _no_rows())


def _plain(rows: pa.Table) -> pa.Table:
    """Return rows with the columns of ours, so that those of several files go together."""
    at = rows.schema.get_field_index("topic")
    if pa.types.is_dictionary(rows.schema.field(at).type):
        return rows
    return rows.set_column(at, "topic", rows["topic"].dictionary_encode())


def _load_foreign(source: pa.NativeFile, data: DataFile, filters: Sequence[Filter] | None) -> pa.Table:
    """Load what a file that another program wrote has of a shard."""
    rows = own_rows(pq.ParquetFile(source, pre_buffer=True).read(columns=["shard", *_COLUMNS], use_threads=False))
    rows = rows.filter(pc.equal(rows["shard"], data.shard)).select(list(_COLUMNS))
    if filters is not None:
        rows = rows.filter(wanted_mask(rows["topic"], filters))
    return _plain(rows)


def own_rows(rows: pa.Table) -> pa.Table:
    """Return rows that another program wrote with the types of ours."""
    return rows.cast(pa.schema([FILE_SCHEMA.field(name) for name in rows.column_names]))


def wanted_mask(topics: pa.ChunkedArray, filters: Sequence[Filter]) -> pa.Array:
    """Return which rows have wanted topics."""
    encoded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    mask = _wanted_rows(encoded, _matcher(filters))
    return pa.repeat(pa.scalar(False), len(topics)) if mask is None else mask


def wanted_groups(
    file: pq.ParquetFile, groups: Iterable[int], filters: Sequence[Filter]
) -> Iterator[tuple[int, pa.Array]]:
    """Yield the row groups that hold wanted topics, by their statistics and their topics, and a mask of their rows."""
    wanted = _matcher(filters)
    for number in groups:
        if _may_match(file.metadata.row_group(number), filters):
            topics = file.read_row_group(number, columns=["topic"], use_threads=False)["topic"]
            mask = _wanted_rows(topics, wanted)
            if mask is not None:
                yield number, mask


def times_of(filesystem: fs.FileSystem, path: str, shard: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offsets of a shard in a file in order, and their times."""
    columns = ["shard", "offset", "timestamp"]
    rows = pq.read_table(path, columns=columns, filesystem=filesystem, partitioning=None)
    rows = rows.filter(pc.equal(rows["shard"], shard))
    offsets, times = np.asarray(rows["offset"]), np.asarray(rows["timestamp"].cast(pa.int64()))
    order = np.argsort(offsets)
    return offsets[order], times[order]


def position_at(
    files: Sequence[DataFile], time_us: int, end: int, filesystem: Callable[[], tuple[fs.FileSystem, str]]
) -> int:
    """Return the offset of the first record in a shard's files that is not older than a time, or `end`."""
    if not are_apart(files):
        return _first_of_all(files, time_us, end, filesystem)
    number = bisect_left(files, time_us, key=lambda file: file.last_time)
    if number == len(files):
        return end
    if files[number].first_time >= time_us:
        return files[number].first_offset
    system, root = filesystem()
    offsets, times = times_of(system, f"{root}/{files[number].path}", files[number].shard)
    return int(offsets[np.searchsorted(times, time_us, "left")])


def _first_of_all(
    files: Sequence[DataFile], time_us: int, end: int, filesystem: Callable[[], tuple[fs.FileSystem, str]]
) -> int:
    """Return the same where files overlap: the least of what each of them has."""
    found = end
    for file in sorted(files, key=lambda file: file.first_offset):
        if file.last_time < time_us or file.first_offset >= found:
            continue
        if file.first_time >= time_us and not file.is_foreign:
            found = file.first_offset
            continue
        system, root = filesystem()
        offsets, times = times_of(system, f"{root}/{file.path}", file.shard)
        number = int(np.searchsorted(times, time_us, "left"))
        if number < len(offsets):
            found = min(found, int(offsets[number]))
    return found


def fixed_prefix(flt: Filter) -> str:
    """Return the text that every matching topic begins with; `a/#` matches `a` too, so it has no slash at its end."""
    levels = []
    for level in flt.levels:
        if level in ("+", "#"):
            break
        levels.append(level)
    return "/".join(levels)


def range_may_match(filters: Sequence[Filter], low: str, high: str) -> bool:
    """Return whether a topic from `low` to `high`, in the order of their bytes, can match a filter."""
    for flt in filters:
        prefix = fixed_prefix(flt).encode()
        if low.encode()[: len(prefix)] <= prefix <= high.encode():
            return True
    return False


def group_bounds(group: pq.RowGroupMetaData, name: str) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column in a row group, or None if the file does not say."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name and column.statistics is not None and column.statistics.has_min_max:
            return column.statistics.min, column.statistics.max
    return None


def _may_match(group: pq.RowGroupMetaData, filters: Sequence[Filter]) -> bool:
    bounds = group_bounds(group, "topic")
    return bounds is None or range_may_match(filters, *bounds)


def _matcher(filters: Sequence[Filter]) -> Callable[[str], bool]:
    known: dict[str, bool] = {}

    def wanted(topic: str) -> bool:
        if topic not in known:
            known[topic] = any(matches(flt, topic) for flt in filters)
        return known[topic]

    return wanted


def _wanted_rows(topics: pa.ChunkedArray, wanted: Callable[[str], bool]) -> pa.Array | None:
    """Return a mask of the wanted rows, or None when there are none."""
    whole = single_array(topics.unify_dictionaries())
    chosen = pa.array([wanted(name) for name in whole.dictionary.to_pylist()], pa.bool_())
    mask = chosen.take(whole.indices)
    return mask if pc.any(mask).as_py() else None


def _no_rows() -> pa.Table:
    return pa.schema([FILE_SCHEMA.field(name) for name in _COLUMNS]).empty_table()


def single_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        return whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
    return whole


def _flags(rows: pa.Table) -> npt.NDArray[np.uint8]:
    flags = np.asarray(rows["qos"]).astype(np.uint8) << np.uint8(QOS_SHIFT)
    flags |= np.asarray(rows["retain"]).astype(np.uint8) * np.uint8(RETAIN)
    flags |= np.asarray(rows["expiry"].is_valid()).astype(np.uint8) * np.uint8(HAS_EXPIRY)
    return flags


def _topics(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint32], TopicTable]:
    """Return the rows' topics as ids of a table of names."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = single_array(encoded.unify_dictionaries())
    table = TopicTable(0, 1 << 30, 1 << 31)
    ids = np.array([table.intern(name.encode()) for name in whole.dictionary.to_pylist()], np.uint32)
    return ids[np.asarray(whole.indices)] if len(whole) else ids, table


def _bytes_of(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return where each value ends, counted from the first byte, and the bytes; null is empty."""
    whole = single_array(column).cast(pa.large_binary())
    if whole.null_count:
        whole = pc.fill_null(whole, b"")
    count = len(whole)
    if count == 0:
        return np.zeros(1, np.int64), memoryview(b"")
    _, ends, data = whole.buffers()
    numbers = np.frombuffer(ends, np.int64)[whole.offset : whole.offset + count + 1]
    return numbers, memoryview(b"" if data is None else data)


def _part(ends: npt.NDArray[np.int64], data: memoryview, first: int, stop: int) -> tuple[bytes, bytes]:
    """Return the ends of some rows, counted from the first of them, and their bytes."""
    begin, behind = int(ends[first]), int(ends[stop])
    return (ends[first : stop + 1] - begin).astype("<u4").tobytes(), bytes(data[begin:behind])
