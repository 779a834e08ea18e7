"""commitlog: append batches, read them back in order, survive a crash."""

from everlog.commitlog.batch_index import BatchIndex
from everlog.commitlog.damage import CorruptFile, Damage
from everlog.commitlog.ports import Classes, Disk, File, Indexer, Lock
from everlog.commitlog.real_disk import RealDisk, ScannedDisk
from everlog.commitlog.retention import RetentionPlan, plan_retention
from everlog.commitlog.segment_view import SegmentView
from everlog.commitlog.settings import Durability, LogSettings
from everlog.commitlog.shard import ShardLog, wall_clock_us
from everlog.commitlog.side_file import SideSection
from everlog.commitlog.simulated_disk import SimulatedCrash, SimulatedDisk
from everlog.commitlog.statistics import LogStatistics
from everlog.commitlog.topic_retention import Thinned
from everlog.commitlog.verification import Verified, verify_directory

__all__ = [
    "BatchIndex",
    "Classes",
    "CorruptFile",
    "Damage",
    "Disk",
    "Durability",
    "File",
    "Indexer",
    "Lock",
    "LogSettings",
    "LogStatistics",
    "RealDisk",
    "RetentionPlan",
    "ScannedDisk",
    "SegmentView",
    "ShardLog",
    "SideSection",
    "SimulatedCrash",
    "SimulatedDisk",
    "Thinned",
    "Verified",
    "plan_retention",
    "verify_directory",
    "wall_clock_us",
]
