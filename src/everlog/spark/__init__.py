"""spark: the log as a table of Spark, read and written."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.spark.arrow import ReadReport, read_slice
    from everlog.spark.java import find_java
    from everlog.spark.lake.cold import LakeStore
    from everlog.spark.lake.compaction import Compaction, CompactionOptions, CompactionSummary
    from everlog.spark.lake.keeping import VACUUM_HOURS, parse_days, vacuum
    from everlog.spark.lake.location import Location, check_bucket, locate, parse_options
    from everlog.spark.lake.parquet import CODECS
    from everlog.spark.lake.running import InProcess, OnSpark
    from everlog.spark.lake.table import find_lake, open_lake
    from everlog.spark.losses import lost_in, name_lost
    from everlog.spark.schema import COLUMNS, DEFAULT_COLUMNS, SCHEMA, schema_of, spark_ddl
    from everlog.spark.session import spark_session
    from everlog.spark.sink.appending import append_batch
    from everlog.spark.snapshot import SegmentFile, ShardSnapshot, Slice, Snapshot, pack, plan, take_snapshot
    from everlog.spark.source import EverlogSource

__all__ = [
    "CODECS",
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "SCHEMA",
    "VACUUM_HOURS",
    "Compaction",
    "CompactionOptions",
    "CompactionSummary",
    "EverlogSource",
    "InProcess",
    "LakeStore",
    "Location",
    "OnSpark",
    "ReadReport",
    "SegmentFile",
    "ShardSnapshot",
    "Slice",
    "Snapshot",
    "append_batch",
    "check_bucket",
    "find_java",
    "find_lake",
    "locate",
    "lost_in",
    "name_lost",
    "open_lake",
    "pack",
    "parse_days",
    "parse_options",
    "plan",
    "read_slice",
    "schema_of",
    "spark_ddl",
    "spark_session",
    "take_snapshot",
    "vacuum",
]

# Where each name lives: a task of Spark imports this room, and should load only what it uses.
_HOMES = {
    "arrow": ("ReadReport", "read_slice"),
    "lake.cold": ("LakeStore",),
    "lake.compaction": ("Compaction", "CompactionOptions", "CompactionSummary"),
    "lake.keeping": ("VACUUM_HOURS", "parse_days", "vacuum"),
    "lake.location": ("Location", "check_bucket", "locate", "parse_options"),
    "lake.parquet": ("CODECS",),
    "lake.running": ("InProcess", "OnSpark"),
    "lake.table": ("find_lake", "open_lake"),
    "java": ("find_java",),
    "losses": ("lost_in", "name_lost"),
    "schema": ("COLUMNS", "DEFAULT_COLUMNS", "SCHEMA", "schema_of", "spark_ddl"),
    "session": ("spark_session",),
    "sink.appending": ("append_batch",),
    "snapshot": ("SegmentFile", "ShardSnapshot", "Slice", "Snapshot", "pack", "plan", "take_snapshot"),
    "source": ("EverlogSource",),
}
_MODULES = {name: f"everlog.spark.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
