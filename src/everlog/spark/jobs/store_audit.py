"""Checks a store alone: every offset of a shard is there once, and time never goes back.

Tasks turn what they read into runs, stretches of rising offsets and times, and the driver joins the runs: a log is read
in one pass, without sorting. A table that is clustered by topic has hardly any runs, so it is sorted first, as is a log
in which retention classes emptied records: their offsets are put back, as they are not missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from everlog.spark.jobs.emptied_records import emptied_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_RUNS = 200_000  # on the driver; with more, rows are sorted first
MAX_EXAMPLES = 20  # of each finding of a shard

_RUNS = "shard INT, first BIGINT, last BIGINT, first_us BIGINT, last_us BIGINT, records BIGINT, emptied BIGINT"
_NAMES = ["shard", "first", "last", "first_us", "last_us", "records", "emptied"]


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets that rise, one by one unless the frame was filtered, and whose times never go back."""

    shard: int
    first: int
    last: int
    first_us: int
    last_us: int
    records: int
    emptied: int = 0  # of the offsets, beside the records


@dataclass(frozen=True, slots=True)
class ShardAudit:
    """What was found in a shard; ranges of offsets are from the first to the last, both included."""

    shard: int
    records: int
    first: int
    last: int
    emptied: int  # offsets whose records were emptied as their topic's time was over
    missing: int
    duplicated: int
    time_back: int  # how often
    missing_ranges: tuple[tuple[int, int], ...]
    duplicated_ranges: tuple[tuple[int, int], ...]
    back_at: tuple[tuple[int, int], ...]  # an offset, and by how many microseconds it is older than the one before

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.duplicated or self.time_back)


def audit_store(messages: "DataFrame", *, filtered: bool = False, max_runs: int = MAX_RUNS) -> list[ShardAudit]:
    """Check a frame with the columns shard, offset and timestamp; a filtered one may miss offsets."""
    rows = messages.select("shard", "offset", F.unix_micros("timestamp").alias("us"))
    find = partial(_runs, not filtered)
    emptied = None if filtered else emptied_rows(messages)
    if emptied is not None:
        rows = _put_back(rows, emptied)
    sort = filtered or emptied is not None
    found = [] if sort else rows.mapInArrow(find, _RUNS).limit(max_runs + 1).collect()
    if sort or len(found) > max_runs:
        ordered = rows.repartitionByRange("shard", "offset").sortWithinPartitions("shard", "offset")
        found = ordered.mapInArrow(find, _RUNS).collect()
    runs = sorted((Run(*row) for row in found), key=lambda run: (run.shard, run.first, run.last))
    return [join_runs(list(own), filtered) for _, own in groupby(runs, key=lambda run: run.shard)]


def _put_back(rows: "DataFrame", emptied: "DataFrame") -> "DataFrame":
    """Return the rows with the emptied records among them, unless the table still has them."""
    ends = rows.groupBy("shard").agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
    within = emptied.join(F.broadcast(ends), "shard").where("offset > low and offset < high").drop("low", "high")
    lacking = within.join(rows, ["shard", "offset"], "left_anti")
    return rows.withColumn("emptied", F.lit(0)).unionByName(lacking.withColumn("emptied", F.lit(1)))


def join_runs(runs: list[Run], filtered: bool = False) -> ShardAudit:
    """Combine the runs of one shard, which come by rising offset."""
    missing: list[tuple[int, int]] = []
    duplicated: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    end, end_us = runs[0].first - 1, runs[0].first_us
    for run in runs:
        if run.first > end + 1 and not filtered:
            missing.append((end + 1, run.first - 1))
        if run.first <= end:
            duplicated.append((run.first, min(run.last, end)))
        elif run.first_us < end_us:
            back.append((run.first, end_us - run.first_us))
        if run.last > end:
            end, end_us = run.last, run.last_us
    return ShardAudit(
        shard=runs[0].shard,
        records=sum(run.records for run in runs),
        first=runs[0].first,
        last=end,
        emptied=sum(run.emptied for run in runs),
        missing=_size(missing),
        duplicated=_size(duplicated),
        time_back=len(back),
        missing_ranges=tuple(missing[:MAX_EXAMPLES]),
        duplicated_ranges=tuple(duplicated[:MAX_EXAMPLES]),
        back_at=tuple(back[:MAX_EXAMPLES]),
    )


def _size(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _runs(contiguous: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the runs of each batch; runs in a task."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ordered = batch.take(pc.sort_indices(batch, [("shard", "ascending"), ("offset", "ascending")]))
        shard, offset, us = (ordered.column(name).to_numpy() for name in ("shard", "offset", "us"))
        steps = np.diff(offset)
        broken = (np.diff(shard) != 0) | (np.diff(us) < 0) | ((steps != 1) if contiguous else (steps <= 0))
        starts = np.concatenate(([0], np.flatnonzero(broken) + 1))
        ends = np.append(starts[1:], len(offset)) - 1
        emptied = np.zeros_like(starts)
        if "emptied" in ordered.schema.names:
            emptied = np.add.reduceat(ordered.column("emptied").to_numpy(), starts)
        sizes = (ends - starts + 1 - emptied, emptied)
        columns = (shard[starts], offset[starts], offset[ends], us[starts], us[ends], *sizes)
        types = (pa.int32(), *[pa.int64()] * 6)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=_NAMES)
