"""Shards of a cluster in a real database: rows to write, owners that write them."""

from random import Random
from typing import Any

from everlog.base import TopicTable, Unavailable
from everlog.cluster import ClusterDatabase, ClusterLog, ClusterSettings, make_message_tables
from everlog.cluster.postgres_tail import PostgresTail
from everlog.cluster.rows import TailRow, make_row
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits
from everlog.commitlog import LogSettings, Origin, ShardLog
from everlog.tiering import MemoryBucket
from tests.messages import segment_batches, to_columns
from tests.postgres_server import new_schema, shared_server
from tests.simulated_disk import SimulatedDisk

TAIL_BYTES = 64 << 20
SETTINGS = LogSettings(durability="flush", batch_bytes=256 << 10, merge_below=0)


def row_at(base: int, epoch: int, payload: bytes = b"payload") -> TailRow:
    """A row with one message, the only one of its segment."""
    return make_row(segment_batches([[(b"topic", 2, b"", payload)]], base)[0], base, epoch, {epoch: 1})


def owner_of(database: ClusterDatabase, epoch: int, tail: PostgresTail | None = None, **options: Any) -> ShardTarget:
    """Who owns shard 0 from now on; its incarnation is its epoch."""
    commits = TailCommits(tail or PostgresTail(database))
    target = ShardTarget(commits, 0, epoch, epoch, **{"tail_bytes": TAIL_BYTES, **options})
    target.take_over()
    return target


def close(target: ShardTarget) -> None:
    """Let go of the connections of a target of `owner_of`."""
    target._commits.close()


def owned_log(target: ShardTarget, **options: Any) -> ShardLog:
    """A log in memory that commits at a target, by a thread of its own."""
    origin = Origin(1, 0, target.epoch)
    log = ShardLog.open(
        SimulatedDisk(Random(1)), "shard", SETTINGS, origin=origin, not_below=target.end, is_copy=True, **options
    )
    log.follow(Unavailable("nobody owns it here"))
    target.troubled = log.note_trouble
    log.own(target.epoch, target)
    return log


def append(log: ShardLog, count: int, payload: bytes = b"payload") -> None:
    """Append messages without a number."""
    table = TopicTable()
    log.append(to_columns([(b"a/%d" % (k % 5), 2, b"", payload) for k in range(count)], table), 0, count, 1, table)


def owned_cluster(folder: str, shards: int = 1, settings: ClusterSettings | None = None) -> ClusterLog:
    """The log of a cluster of one, which owns all shards."""
    database = ClusterDatabase(shared_server().url, new_schema())
    make_message_tables(database.url, shards, database.schema)
    log = ClusterLog.join(folder, database, MemoryBucket(), settings)
    log.own(dict.fromkeys(range(shards), 1), 1)
    return log
