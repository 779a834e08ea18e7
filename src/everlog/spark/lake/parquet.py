"""Rows as a Parquet file of the table: put in order, encoded so that each column costs little, and made to last."""

import os
import time
import uuid
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everlog.spark.lake.clustering import Clustering, order_of
from everlog.spark.lake.datafile import DataFile
from everlog.spark.lake.layout import FILE_SCHEMA, data_path, day_text
from everlog.spark.lake.location import Location

Codec = Literal["zstd", "snappy"]
CODECS: tuple[Codec, ...] = ("zstd", "snappy")
ROW_GROUP = 128 * 1024
ZSTD_LEVEL = 1
WRITE_BATCH = 64 * 1024  # values that are encoded at once; at Arrow's usual 1,024 lists cost a fifth more

# Levels are made of topics when a file is written. They come as dictionaries, which are written as they are.
READ_COLUMNS = tuple(name for name in FILE_SCHEMA.names if name != "levels")
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
        """One file of rows of one shard and day, which come by rising offset with READ_COLUMNS."""
        offsets, times = np.asarray(rows["offset"]), np.asarray(rows["timestamp"].cast(pa.int64()))
        topics = rows["topic"].dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(topics, pa.ChunkedArray):
            topics = topics.chunk(0)
        names = topics.dictionary
        ranks = self.clustering.ranks(names)
        order = order_of(np.asarray(topics.indices), ranks)
        shard = rows["shard"][0].as_py()
        day_name = day_text(day)
        path = data_path(day_name, shard, int(offsets[0]), uuid.uuid4().hex)
        size = self._store(path, _ordered(rows, topics, pa.array(order)))
        bounds = pc.min_max(names)
        qos = pc.min_max(rows["qos"])
        return DataFile(
            path=path,
            bytes=size,
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

    def _store(self, path: str, rows: pa.Table) -> int:
        """Write rows to a new file and have it on the disk, or in the bucket; its size."""
        filesystem, root = self.location.filesystem()
        where = f"{root}/{path}"
        if not self.location.is_local:
            with filesystem.open_output_stream(where) as sink:
                self._encode(rows, sink)
            return int(filesystem.get_file_info(where).size)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with pa.OSFile(where, "wb") as sink:
            self._encode(rows, sink)
        _sync(where)
        _sync(os.path.dirname(where))
        _sync(root)
        return os.path.getsize(where)

    def _encode(self, rows: pa.Table, sink: pa.NativeFile) -> None:
        pq.write_table(
            rows,
            sink,
            row_group_size=ROW_GROUP,
            write_batch_size=WRITE_BATCH,
            compression=self.codec,
            compression_level=ZSTD_LEVEL if self.codec == "zstd" else None,
            use_dictionary=_DICTIONARIES,
            column_encoding=_DELTAS,
            write_statistics=_STATISTICS,
            write_page_index=True,
            store_schema=False,  # else readers would be told of our dictionaries
        )


def _ordered(rows: pa.Table, topics: pa.DictionaryArray, order: pa.Array) -> pa.Table:
    """The rows in their place, with all columns."""
    ids = topics.indices.take(order)
    lists = pc.split_pattern(topics.dictionary, "/")
    levels = pa.ListArray.from_arrays(lists.offsets, lists.values.dictionary_encode(), type=_LEVELS)
    columns = []
    for field in _WRITTEN:
        if field.name == "topic":
            columns.append(pa.DictionaryArray.from_arrays(ids, topics.dictionary))
        elif field.name == "levels":
            columns.append(levels.take(ids))
        else:
            columns.append(_taken(rows[field.name], order))
    return pa.table(columns, schema=_WRITTEN)


def _taken(column: pa.ChunkedArray, order: pa.Array) -> pa.Array:
    """A column's values in another order; one that is all null needs no order."""
    if column.null_count == len(column):
        return pa.nulls(len(column), column.type)
    whole = column.combine_chunks()
    return (whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole).take(order)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
