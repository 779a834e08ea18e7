"""The fuzz targets: one for a stream of packets, one for a stored batch.

Whatever the bytes, a stream gives packets and perhaps one PeerError with a reason code of MQTT 5.0, the same from
every twin, however it is cut into chunks, and the same as the plain codec says; its messages then go through a batch
and out again to subscribers. A batch is refused with a StorageError, or found damaged, or read within its bounds.
"""

import random
from typing import Any

from msgspec.structs import replace
from tests.fuzz.plain import MAX_PACKET_BYTES, Feeder, read_stream
from tests.twins import TWINS, Twin

from everlog.base import StorageError
from everlog.mqtt import NO_PROPERTIES, PacketType, Publish, Reason

VERSIONS = (0, 3, 4, 5)
SIZES = (MAX_PACKET_BYTES, MAX_PACKET_BYTES, 300, 40)
ALIASES = (65_535, 65_535, 2, 0)
HEAD_BYTES = 2  # version, side and limits; then how the stream is cut
ERRORS = frozenset(reason for reason in Reason if reason.is_error)
NOW_US = 1_000_000


def head(version: int, from_client: bool, limits: int = 0, cuts: int = 0) -> bytes:
    """What `fuzz_one` expects in front of a stream."""
    return bytes((VERSIONS.index(version) | from_client << 2 | limits << 3, cuts))


def cut(stream: bytes, choice: int) -> list[bytes]:
    """The stream in chunks: whole, byte by byte, or at places that the choice determines."""
    if choice == 0:
        return [stream]
    if choice == 1:
        return [stream[i : i + 1] for i in range(len(stream))]
    chance = random.Random(choice)
    longest = chance.choice((3, 10, 100, 1000))
    chunks = []
    while stream:
        size = chance.randint(0, longest)
        chunks.append(stream[:size])
        stream = stream[size:]
    return chunks


def fuzz_one(data: bytes) -> None:
    """Feed a stream, with its settings in front, to every twin; AssertionError if they do not agree."""
    if len(data) < HEAD_BYTES:
        return
    version, from_client = VERSIONS[data[0] & 3], bool(data[0] & 4)
    limits = {"max_packet_bytes": SIZES[data[0] >> 3 & 3], "max_aliases": ALIASES[data[0] >> 5 & 3]}
    stream = data[HEAD_BYTES:]
    if not from_client and version == 0:
        version = 5  # only a server waits for a CONNECT
    expected = read_stream(stream, version, from_client, **limits)
    assert expected[1] is None or expected[1] in ERRORS
    said = []
    for twin in TWINS:
        whole = Feeder(twin, version, from_client=from_client, **limits).feed(stream)
        assert whole.outcome == expected, (twin, whole.outcome, expected)
        parts = Feeder(twin, version, from_client=from_client, **limits).feed(*cut(stream, data[1]))
        assert parts.outcome == expected, (twin, parts.outcome, expected)
        assert parts.decoder.buffered_bytes <= len(stream)
        read = Feeder(twin, version, from_client=from_client, **limits).read(bytearray(48), *cut(stream, data[1]))
        assert read.outcome == expected, (twin, read.outcome, expected)
        assert read.decoder.buffered_bytes == parts.decoder.buffered_bytes
        onward = _send_on(twin, stream, version, from_client, limits)
        said.append((whole.shape, parts.shape, str(parts.error), parts.decoder.buffered_bytes, onward))
    assert all(each == said[0] for each in said), said


def _send_on(twin: Twin, stream: bytes, version: int, from_client: bool, limits: dict[str, int]) -> list[bytes]:
    """Put the messages into a batch and write it for subscribers; the bytes of batch and packets."""
    feeder = Feeder(twin, version, from_client=from_client, **limits)
    builder = twin.RecordBuilder()
    messages: list[Publish] = []
    answers = []
    for event in feeder.decoder.feed(stream):
        if isinstance(event, twin.PublishRun):
            assert builder.append(event.columns, event.start, event.stop, NOW_US, feeder.table) == len(event)
            answers.append(twin.write_answers(event))
        elif isinstance(event, twin.AckRun):
            answers.append(twin.write_acks(event.packet_type << 4, event.ids, 0, len(event)))
        feeder.note([event])
    messages = [packet for packet in feeder.packets if packet.type is PacketType.PUBLISH]
    if not messages:
        return answers
    records = builder.take(0)
    assert records.verify()
    assert len(records) == len(messages)
    written = [bytes(records.to_bytes()), *answers]
    for to_version in (4, 5):
        writer = twin.PublishWriter(to_version, retain_as_published=True)
        written.append(writer.write(records, None, 0, len(records), 2, 1, NOW_US))
        sent, error = read_stream(written[-1], to_version, from_client=False)
        assert error is None
        assert sent == _expected(messages, to_version)
    return written


def _expected(messages: list[Publish], version: int) -> list[Publish]:
    """What a subscriber to everything gets."""
    alive = [each for each in messages if each.properties.message_expiry_interval != 0]
    sent = []
    packet_id = 0
    for each in alive:
        packet_id += each.qos > 0
        properties = replace(each.properties, topic_alias=None) if version == 5 else NO_PROPERTIES
        sent.append(replace(each, dup=False, packet_id=packet_id if each.qos else 0, properties=properties))
    return sent


def fuzz_batch(data: bytes) -> None:
    """Open bytes as a batch on every twin: refused, found damaged, or read."""
    said = [_open(twin, data) for twin in TWINS]
    assert all(each == said[0] for each in said), said


def _open(twin: Twin, data: bytes) -> Any:
    try:
        records = twin.Records(data, 0, twin.TopicTable())
    except StorageError as error:
        return str(error)
    if not records.verify():
        return records.verify_columns()
    who = [(records.publisher(row), records.packet_id(row)) for row in range(len(records))]
    return records.rows(), records.new_names(), records.new_publishers(), who, records.base_offset, records.end_offset
