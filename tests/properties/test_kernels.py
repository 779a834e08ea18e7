"""Properties of the protocol kernels: what is written is what was sent, at any size, and the twins agree."""

import struct
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fuzz.plain import MAX_PACKET_BYTES, Feeder, read_stream
from tests.fuzz.target import fuzz_one, head
from tests.twins import AMBIENT, IS_COMPILED, TWINS, batch_of, needs_both, needs_compiled

from everlog.base import MessageColumns, RecordBuilder, TopicTable
from everlog.mqtt import (
    NO_PROPERTIES,
    Decoder,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    PublishWriter,
    Pubrec,
    Pubrel,
    Reason,
    encode,
)
from everlog.mqtt.primitives import varint

SECOND = 1_000_000
MAX_VARINT = 268_435_455
EXAMPLES = 300 if IS_COMPILED else 150
BOUNDARIES = [126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]

common = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
topics = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12)
few_topics = st.one_of(st.sampled_from(["a", "b/c", "ü/€/𐍈", "d" * 130]), topics)
message_properties = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | st.integers(0, 100) | st.just(0xFFFF_FFFF),
    content_type=st.none() | texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | st.binary(max_size=140),
    topic_alias=st.none() | st.integers(1, 100),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)


@st.composite
def publishes(draw: Any) -> Publish:
    qos = draw(st.integers(0, 2))
    return Publish(
        draw(few_topics),
        draw(st.binary(max_size=150)),
        qos,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        draw(st.sampled_from([1, 2, 255, 256, 65_535])) if qos else 0,
        draw(st.just(NO_PROPERTIES) | message_properties),
    )


acks = st.builds(
    lambda kind, packet_id: kind(packet_id), st.sampled_from([Puback, Pubrec, Pubrel, Pubcomp]), st.integers(1, 65_535)
)


@st.composite
def cut_streams(draw: Any, version: int) -> tuple[list[Any], list[bytes]]:
    """Packets and their stream in chunks."""
    packets = draw(st.lists(publishes() | acks, max_size=12))
    stream = b"".join(encode(packet, version) for packet in packets)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    return packets, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def without_properties(packet: Any) -> Any:
    return replace(packet, properties=NO_PROPERTIES)


# Inbound


@common
@given(cut_streams(5))
def test_what_a_client_encodes_is_what_the_kernel_reads(given_stream: tuple[list[Any], list[bytes]]) -> None:
    packets, chunks = given_stream
    for twin in TWINS:
        assert Feeder(twin, 5).feed(*chunks).outcome == (packets, None)


@common
@given(cut_streams(4))
def test_what_a_311_client_encodes_is_what_the_kernel_reads(given_stream: tuple[list[Any], list[bytes]]) -> None:
    packets, chunks = given_stream
    for twin in TWINS:
        assert Feeder(twin, 4).feed(*chunks).outcome == ([without_properties(packet) for packet in packets], None)


@common
@given(st.binary(max_size=80), st.sampled_from([0, 3, 4, 5]), st.booleans(), st.integers(0, 255))
def test_any_bytes_are_packets_or_one_peer_error(data: bytes, version: int, from_client: bool, cuts: int) -> None:
    fuzz_one(head(version, from_client or version == 0, 0, cuts) + data)


@common
@given(st.binary(min_size=1, max_size=30), st.binary(max_size=30), st.integers(0, 255))
def test_any_bytes_as_topic_and_properties_are_judged_as_the_plain_codec_does(
    topic: bytes, section: bytes, cuts: int
) -> None:
    body = len(topic).to_bytes(2, "big") + topic + bytes((len(section),)) + section + b"payload"
    for first_byte in (0x30, 0x31, 0x38):
        fuzz_one(head(5, True, 0, cuts) + bytes((first_byte, len(body))) + body)
        fuzz_one(head(5, False, 0, cuts) + bytes((first_byte, len(body))) + body)


# Outbound


