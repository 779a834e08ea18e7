"""Both twins of the kernels in one process, so that a test can ask them the same and compare the answers.

`COMPILED` is None when there is nothing compiled to load (a pure install, or EVERLOG_PURE=1). Only the kernels are
loaded twice: errors, packets and the plain codec are shared, so values of both twins can be compared.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from everlog import _kernels
from everlog.mqtt import Publish, encode

_HOMES = {
    "everlog.base.topic_table": ("TopicTable",),
    "everlog.base.columns": ("AckRun", "MessageColumns", "PublishRun"),
    "everlog.base.batch_assembly": ("assemble",),
    "everlog.base.tombstones": ("bytes_of_topics", "empty_topics"),
    "everlog.base.records": ("Layout", "Records"),
    "everlog.base.block_pool": ("BlockPool",),
    "everlog.base.record_builder": ("RecordBuilder",),
    "everlog.base.publisher_name": ("PublisherColumn", "PublisherName"),
    "everlog.base.batch_merge": ("gather",),
    "everlog.base.arrow_columns": (
        "count_rows",
        "expiry_column",
        "filled_values",
        "flag_columns",
        "has_properties",
        "has_publishers",
        "offset_column",
        "payload_column",
        "property_column",
        "publisher_column",
        "take_lists",
        "take_texts",
        "text_property_column",
        "time_column",
        "topic_column",
        "user_property_columns",
    ),
    "everlog.commitlog.sync_write": ("write_blocks_around", "write_blocks"),
    "everlog.commitlog.aside": ("Aside",),
    "everlog.mqtt.entry_scan": ("skip_filters", "skip_pairs"),
    "everlog.mqtt.inbound": ("Decoder",),
    "everlog.mqtt.outbound": ("PublishWriter", "write_acks", "write_answers", "write_told_acks"),
    "everlog.bus.routes": ("Routes",),
    "everlog.bus.nats_decoder": ("NatsDecoder",),
    "everlog.bus.nats_output": ("NatsOutput",),
    "everlog.bus.mqtt_packets": ("MqttInput", "MqttOutput"),
    "everlog.bus.delivery": ("Delivery",),
    "everlog.streams.fresh": ("appended", "new_asked"),
    "everlog.streams.plain_codec": ("Packer", "PlainCall"),
    "everlog.streams.row_runs": ("entry_run", "message_run"),
    "everlog.streams.message_blocks": ("DamagedBlock", "block_messages", "block_run", "pack_block"),
    "everlog.streams.message_runs": ("MessageRun",),
    "everlog.streams.journal_rows": ("TurnRecords", "fill_columns"),
    "everlog.persist.arrivals": ("UnderWay",),
    "everlog.bench.persist.bus_link": ("Budget", "BusLink"),
    "everlog.bench.load.figures": ("Histogram",),
    "everlog.sessions.received_ids": ("ReceivedIds",),
    "everlog.sessions.window": ("Window",),
    "everlog.broker.delivery.partition": ("Partitioner", "merge_rows"),
    "everlog.broker.delivery.pending_acks": ("AckQueue", "PendingAcks"),
    "everlog.broker.connection.wire": ("Receiver", "Wire"),
    "everlog.broker.connection.poller": ("Poller", "Port"),
    "everlog.broker.connection.run_checks": ("count_qos_2", "distinct_topics", "drop_reserved", "drop_unkeepable"),
}


class Twin:
    """The kernels' names as one of the twins defines them."""

    TopicTable: Any
    AckRun: Any
    MessageColumns: Any
    PublishRun: Any
    assemble: Any
    bytes_of_topics: Any
    empty_topics: Any
    Layout: Any
    BlockPool: Any
    RecordBuilder: Any
    PublisherColumn: Any
    PublisherName: Any
    gather: Any
    Records: Any
    count_rows: Any
    expiry_column: Any
    filled_values: Any
    flag_columns: Any
    has_properties: Any
    has_publishers: Any
    offset_column: Any
    payload_column: Any
    property_column: Any
    publisher_column: Any
    take_lists: Any
    take_texts: Any
    text_property_column: Any
    time_column: Any
    topic_column: Any
    user_property_columns: Any
    Aside: Any
    write_blocks_around: Any
    write_blocks: Any
    Decoder: Any
    PublishWriter: Any
    write_acks: Any
    write_answers: Any
    write_told_acks: Any
    skip_filters: Any
    skip_pairs: Any
    NatsDecoder: Any
    NatsOutput: Any
    MqttInput: Any
    MqttOutput: Any
    Delivery: Any
    appended: Any
    new_asked: Any
    Packer: Any
    PlainCall: Any
    entry_run: Any
    message_run: Any
    DamagedBlock: Any
    block_messages: Any
    block_run: Any
    pack_block: Any
    MessageRun: Any
    TurnRecords: Any
    fill_columns: Any
    UnderWay: Any
    Budget: Any
    BusLink: Any
    Histogram: Any
    ReceivedIds: Any
    Window: Any
    Partitioner: Any
    merge_rows: Any
    AckQueue: Any
    PendingAcks: Any
    Receiver: Any
    Wire: Any
    Poller: Any
    Port: Any
    count_qos_2: Any
    distinct_topics: Any
    drop_reserved: Any
    drop_unkeepable: Any

    def __init__(self, name: str, modules: Mapping[str, ModuleType]) -> None:
        self.name = name
        for module, names in _HOMES.items():
            for each in names:
                setattr(self, each, getattr(modules[module], each))

    def __repr__(self) -> str:
        return self.name


