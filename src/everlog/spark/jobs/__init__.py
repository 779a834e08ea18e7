"""jobs: the structure, the numbers and the audit of a history, and how to replay it.

Each job takes frames and returns values; `reports` makes tables and charts of those. Nothing here starts Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.spark.jobs.group_keys import levels_key, shape_key
    from everlog.spark.jobs.history_summary import time_span, topic_totals
    from everlog.spark.jobs.html_page import Cell, Drawing, Grid, render, show, write_page
    from everlog.spark.jobs.replay_rows import COLUMNS, Kept, in_order, kept_in
    from everlog.spark.jobs.reports import Report, report_audit, report_stats, report_store, report_structure
    from everlog.spark.jobs.run_audit import Audit, Line, audit_histories, filter_regex
    from everlog.spark.jobs.run_history import IDENTITIES, logged_in, read_history
    from everlog.spark.jobs.state_history import as_history
    from everlog.spark.jobs.stats import KeyStats, Stats, choose_slice, slices_of, stats_of
    from everlog.spark.jobs.store_audit import ShardAudit, audit_store
    from everlog.spark.jobs.structure import structure_of
    from everlog.spark.jobs.structure_file import (
        FILE_NAME,
        Anomaly,
        Level,
        Shape,
        Structure,
        read_structure,
        write_structure,
    )

# Where each name lives: compaction imports the structure's file only, and needs no Spark for it.
_HOMES = {
    "run_audit": ("Audit", "Line", "audit_histories", "filter_regex"),
    "group_keys": ("levels_key", "shape_key"),
    "run_history": ("IDENTITIES", "logged_in", "read_history"),
    "html_page": ("Cell", "Drawing", "Grid", "render", "show", "write_page"),
    "replay_rows": ("COLUMNS", "Kept", "in_order", "kept_in"),
    "reports": ("Report", "report_audit", "report_stats", "report_store", "report_structure"),
    "state_history": ("as_history",),
    "stats": ("KeyStats", "Stats", "choose_slice", "slices_of", "stats_of"),
    "store_audit": ("ShardAudit", "audit_store"),
    "structure": ("structure_of",),
    "structure_file": ("FILE_NAME", "Anomaly", "Level", "Shape", "Structure", "read_structure", "write_structure"),
    "history_summary": ("time_span", "topic_totals"),
}
_MODULES = {name: f"everlog.spark.jobs.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