@st.composite
def subscribers(draw: Any) -> dict[str, Any]:
    return {
        "version": draw(st.sampled_from([3, 4, 5])),
        "max_packet_bytes": draw(st.sampled_from([MAX_PACKET_BYTES, MAX_PACKET_BYTES, 140, 40])),
        "max_aliases": draw(st.sampled_from([0, 0, 1, 3, 65_535])),
        "retain_as_published": draw(st.booleans()),
        "identifiers": draw(st.lists(st.integers(1, MAX_VARINT) | st.integers(1, 200), max_size=3)),
    }


def writer_for(subscriber: dict[str, Any], twin: Any = AMBIENT) -> Any:
    section = b"".join(b"\x0b" + varint(value) for value in subscriber["identifiers"])
    return twin.PublishWriter(**{**subscriber, "identifiers": section})


def delivered(
    message: Publish, age_us: int, subscriber: dict[str, Any], max_qos: int, dup: bool, packet_id: int
) -> Publish | None:
    """What one subscriber gets for one message, or None if it is left out; aliases aside."""
    properties = replace(message.properties, topic_alias=None)
    if (interval := properties.message_expiry_interval) is not None:
        if age_us // SECOND >= interval:
            return None
        properties = replace(properties, message_expiry_interval=interval - age_us // SECOND)
    properties = replace(properties, subscription_identifiers=tuple(subscriber["identifiers"]))
    qos = min(message.qos, max_qos)
    return Publish(
        message.topic,
        message.payload,
        qos,
        message.retain and subscriber["retain_as_published"],
        dup and qos > 0,
        packet_id if qos else 0,
        properties if subscriber["version"] == 5 else NO_PROPERTIES,
    )


def expected(
    messages: list[Publish], ages_us: list[int], subscriber: dict[str, Any], max_qos: int, dup: bool, first_id: int
) -> list[Publish]:
    """What a subscriber without aliases gets for a run."""
    sent = []
    packet_id = first_id
    for message, age_us in zip(messages, ages_us, strict=True):
        packet = delivered(message, age_us, subscriber, max_qos, dup, packet_id)
        if packet is None or len(encode(packet, subscriber["version"])) > subscriber["max_packet_bytes"]:
            continue
        sent.append(packet)
        if packet.qos:
            packet_id = packet_id % 65_535 + 1
    return sent


runs = {
    "messages": st.lists(publishes(), min_size=1, max_size=10),
    "subscriber": subscribers(),
    "max_qos": st.integers(0, 2),
    "dup": st.booleans(),
    "first_id": st.sampled_from([1, 77, 65_534, 65_535]),
    "data": st.data(),
}


@common
@given(**runs)
def test_written_packets_are_exactly_the_expected_ones(
    messages: list[Publish], subscriber: dict[str, Any], max_qos: int, dup: bool, first_id: int, data: Any
) -> None:
    subscriber = {**subscriber, "max_aliases": 0}
    times = sorted(data.draw(st.lists(st.integers(0, 90 * SECOND), min_size=len(messages), max_size=len(messages))))
    now_us = data.draw(st.integers(times[-1], times[-1] + 60 * SECOND))
    chosen = data.draw(st.none() | st.lists(st.integers(0, len(messages) - 1), max_size=8))
    picked = list(range(len(messages))) if chosen is None else chosen
    rows = None if chosen is None else struct.pack(f"<{len(chosen)}I", *chosen)
    records = batch_of(messages, times_us=times)
    writer = writer_for(subscriber)
    written = writer.write(records, rows, 0, len(picked), max_qos, first_id, now_us, dup)
    wanted = expected(
        [messages[i] for i in picked], [now_us - times[i] for i in picked], subscriber, max_qos, dup, first_id
    )
    assert read_stream(written, subscriber["version"], from_client=False) == (wanted, None)
    assert (writer.written, writer.left_out) == (len(wanted), len(picked) - len(wanted))
    assert writer.ids_used == sum(packet.qos > 0 for packet in wanted)
    assert writer.next_id == (first_id + writer.ids_used - 1) % 65_535 + 1


@common
@given(**runs)
def test_written_packets_with_aliases_are_the_expected_ones(
    messages: list[Publish], subscriber: dict[str, Any], max_qos: int, dup: bool, first_id: int, data: Any
) -> None:
    del data
    subscriber = {**subscriber, "version": 5, "max_packet_bytes": MAX_PACKET_BYTES}
    records = batch_of(messages)
    writer = writer_for(subscriber)
    count = len(messages)
    written = b"".join(writer.write(records, None, 0, count, max_qos, first_id, SECOND, dup) for _ in range(2))
    packets, error = read_stream(written, 5, from_client=False, max_aliases=subscriber["max_aliases"])
    assert error is None
    found = [replace(packet, properties=replace(packet.properties, topic_alias=None)) for packet in packets]
    assert found == expected(messages, [0] * count, subscriber, max_qos, dup, first_id) * 2


@needs_both
@common
@given(**runs)
def test_twins_write_the_same_batch_and_the_same_packets(
    messages: list[Publish], subscriber: dict[str, Any], max_qos: int, dup: bool, first_id: int, data: Any
) -> None:
    now_us = data.draw(st.integers(0, 100 * SECOND))
    max_ids = data.draw(st.integers(0, 12))
    said = []
    for twin in TWINS:
        records = batch_of(messages, twin, base_offset=first_id)
        writer = writer_for(subscriber, twin)
        written = [
            writer.write(records, None, 0, len(records), max_qos, first_id, now_us, dup, max_ids) for _ in range(2)
        ]
        counts = (writer.written, writer.left_out, writer.ids_used, writer.next_id, writer.stopped_at)
        said.append((bytes(records.to_bytes()), written, counts))
    assert said[0] == said[1]


@common
@given(
    st.lists(publishes(), min_size=1, max_size=5),
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)),
    st.integers(0, (1 << 56) - 10) | st.sampled_from([0, 9, 10, 99, 100]),
    st.integers(0, 255),
    st.lists(st.integers(0, 60_000_000), min_size=5, max_size=5),
)
def test_position_and_time_are_those_of_the_record(
    messages: list[Publish], time: datetime, base_offset: int, shard: int, later_us: list[int]
) -> None:
    first = (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    messages = [replace(one, properties=replace(one.properties, message_expiry_interval=None)) for one in messages]
    times = [first + more for more in sorted(later_us)[: len(messages)]]
    for twin in TWINS:
        records = batch_of(messages, twin, times_us=times, base_offset=base_offset)
        writer = twin.PublishWriter(5, tells=1)
        written = writer.write(records, None, 0, len(records), 2, 1, first, shard=shard)
        packets, error = read_stream(written, 5, from_client=False)
        assert error is None
        for k, (packet, message, time_us) in enumerate(zip(packets, messages, times, strict=True)):
            shown = (datetime(1970, 1, 1) + timedelta(microseconds=time_us)).isoformat(timespec="microseconds") + "Z"
            place = () if shard == 255 else (("everlog-position", f"{shard}:{base_offset + k}"),)
            own = message.properties.user_properties
            assert packet.properties.user_properties == (*own, *place, ("everlog-time", shown))


@needs_both
@common
@given(st.lists(st.binary(max_size=20), max_size=60), st.integers(0, (1 << 64) - 1), st.integers(0, 40))
def test_twins_give_topics_the_same_ids(names: list[bytes], seed: int, max_topics: int) -> None:
    tables = [twin.TopicTable(seed, max_topics) for twin in TWINS]
    assert [tables[0].intern(name) for name in names] == [tables[1].intern(name) for name in names]
    assert tables[0].all_names() == tables[1].all_names()


@common
@given(st.lists(st.integers(1, 65_535), max_size=40), st.data())
def test_acks_are_those_of_the_ids_given(ids: list[int], data: Any) -> None:
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    column = struct.pack(f"<{len(ids)}H", *ids)
    for twin in TWINS:
        written = twin.write_acks(0x62, column, start, stop)
        assert written == b"".join(encode(Pubrel(packet_id), 5) for packet_id in ids[start:stop])


# Extremes


def sized(remaining: int, version: int, topic: str = "t", **fields: Any) -> Publish:
    """A message whose packet has this remaining length."""
    bare = len(topic.encode()) + 2 + 2 * bool(fields.get("qos")) + (version == 5)
    return Publish(topic, b"\xa5" * (remaining - bare), **fields)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("remaining", BOUNDARIES)
def test_message_of_a_boundary_length_comes_through(remaining: int, version: int) -> None:
    message = sized(remaining, version, qos=1, packet_id=1)
    packet = encode(message, version)
    chunks = [packet[i : i + 65_536] for i in range(0, len(packet), 65_536)]
    for twin in TWINS:
        assert Feeder(twin, version).feed(packet, *chunks).packets == [message, message]
        records = batch_of([message], twin, version=version)
        assert records.verify()
        assert twin.PublishWriter(version).write(records, None, 0, 1, 1, 1, SECOND) == packet


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["x" * 65_535, "é" * 32_767 + "x"])
def test_longest_topic_comes_through(version: int, topic: str) -> None:
    message = Publish(topic, b"payload", 2, packet_id=65_535)
    packet = encode(message, version)
    for twin in TWINS:
        assert Feeder(twin, version).feed(
            packet, *(packet[i : i + 1_000] for i in range(0, len(packet), 1_000))
        ).packets == [
            message,
            message,
        ]
        written = twin.PublishWriter(version).write(
            batch_of([message], twin, version=version), None, 0, 1, 2, 65_535, SECOND
        )
        assert written == packet


