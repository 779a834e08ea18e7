"""Stores with sealed segments to compact, and their rows in plain form to compare with."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa

from everlog.base import MessageColumns, PublisherColumn, PublisherName, TopicTable, name_publisher
from everlog.commitlog import LogSettings
from everlog.mqtt import NO_PROPERTIES, Decoder, Properties, Publish, encode
from everlog.spark import SCHEMA
from everlog.store import ColdStore, LogStore, Reader
from everlog.topics import Filter

DAY_US = 86_400_000_000
CLIENTS = ("meter-1", "mètre-2", "m3")
NOON_US = 20_000 * DAY_US + DAY_US // 2  # of a day in 2024
Row = tuple[int, int, bytes, int, bytes, bytes]  # offset, time, topic, flags, properties, payload

PROPERTIES = (
    NO_PROPERTIES,
    NO_PROPERTIES,
    Properties(message_expiry_interval=3600),
    Properties(content_type="text/plain", user_properties=(("a", "b"), ("c", ""))),
    Properties(response_topic="answers/é", correlation_data=b"\x00\xff", payload_format_indicator=1),
)


def messages(count: int, seed: int = 1, topics: int = 40) -> list[Publish]:
    """Messages of all kinds, the same for the same seed."""
    chance = Random(seed)
    names = [f"site/{n % 4}/{('temp', 'Strömung', 'état')[n % 3]}/s{n}" for n in range(topics)]
    made = []
    for number in range(count):
        qos = chance.choice((0, 1, 1, 2))
        made.append(
            Publish(
                topic=chance.choice(names),
                payload=b"%d:" % number + chance.randbytes(chance.choice((0, 3, 40, 200))),
                qos=qos,
                retain=chance.random() < 0.2,
                packet_id=1 if qos else 0,
                properties=chance.choice(PROPERTIES),
            )
        )
    return made


def _place(message: Publish) -> int:
    """Who publishes a message: nobody, or one of the clients."""
    return crc32(message.payload) % (1 + len(CLIENTS))


def publishers_of(published: Sequence[Publish]) -> PublisherColumn:
    """Return the publishers of messages as the log takes them."""
    names = [None, *(PublisherName(name_publisher(one, "ann")) for one in CLIENTS)]
    return PublisherColumn(names, bytearray(array("I", map(_place, published))))


def fill(
    where: Path,
    published: Sequence[Publish],
    *,
    shards: int = 1,
    first_us: int = NOON_US,
    step_us: int = 1_000,
    run: int = 50,
    segment_bytes: int = 20_000,
    seal: bool = True,
) -> None:
    """Append messages to a store, so many a commit and so long after each other, and seal all but the last segment."""
    store = LogStore.open(
        str(where), LogSettings(durability="flush", segment_bytes=segment_bytes), shards=shards, background=False
    )
    try:
        table = TopicTable()
        for start in range(0, len(published), run):
            decoder = Decoder(MessageColumns(run), table, max_aliases=0, version=5)
            (found,) = decoder.feed(b"".join(encode(one, 5) for one in published[start : start + run]))
            who = publishers_of(published[start : start + run])
            time_us = first_us + step_us * (start // run)
            store.append(found.columns, found.start, found.stop, time_us, table, publisher=who)
            for log in store.shards:
                log.commit_step()
        for log in store.shards:
            while seal and log.seal_step():
                pass
    finally:
        store.close()


def drain(read: Any, end: int, offset: int = 0) -> list[Row]:
    """All that a way to read finds up to an end."""
    rows: list[Row] = []
    while offset < end:
        result = read(offset)
        for found in result.batches:
            table = found.records.table
            for number in found.row_numbers():
                at, time_us, topic, *rest = found.records.row(number)
                rows.append((at, time_us, table.name(topic), *rest))
        assert result.positions[0] > offset
        offset = result.positions[0]
    return [row for row in rows if row[0] < end]


def log_rows(where: Path, shard: int, end: int, filters: Sequence[Filter] | None = None) -> list[Row]:
    """The rows of a shard as the log has them."""
    store = LogStore.open(str(where), writable=False)
    try:
        reader: Reader = store.reader(filters)
        return drain(lambda at: reader.read_shard(shard, at, 1000, 1 << 20), end)
    finally:
        store.close()


def cold_rows(
    cold: ColdStore, shard: int, filters: Sequence[Filter] | None = None, step: int = 700, offset: int | None = None
) -> list[Row]:
    """The rows of a shard as the cold tier has them."""
    first = cold.start(shard) if offset is None else offset
    return drain(lambda at: cold.read(shard, at, filters, step, 1 << 20), cold.end(shard), first)


def table_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of the table with all the log's columns, in order."""
    wanted = rows.select(SCHEMA.names).sort_by([("shard", "ascending"), ("offset", "ascending")])
    return [tuple(row.values()) for row in wanted.to_pylist()]


def told(sent: Sequence[Publish]) -> list[dict[str, Any]]:
    """What the table should say of messages, but for where they stand in the log."""
    rows = []
    for message in sent:
        about = message.properties
        rows.append(
            {
                "topic": message.topic,
                "levels": message.topic.split("/"),
                "qos": message.qos,
                "retain": message.retain,
                "expiry": about.message_expiry_interval,
                "content_type": about.content_type,
                "response_topic": about.response_topic,
                "correlation_data": about.correlation_data,
                "user_properties": list(about.user_properties) or None,
                "client_id": [None, *CLIENTS][_place(message)],
                "payload": message.payload,
            }
        )
    return rows


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
