"""spark: the log as a table of Spark, read and written."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.spark.cluster_cores import TASKS_A_CORE
    from everlog.spark.cluster_log import close_readers, read_cluster_record
    from everlog.spark.cluster_place import ClusterPlace, locate_cluster
    from everlog.spark.java import find_java
    from everlog.spark.lake.compaction import Compaction, CompactionOptions, CompactionSummary
    from everlog.spark.lake.file_retention import VACUUM_HOURS, keep_plain, parse_days, vacuum
    from everlog.spark.lake.lake_store import LakeStore
    from everlog.spark.lake.lake_table import find_lake, open_lake
    from everlog.spark.lake.location import Location, check_bucket, locate, parse_options
    from everlog.spark.lake.parquet_writer import CODECS
    from everlog.spark.lake.runner import OnSpark
    from everlog.spark.log_slices import ReadReport, read_slice
    from everlog.spark.lost_offsets import lost_in, name_lost
    from everlog.spark.schema import COLUMNS, DEFAULT_COLUMNS, SCHEMA, schema_of, spark_ddl
    from everlog.spark.session_factory import is_remote, spark_session
    from everlog.spark.sink.table_sink import append_batch, write_batch
    from everlog.spark.snapshot import SegmentFile, ShardSnapshot, Slice, Snapshot, pack, plan, take_snapshot
    from everlog.spark.source import EverlogSource
    from everlog.spark.source_options import cluster_of
    from everlog.spark.table_frame import is_plain_table
    from everlog.spark.task_errors import task_error
    from everlog.spark.worker_process import hush

# Where each name lives: a task of Spark imports this room, and should load only what it uses.
_HOMES = {
    "log_slices": ("ReadReport", "read_slice"),
    "lake.lake_store": ("LakeStore",),
    "lake.compaction": ("Compaction", "CompactionOptions", "CompactionSummary"),
    "lake.file_retention": ("VACUUM_HOURS", "keep_plain", "parse_days", "vacuum"),
    "lake.location": ("Location", "check_bucket", "locate", "parse_options"),
    "lake.parquet_writer": ("CODECS",),
    "lake.runner": ("OnSpark",),
    "lake.lake_table": ("find_lake", "open_lake"),
    "java": ("find_java",),
    "lost_offsets": ("lost_in", "name_lost"),
    "schema": ("COLUMNS", "DEFAULT_COLUMNS", "SCHEMA", "schema_of", "spark_ddl"),
    "session_factory": ("is_remote", "spark_session"),
    "cluster_cores": ("TASKS_A_CORE",),
    "cluster_log": ("close_readers", "read_cluster_record"),
    "cluster_place": ("ClusterPlace", "locate_cluster"),
    "source_options": ("cluster_of",),
    "sink.table_sink": ("append_batch", "write_batch"),
    "snapshot": ("SegmentFile", "ShardSnapshot", "Slice", "Snapshot", "pack", "plan", "take_snapshot"),
    "source": ("EverlogSource",),
    "table_frame": ("is_plain_table",),
    "task_errors": ("task_error",),
    "worker_process": ("hush",),
}
_MODULES = {name: f"everlog.spark.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
