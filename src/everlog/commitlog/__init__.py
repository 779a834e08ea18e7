"""commitlog: append batches, read them back in order, survive a crash."""

from everlog.commitlog.batch_index import BatchIndex
from everlog.commitlog.copied_batches import end_of, read_whole
from everlog.commitlog.damage import CorruptFile, Damage
from everlog.commitlog.log_settings import Durability, LogSettings
from everlog.commitlog.paths import MARK, segment_bases, segment_path, side_path
from everlog.commitlog.ports import Classes, CommitTarget, Disk, File
from everlog.commitlog.real_disk import RealDisk, ScannedDisk
from everlog.commitlog.retention import RetentionPlan, plan_retention
from everlog.commitlog.segment_bytes import read_segment, write_segment
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES, NOBODY, Origin, SegmentHeader
from everlog.commitlog.segment_reader import origin_in
from everlog.commitlog.segment_view import SegmentView
from everlog.commitlog.shard import ShardLog, wall_clock_us
from everlog.commitlog.side_file import SideSection
from everlog.commitlog.topic_retention import Thinned
from everlog.commitlog.verification import verify_directory
from everlog.commitlog.worker import Worker
