"""Records that retention classes emptied in the log of a store: only offset and time are left of them.

A frame leaves such records out, so an audit asks the log itself. Once the log has dropped a segment, nothing tells
what was emptied in it: the table has only the other records.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from everlog.base import GONE, Records
from everlog.spark.source_options import place_of
from everlog.spark.store_cache import open_fresh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = "shard INT, offset BIGINT, us BIGINT"


def emptied_rows(messages: "DataFrame") -> "DataFrame | None":
    """Return shard, offset and time of emptied records in the log that a frame reads, or None if there are none."""
    data = _data_directory(messages)
    if data is None:
        return None
    found = [
        (data, shard, view.base_offset)
        for shard, log in enumerate(open_fresh(data).shards)
        for view in log.segments()
        if view.sealed and view.table.lookup(GONE) >= 0
    ]
    if not found:
        return None
    segments = messages.sparkSession.createDataFrame(found, "data STRING, shard INT, base BIGINT")
    return segments.mapInArrow(_read, _ROWS)


def _data_directory(messages: "DataFrame") -> str | None:
    """Return the data directory that a frame was loaded from, or None if it was not loaded from one."""
    plan: Any = messages._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    places = {_path(leaves.apply(number)) for number in range(leaves.size())}
    place = places.pop() if len(places) == 1 else None
    if place is None:
        return None
    path = Path(place_of(place))
    return str(path.absolute()) if (path / "store").exists() else None


def _path(leaf: Any) -> str | None:
    """Return the option `path` of a scan, or None for another leaf of a plan."""
    if leaf.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    place = leaf.options().get("path")
    return None if place is None else str(place)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the emptied rows of segments; runs in a task."""
    for batch in batches:
        for row in batch.to_pylist():
            shard, base = row["shard"], row["base"]
            views = open_fresh(row["data"]).shards[shard].segments()
            for view in (one for one in views if one.base_offset == base):
                for number in range(len(view.batches())):
                    yield from (_columns(shard, records) for records in view.read(number, number + 1))


def _columns(shard: int, records: Records) -> pa.RecordBatch:
    """Return the rows of a batch that have the topic of emptied records."""
    topics, times = (
        np.frombuffer(records.data, "<u4", records.count, records.start + at)
        for at in (records.layout.topics, records.layout.times)
    )
    rows = np.flatnonzero(topics == records.table.lookup(GONE))
    columns = (np.full(len(rows), shard), records.base_offset + rows, records.first_time + times[rows].astype("i8"))
    types = (pa.int32(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["shard", "offset", "us"])
