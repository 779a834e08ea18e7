"""The batch reader of streams and key-value stores: a snapshot when the frame is loaded, some streams for each task."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructType

from everlog.base import UsageError
from everlog.persist import shard_directories
from everlog.spark.cluster_cores import task_count
from everlog.spark.log_slices import parse_filters
from everlog.spark.pyspark_api import DataSourceReader, InputPartition
from everlog.spark.snapshot import pack, target_bytes
from everlog.spark.state.state_columns import make_batch, schema_of
from everlog.spark.state.state_options import StateOptions
from everlog.spark.worker_process import settle
from everlog.streams import Kind, ShardSnapshot, SnapshotStream, read_snapshot, take_snapshot
from everlog.topics import Filter, matches

STREAM_BYTES = 64 << 10  # what opening a stream costs, in bytes that could be read meanwhile


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The wanted streams of each shard, as of a position."""

    shards: tuple[ShardSnapshot, ...]

    @property
    def position(self) -> str:
        """The position of the frame, as the option `to` takes it."""
        return ",".join(f"{number}:{shard.end}" for number, shard in enumerate(self.shards))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stream to be read by some task."""

    shard: int
    stream: SnapshotStream
    size_bytes: int


@dataclass
class StatePartition(InputPartition):
    """What one task reads: streams by shard."""

    shards: tuple[tuple[int, ShardSnapshot], ...]


def state_directory(path: str) -> str:
    """Return the directory of the state shards that a broker or persist server has here."""
    for place in (path, os.path.join(path, "persist")):
        if os.path.exists(os.path.join(place, "persist.json")):
            return os.path.abspath(place)
    raise UsageError(
        f"{path} has no streams", hint="give the data directory of a broker or of a persist server that has some"
    )


def plan_state(options: StateOptions) -> StatePlan:
    """Return what a frame with these options reads."""
    directories = shard_directories(state_directory(options.path))
    ends = dict(options.ends)
    unknown = [shard for shard in ends if shard >= len(directories)]
    if unknown:
        raise UsageError(f"there is no shard {unknown[0]}", hint=f"the shards are 0 to {len(directories) - 1}")
    wants = partial(_is_wanted, parse_filters(options.filters))
    kind = Kind.STREAM if options.kind == "streams" else Kind.KV
    return StatePlan(
        tuple(take_snapshot(place, wants, kind, ends.get(shard)) for shard, place in enumerate(directories))
    )


def _is_wanted(filters: tuple[Filter, ...], name: str) -> bool:
    return any(matches(one, name) for one in filters)


class StateReader(DataSourceReader):
    """Plans and reads the tasks of a frame."""

    def __init__(self, options: StateOptions, plan: StatePlan, schema: StructType) -> None:
        self.options = options
        self.plan = plan
        self.columns = tuple(schema.names)
        known = schema_of(options.kind, options.is_text)
        for name in self.columns:
            if name not in known.names:
                raise UsageError(f"no column is called {name}", hint=f"there are: {', '.join(known.names)}")

    def partitions(self) -> list[InputPartition]:
        """Return about as many partitions as were asked for, of about equal size."""
        tasks = self.options.tasks or task_count()
        pieces = [
            _Piece(number, stream, stream.bytes + STREAM_BYTES)
            for number, shard in enumerate(self.plan.shards)
            for stream in shard.streams
        ]
        return [self._partition(group) for group in pack(pieces, target_bytes(pieces, tasks))]

    def _partition(self, group: tuple[_Piece, ...]) -> StatePartition:
        return StatePartition(
            tuple(
                (number, replace(shard, streams=tuple(piece.stream for piece in group if piece.shard == number)))
                for number, shard in enumerate(self.plan.shards)
                if any(piece.shard == number for piece in group)
            )
        )

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; an empty plan arrives as none."""
        if not isinstance(partition, StatePartition):
            return
        settle()
        for number, shard in partition.shards:
            for stream, found in read_snapshot(shard, shard.streams):
                yield make_batch(stream.name, number, found, self.columns, self.options.is_text)
