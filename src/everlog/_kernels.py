"""The one list of compiled modules, and the switch that runs them interpreted.

The build compiles each of these from its `.py` and the `.pxd` beside it. At run time `EVERLOG_PURE=1` makes the
import system take the `.py` although a compiled module is there, which is how the tests run both twins.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType

KERNELS = (
    "everlog.base.topic_table",
    "everlog.base.columns",
    "everlog.base.records",
    "everlog.base.publisher_name",
    "everlog.base.publisher_rows",
    "everlog.base.block_pool",
    "everlog.base.record_builder",
    "everlog.base.batch_merge",
    "everlog.base.arrow_columns",
    "everlog.base.batch_assembly",
    "everlog.base.tombstones",
    "everlog.commitlog.sync_write",
    "everlog.commitlog.aside",
    "everlog.commitlog.frame_header",
    "everlog.commitlog.batch_index",
    "everlog.commitlog.tail",
    "everlog.commitlog.open_batch",
    "everlog.commitlog.segment_writer",
    "everlog.commitlog.committer",
    "everlog.commitlog.copied_batches",
    "everlog.commitlog.copy_committer",
    "everlog.commitlog.hot_path",
    "everlog.store.row_postings",
    "everlog.store.row_finder",
    "everlog.store.row_reader",
    "everlog.store.open_postings",
    "everlog.topics.token_postings",
    "everlog.topics.level_tokens",
    "everlog.topics.names",
    "everlog.topics.trie",
    "everlog.topics.match_cache",
    "everlog.mqtt.entry_scan",
    "everlog.mqtt.primitives",
    "everlog.mqtt.connect",
    "everlog.mqtt.subscribe",
    "everlog.mqtt.lookahead",
    "everlog.mqtt.inbound",
    "everlog.mqtt.outbound",
    "everlog.bus.delivery",
    "everlog.bus.routes",
    "everlog.bus.nats_decoder",
    "everlog.bus.nats_output",
    "everlog.bus.mqtt_packets",
    "everlog.sessions.received_ids",
    "everlog.sessions.window",
    "everlog.sessions.counters",
    "everlog.sessions.merged_subscription",
    "everlog.sessions.outgoing_rows",
    "everlog.sessions.publisher",
    "everlog.sessions.session_memory",
    "everlog.sessions.subscriber",
    "everlog.sessions.session",
    "everlog.sessions.row_format",
    "everlog.sessions.stored_session",
    "everlog.sessions.merged_changes",
    "everlog.sessions.change_journal",
    "everlog.sessions.journaled_tables",
    "everlog.streams.fresh",
    "everlog.streams.overlay",
    "everlog.streams.stream_state",
    "everlog.streams.plain_codec",
    "everlog.streams.waiting",
    "everlog.streams.plain_requests",
    "everlog.streams.journal_rows",
    "everlog.streams.row_runs",
    "everlog.streams.row_messages",
    "everlog.streams.message_blocks",
    "everlog.streams.message_runs",
    "everlog.persist.arrivals",
    "everlog.broker.turns",
    "everlog.broker.delivery.partition",
    "everlog.broker.delivery.overlaps",
    "everlog.broker.delivery.audiences",
    "everlog.broker.delivery.fanout",
    "everlog.broker.delivery.kept_topics",
    "everlog.broker.delivery.retained_chunks",
    "everlog.broker.delivery.retained_index",
    "everlog.broker.delivery.retained_reader",
    "everlog.broker.delivery.slot_queue",
    "everlog.broker.delivery.retained_columns",
    "everlog.broker.delivery.pending_acks",
    "everlog.broker.delivery.unkept_messages",
    "everlog.broker.delivery.router",
    "everlog.broker.connection.run_checks",
    "everlog.broker.connection.traffic",
    "everlog.broker.connection.wire",
    "everlog.broker.connection.poller",
    "everlog.broker.connection.output",
    "everlog.broker.connection.socket_reader",
    "everlog.broker.registry.marks",
    "everlog.broker.registry.write_behind",
    "everlog.broker.registry.filter_runs",
    "everlog.broker.registry.subscriptions",
    "everlog.broker.registry.registry",
    "everlog.broker.connection.connection",
    "everlog.broker.connection.connect_gate",
    "everlog.tiering.pipeline",
    "everlog.cluster.row_names",
    "everlog.cluster.origins",
    "everlog.cluster.tail_commits",
    "everlog.cluster.shard_target",
    "everlog.cluster.commit_rounds",
    "everlog.cluster.link_frames",
    "everlog.cluster.forwarded_rows",
    "everlog.bench.load.figures",
    "everlog.bench.load.sender",
    "everlog.bench.load.checker",
    "everlog.bench.load.link",
    "everlog.bench.persist.bus_link",
)

SOURCE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CIMPORT = re.compile(r"^\s*(?:from\s+(?=[\w.]+\s+cimport)|cimport\s+)(everlog[\w.]*)", re.MULTILINE)


class PureFinder:
    """Finds the kernels' `.py` files before the path finder finds their compiled twins."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in KERNELS:
            return None
        return importlib.util.spec_from_file_location(name, os.path.join(SOURCE_ROOT, *name.split(".")) + ".py")


def sources_of(name: str) -> list[str]:
    """The files that a kernel is compiled from: its own, and every `.pxd` of the package that these cimport."""
    path = os.path.join(SOURCE_ROOT, *name.split("."))
    found = [path + ".py", path + ".pxd"]
    for one in found:  # grows meanwhile
        with open(one, encoding="utf-8") as file:
            text = file.read()
        for module in _CIMPORT.findall(text):
            pxd = os.path.join(SOURCE_ROOT, *module.split(".")) + ".pxd"
            if pxd not in found and os.path.exists(pxd):
                found.append(pxd)
    return found


def choose_twin() -> None:
    """Called once when the package is first imported."""
    if os.environ.get("EVERLOG_PURE") == "1" and not any(isinstance(f, PureFinder) for f in sys.meta_path):
        sys.meta_path.insert(0, PureFinder())


def interpreted() -> list[str]:
    """The kernels that run interpreted in this process, by which files there are: none is loaded for it."""
    if any(isinstance(finder, PureFinder) for finder in sys.meta_path):
        return list(KERNELS)
    return [name for name in KERNELS if not _is_compiled(name)]


def _is_compiled(name: str) -> bool:
    path = os.path.join(SOURCE_ROOT, *name.split("."))
    return any(os.path.exists(path + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def describe() -> str:
    """`compiled`, `interpreted` or `partly compiled (…)`, for the version, the start-up line and the test header."""
    slow = interpreted()
    if not slow:
        return "compiled"
    return "interpreted" if len(slow) == len(KERNELS) else f"partly compiled (interpreted: {', '.join(slow)})"
