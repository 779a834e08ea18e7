"""commitlog: append batches, read them back in order, survive a crash."""

from everlog.commitlog.ports import Disk, File, Indexer
from everlog.commitlog.settings import Durability, LogSettings
from everlog.commitlog.shard import BatchIndex, Damage, SegmentView, ShardLog, SideSection

__all__ = [
    "BatchIndex",
    "Damage",
    "Disk",
    "Durability",
    "File",
    "Indexer",
    "LogSettings",
    "SegmentView",
    "ShardLog",
    "SideSection",
]