def test_longest_properties_come_through() -> None:
    properties = Properties(
        correlation_data=b"\xff" * 65_535,
        content_type="c" * 65_535,
        user_properties=(("k" * 65_535, "v" * 65_535), ("", "")),
    )
    message = Publish("a", b"x", properties=properties)
    packet = encode(message, 5)
    for twin in TWINS:
        assert Feeder(twin, 5).feed(packet).packets == [message]
        assert twin.PublishWriter(5).write(batch_of([message], twin), None, 0, 1, 0, 1, SECOND) == packet


@needs_compiled
@pytest.mark.slow
def test_longest_packet_comes_through() -> None:
    payload_bytes = MAX_VARINT - 3
    header = b"\x30\xff\xff\xff\x7f\x00\x01t"
    table = TopicTable()
    decoder = Decoder(MessageColumns(1), table, version=4)
    chunk = b"\xa5" * (1 << 20)
    events = decoder.feed(header)
    for _ in range(payload_bytes >> 20):
        assert not events
        events = decoder.feed(chunk)
    (run,) = events or decoder.feed(chunk, payload_bytes & (1 << 20) - 1)
    assert len(run.columns.source) == MAX_PACKET_BYTES
    builder = RecordBuilder()
    builder.append(run.columns, 0, 1, 0, table)
    run.columns.source = b""
    records = builder.take(0)
    assert (records.payload_bytes, records.verify()) == (payload_bytes, True)
    written = PublishWriter(4).write(records, None, 0, 1, 0, 1, SECOND)
    assert len(written) == MAX_PACKET_BYTES
    assert written.startswith(header)
    assert written.count(b"\xa5") == payload_bytes
    longer = PublishWriter(5)  # its property length makes it one byte too long
    assert longer.write(records, None, 0, 1, 0, 1, SECOND) == b""
    assert longer.left_out == 1


def test_longest_remaining_length_is_waited_for_and_one_more_byte_is_malformed() -> None:
    waiting = Feeder(AMBIENT, 4).feed(b"\x30\xff\xff\xff\x7f")
    assert waiting.outcome == ([], None)
    assert Feeder(AMBIENT, 4).feed(b"\x30\xff\xff\xff\xff").outcome == ([], Reason.MALFORMED_PACKET)
