"""Writes rows as a Parquet file of the table: sorted, each column encoded to cost little, and made durable."""

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everlog.spark.file_sync import sync_path
from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.file_reader import single_array
from everlog.spark.lake.location import Location
from everlog.spark.lake.page_map import read_page_map
from everlog.spark.lake.row_order import Clustering, order_of
from everlog.spark.lake.table_layout import FILE_SCHEMA, data_path, day_text, topic_path
from everlog.spark.lake.topic_file import pack_topic_file

Codec = Literal["zstd", "snappy"]
Ranks = npt.NDArray[np.uint32]
CODECS: tuple[Codec, ...] = ("zstd", "snappy")
ROW_GROUP = 128 * 1024
ZSTD_LEVEL = 1
WRITE_BATCH = 2 * 1024  # values that are encoded at once; at Arrow's usual 1,024 lists cost a fifth more
PAGE_BYTES = 128 << 10  # of values; readers of one topic read its pages, and a page never ends within a WRITE_BATCH
PAGE_ROWS = 8 * 1024
TOPIC_ROWS = 4  # on average, at least, for a topic file; with fewer it would be about as large as the data

# Levels are made from topics when a file is written; both are dictionaries, which are written as they are.
READ_COLUMNS = tuple(name for name in FILE_SCHEMA.names if name != "levels")
_MADE = ("topic", "levels")
_LEVELS = pa.list_(pa.field("element", pa.dictionary(pa.int32(), pa.string()), nullable=False))
_WRITTEN = pa.schema(
    [
        field.with_type(_LEVELS)
        if field.name == "levels"
        else field.with_type(pa.dictionary(pa.int32(), pa.string()))
        if field.name == "topic"
        else field
        for field in FILE_SCHEMA
    ]
)
_DICTIONARIES = [
    "shard",
    "topic",
    "levels.list.element",
    "qos",
    "content_type",
    "response_topic",
    "user_properties.key_value.key",
    "user_properties.key_value.value",
    "client_id",
]
_DELTAS = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_STATISTICS = ["shard", "offset", "timestamp", "topic", "qos", "retain", "expiry", "content_type", "response_topic"]


@dataclass(frozen=True, slots=True)
class Writer:
    """How and where files are written."""

    location: Location
    clustering: Clustering
    codec: Codec = "zstd"

    def write(self, rows: pa.Table, day: int) -> DataFile:
        """Write a file of rows of one shard and day, which come by rising offset with READ_COLUMNS."""
        offsets, times = np.asarray(rows["offset"]), np.asarray(rows["timestamp"].cast(pa.int64()))
        topics = single_array(rows["topic"].dictionary_encode().unify_dictionaries())
        names = topics.dictionary
        shard = rows["shard"][0].as_py()
        day_name = day_text(day)
        path = data_path(day_name, shard, int(offsets[0]), uuid.uuid4().hex)
        ranks = self.clustering.ranks(names)
        size = self._store(path, _row_groups(rows, topics, ranks))
        if len(names) * TOPIC_ROWS <= rows.num_rows:
            self._store_topics(path, rows, topics, ranks)
        bounds = pc.min_max(names)
        qos = pc.min_max(rows["qos"])
        return DataFile(
            path=path,
            size_bytes=size,
            rows=rows.num_rows,
            shard=shard,
            day=day_name,
            first_offset=int(offsets[0]),
            last_offset=int(offsets[-1]),
            first_time=int(times[0]),
            last_time=int(times[-1]),
            first_topic=bounds["min"].as_py(),
            last_topic=bounds["max"].as_py(),
            modified_ms=time.time_ns() // 1_000_000,
            qos=(qos["min"].as_py(), qos["max"].as_py()),
        )

    def _store(self, path: str, groups: Iterable[pa.Table]) -> int:
        """Write rows to a new file, durable when this returns, and return its size."""
        filesystem, root = self.location.filesystem()
        where = f"{root}/{path}"
        if not self.location.is_local:
            with filesystem.open_output_stream(where) as sink:
                self._encode(groups, sink)
            return int(filesystem.get_file_info(where).size)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with pa.OSFile(where, "wb") as sink:
            self._encode(groups, sink)
        for synced in (where, os.path.dirname(where), root):
            sync_path(synced)
        return os.path.getsize(where)

    def _store_topics(self, path: str, rows: pa.Table, topics: pa.DictionaryArray, ranks: Ranks) -> None:
        """Write the topic file of a file that is written. It is not synced: if it is lost, the data file has it all."""
        filesystem, root = self.location.filesystem()
        with filesystem.open_input_file(f"{root}/{path}") as source:
            size, pages = int(source.size()), read_page_map(source)
        names = topics.dictionary.take(pa.array(np.argsort(ranks))).to_pylist()
        counts = np.bincount(ranks[np.asarray(topics.indices)], minlength=len(names))
        starts = np.concatenate(([0], np.cumsum(counts)))
        nulls = [name for name in rows.column_names if rows[name].null_count == rows.num_rows]
        where = f"{root}/{topic_path(path)}"
        if self.location.is_local:
            os.makedirs(os.path.dirname(where), exist_ok=True)
        with filesystem.open_output_stream(where) as sink:
            sink.write(pack_topic_file(names, starts, pages, nulls, size))

    def _encode(self, groups: Iterable[pa.Table], sink: pa.NativeFile) -> None:
        with pq.ParquetWriter(
            sink,
            _WRITTEN,
            write_batch_size=WRITE_BATCH,
            data_page_size=PAGE_BYTES,
            max_rows_per_page=PAGE_ROWS,
            compression=self.codec,
            compression_level=ZSTD_LEVEL if self.codec == "zstd" else None,
            use_dictionary=_DICTIONARIES,
            column_encoding=_DELTAS,
            write_statistics=_STATISTICS,
            write_page_index=True,
            store_schema=False,  # or readers would see our dictionaries
        ) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=ROW_GROUP)


def _row_groups(rows: pa.Table, topics: pa.DictionaryArray, ranks: Ranks) -> Iterator[pa.Table]:
    """Yield the rows in order with all columns, a row group at a time, each with the names of its own topics only."""
    order, placed = order_of(np.asarray(topics.indices), ranks)
    names = topics.dictionary.take(pa.array(np.argsort(ranks)))
    whole = {field.name: single_array(rows[field.name]) for field in _WRITTEN if field.name not in _MADE}
    for start in range(0, len(order), ROW_GROUP):
        some = pa.array(order[start : start + ROW_GROUP])
        places = placed[start : start + ROW_GROUP]
        used = names.slice(int(places[0]), int(places[-1] - places[0]) + 1)
        ids = pa.array(places - places[0])
        lists = pc.split_pattern(used, "/")
        levels = pa.ListArray.from_arrays(lists.offsets, lists.values.dictionary_encode(), type=_LEVELS)
        made = {"topic": pa.DictionaryArray.from_arrays(ids, used), "levels": levels.take(ids)}
        columns = [made[name] if name in made else _taken(whole[name], some) for name in _WRITTEN.names]
        yield pa.table(columns, schema=_WRITTEN)


def _taken(column: pa.Array, rows: pa.Array) -> pa.Array:
    """Return some values of a column; a column of nulls need not be looked at."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    return column.take(rows)