def _load() -> dict[str, ModuleType]:
    return {name: importlib.import_module(name) for name in _kernels.KERNELS}


def _open_doors(name: str, usual: ModuleType, pure: ModuleType) -> list[tuple[ModuleType, str, object]]:
    """Kernels import each other through the doors of their rooms: those show the interpreted ones for a while."""
    parts = name.split(".")
    rooms = [sys.modules[".".join(parts[:depth])] for depth in range(2, len(parts))]
    shown = [
        (room, each, value)
        for room in rooms
        for each, value in vars(room).items()
        if value is getattr(usual, each, room)
    ]
    for room, each, _ in shown:
        setattr(room, each, getattr(pure, each))
    return shown


def _load_interpreted() -> dict[str, ModuleType]:
    usual = _load()
    finder = _kernels.PureFinder()
    for name in usual:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    doors: list[tuple[ModuleType, str, object]] = []
    found: dict[str, ModuleType] = {}
    try:
        for name in usual:
            found[name] = importlib.import_module(name)
            doors += _open_doors(name, usual[name], found[name])
        return found
    finally:
        sys.meta_path.remove(finder)
        for room, each, value in doors:
            setattr(room, each, value)
        for name, module in usual.items():
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)


IS_COMPILED = not _kernels.interpreted()
COMPILED = Twin("compiled", _load()) if IS_COMPILED else None
PURE = Twin("interpreted", _load_interpreted() if IS_COMPILED else _load())
TWINS = [twin for twin in (COMPILED, PURE) if twin is not None]
AMBIENT = TWINS[0]  # what `import everlog` gives in this process

needs_both = pytest.mark.skipif(
    COMPILED is None, reason="needs both twins; the kernels are not compiled or EVERLOG_PURE=1 is set"
)
needs_compiled = pytest.mark.skipif(
    COMPILED is None, reason="too much for interpreted kernels; they are not compiled or EVERLOG_PURE=1 is set"
)


def batch_of(
    messages: Sequence[Publish],
    twin: Twin = AMBIENT,
    times_us: Sequence[int] = (),
    base_offset: int = 0,
    version: int = 5,
) -> Any:
    """A batch of messages as clients sent them, each arriving at its time (1 s where none is given)."""
    table = twin.TopicTable(3)
    decoder = twin.Decoder(twin.MessageColumns(4), table, max_aliases=100, version=version)
    builder = twin.RecordBuilder()
    for i, message in enumerate(messages):
        now_us = times_us[i] if times_us else 1_000_000
        (run,) = decoder.feed(encode(message, version))
        assert builder.append(run.columns, run.start, run.stop, now_us, table) == 1
    return builder.take(base_offset)
