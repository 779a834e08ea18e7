"""The protocol kernels: parsing PUBLISHes into columns, building PUBLISH runs and acks."""

import resource

from everlog.base import MessageColumns, RecordBuilder, Records, TopicTable
from everlog.bench.measurement import Row, measure
from everlog.mqtt import Decoder, PacketType, Publish, PublishWriter, encode, write_acks

CHUNK_BYTES = 64 << 10
PUBACK = PacketType.PUBACK << 4
PAYLOAD = b"x" * 100


def publishes(count: int, topics: int, version: int = 4) -> bytes:
    """Return QoS 1 PUBLISHes of 100 bytes over so many topics, as one client would send them."""
    return b"".join(
        encode(Publish(f"sensors/{i % topics}/temperature", PAYLOAD, qos=1, packet_id=i % 65_535 + 1), version)
        for i in range(count)
    )


def chunks(stream: bytes) -> list[bytes]:
    """Split a stream into what reads of 64 KiB would bring."""
    return [stream[i : i + CHUNK_BYTES] for i in range(0, len(stream), CHUNK_BYTES)]


def batch(count: int, topics: int) -> Records:
    """Return the records of such PUBLISHes."""
    table = TopicTable(1)
    decoder = Decoder(MessageColumns(count), table, version=4)
    builder = RecordBuilder()
    for run in decoder.feed(publishes(count, topics)):
        builder.append(run.columns, run.start, run.stop, 0, table)
    return builder.take(0)


def parse_rate(topics: int, version: int) -> float:
    """Return messages per second parsed from 64 KiB chunks."""
    count = 20_000
    parts = chunks(publishes(count, topics, version))
    decoder = Decoder(MessageColumns(1024), TopicTable(1), version=version)

    def work() -> int:
        for part in parts:
            decoder.feed(part)
        return count

    return measure(work)


def lone_packet_us() -> float:
    """Return the microseconds that feeding one whole packet takes."""
    packet = publishes(1, 1)
    decoder = Decoder(MessageColumns(1024), TopicTable(1), version=4)

    def work() -> int:
        for _ in range(100):
            decoder.feed(packet)
        return 100

    return 1e6 / measure(work)


def memory_growth_mb(total_bytes: int) -> float:
    """Return by how much peak memory rises while one decoder is fed so many bytes in 64 KiB chunks."""
    parts = chunks(publishes(20_000, 100))
    size = sum(map(len, parts))
    decoder = Decoder(MessageColumns(1024), TopicTable(1), version=4)
    for part in parts:
        decoder.feed(part)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(total_bytes // size + 1):
        for part in parts:
            decoder.feed(part)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def run() -> list[Row]:
    """Return every figure of the protocol."""
    records = batch(500, 50)
    ids = bytearray(b"".join(i.to_bytes(2, "little") for i in range(1, 501)))
    writers = {version: PublishWriter(version) for version in (4, 5)}

    def write(version: int, qos: int) -> float:
        writer = writers[version]
        return measure(lambda: len(writer.write(records, None, 0, 500, qos, 1, 0)) and 500)

    recipe = "100-byte payloads, 64 KiB chunks"
    return [
        ("parse QoS 1 PUBLISH, 1 topic", parse_rate(1, 4), "messages/s", f"{recipe}, at least 5 M/s"),
        ("parse QoS 1 PUBLISH, 1,000 topics", parse_rate(1000, 4), "messages/s", recipe),
        ("parse QoS 1 PUBLISH, MQTT 5", parse_rate(1000, 5), "messages/s", recipe),
        ("parse one packet a call", lone_packet_us(), "µs", "at most 1 µs"),
        ("build a QoS 1 run", write(4, 1), "messages/s", "500 records, at least 5 M/s"),
        ("build a QoS 1 run, MQTT 5", write(5, 1), "messages/s", "500 records"),
        ("build a QoS 0 run", write(4, 0), "messages/s", "500 records"),
        ("build acks", measure(lambda: len(write_acks(PUBACK, ids, 0, 500)) // 4), "acks/s", "at least 20 M/s"),
        ("memory after 1 GB fed", memory_growth_mb(1_000_000_000 if fast() else 50_000_000), "MB", "less than 10 MB"),
    ]


def fast() -> bool:
    """Return whether the kernels are compiled, so that large amounts are worth waiting for."""
    from everlog import _kernels

    return not _kernels.interpreted()
