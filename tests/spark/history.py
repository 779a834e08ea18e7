"""Stores for the tests of the jobs, written as a broker writes them, and what is in them as plain rows."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everlog.base import MessageColumns, TopicTable
from everlog.commitlog import LogSettings
from everlog.store import LogStore

T0_US = 1_767_571_200_000_000  # 2026-01-05T00:00:00Z, a Monday


@dataclass(frozen=True, slots=True)
class Sent:
    """A message and when it was sent."""

    us: int
    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: bytes = b""  # as on the wire


def write_store(directory: Path, messages: Iterable[Sent], shards: int = 1, segment_bytes: int = 20_000) -> Path:
    """A store that has these messages, closed; those of one moment go in together."""
    store = LogStore.open(
        str(directory), LogSettings(durability="flush", segment_bytes=segment_bytes), shards=shards, background=False
    )
    run: list[Sent] = []
    for message in messages:
        if run and (message.us != run[0].us or len(run) == 1000):
            _append(store, run)
            run = []
        run.append(message)
    if run:
        _append(store, run)
    for log in store.shards:
        while log.commit_step():
            pass
        while log.seal_step():
            pass
    store.close()
    return directory


def _append(store: LogStore, run: Sequence[Sent]) -> None:
    table = TopicTable()
    columns = MessageColumns(len(run))
    source = bytearray()
    for row, message in enumerate(run):
        struct.pack_into("<I", columns.topics, 4 * row, table.intern(message.topic.encode()))
        columns.flags[row] = message.qos << 1 | message.retain
        for column, more in (
            (columns.property_starts, b""),
            (columns.payload_starts, message.properties),
            (columns.payload_ends, message.payload),
        ):
            source += more
            struct.pack_into("<I", column, 4 * row, len(source))
    columns.source = bytes(source)
    store.append(columns, 0, len(run), run[0].us, table)
    for log in store.shards:
        while log.commit_step():
            pass
