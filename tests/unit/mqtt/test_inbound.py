"""The inbound kernel: every vector, runs, chunks, limits, aliases and what it keeps in memory."""

import subprocess
import sys
from typing import Any

import pytest
from tests.fuzz.plain import Feeder, Vector, read_stream, vectors
from tests.twins import AMBIENT, IS_COMPILED

from everlog.base import AckRun, MessageColumns, PeerError, PublishRun, TopicTable, UsageError
from everlog.mqtt import (
    Carried,
    Connect,
    Decoder,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Subscribe,
    Subscription,
    encode,
)

VECTORS = vectors()
LATER = [vector for vector in VECTORS if not vector.is_connect]
PING = b"\xc0\x00"
PINGS = {True: PING, False: b"\xd0\x00"}


def feeder(version: int = 5, **limits: Any) -> Feeder:
    return Feeder(AMBIENT, version, **limits)


def publish(topic: str = "a", payload: bytes = b"", alias: int | None = None, **fields: Any) -> bytes:
    return encode(Publish(topic, payload, properties=Properties(topic_alias=alias), **fields), 5)


def named(chosen: list[Vector]) -> list[Any]:
    return [pytest.param(vector, id=vector.name) for vector in chosen]


# Vectors


@pytest.mark.parametrize("vector", named(VECTORS))
def test_vector_reads_as_the_plain_codec_has_it_wherever_it_is_cut(vector: Vector) -> None:
    data, side = vector.data, vector.from_client
    expected = read_stream(data, vector.start_version, side)
    assert vector.reason is None or expected == ([], vector.reason)
    cuts = [[data], [data[i : i + 1] for i in range(len(data))]]
    cuts += [[data[:i], data[i:]] for i in range(1, len(data))]
    shared = bytearray(64)
    for chunks in cuts:
        found = feeder(vector.start_version, from_client=side).feed(*chunks)
        assert found.outcome == expected
        assert found.decoder.buffered_bytes == 0
        read = feeder(vector.start_version, from_client=side).read(shared, *chunks)
        assert (read.outcome, read.decoder.buffered_bytes) == (expected, 0)
        if vector.reason is not None:
            assert found.error is not None
            assert found.error.clause == vector.clause


@pytest.mark.parametrize("vector", named(LATER))
def test_vector_between_packets_of_its_chunk_leaves_those_before_it_and_hides_those_after(vector: Vector) -> None:
    side = vector.from_client
    before = [Publish("t", b"1", 1, packet_id=1), Publish("t", b"2"), Puback(7), Puback(8), Publish("u", b"3")]
    start = b"".join(encode(packet, vector.version) for packet in before)
    stream = start + vector.data + vector.data + PINGS[side]
    found = feeder(vector.version, from_client=side).feed(stream)
    assert found.packets[:5] == before
    if vector.reason is None:
        assert found.outcome == read_stream(stream, vector.version, side)
    else:
        assert found.outcome == (before, vector.reason)
        assert found.decoder.feed(PINGS[side]) == []


@pytest.mark.parametrize("vector", named([vector for vector in VECTORS if vector.is_connect]))
def test_connect_vector_decides_how_the_rest_of_its_chunk_is_read(vector: Vector) -> None:
    packets = [Publish("t", b"1", 1, packet_id=1), Pingreq()]
    stream = vector.data + b"".join(encode(packet, vector.version) for packet in packets)
    found = feeder(0).feed(stream)
    if vector.reason is None:
        assert found.packets[1:] == packets
        assert found.decoder.version == vector.version
    else:
        assert found.outcome == ([], vector.reason)
        assert found.decoder.failed


# Runs


def test_run_of_publishes_is_one_event() -> None:
    stream = b"".join(publish(f"t/{i % 7}", b"x" * (i % 11), qos=1, packet_id=i + 1) for i in range(500))
    found = feeder().feed(stream)
    assert found.shape == [("PublishRun", 500)]
    assert found.outcome == read_stream(stream, 5)


@pytest.mark.parametrize("kind", [Puback, Pubrec, Pubrel, Pubcomp])
def test_run_of_one_kind_of_ack_is_one_event(kind: Any) -> None:
    acks = [kind(i) for i in (1, 2, 255, 256, 65_535)]
    found = feeder().feed(b"".join(encode(ack, 5) for ack in acks))
    assert found.shape == [("AckRun", 5)]
    assert found.packets == acks


def test_ack_with_a_success_code_stays_in_its_run() -> None:
    assert feeder(5).feed(bytes.fromhex("40020001 4003000200 40020003")).shape == [("AckRun", 3)]


def test_ack_with_another_code_keeps_its_place_and_code() -> None:
    acks = [Puback(1), Puback(2, Reason.NO_MATCHING_SUBSCRIBERS), Puback(3, Reason.QUOTA_EXCEEDED), Puback(4)]
    assert feeder(5).feed(b"".join(encode(ack, 5) for ack in acks)).packets == acks


def test_order_of_runs_and_control_packets_is_kept() -> None:
    subscribe = encode(Subscribe(9, (Subscription("a/#"),)), 5)
    parts = [publish("a") * 2, encode(Puback(1), 5) * 3, encode(Pubrec(2), 5), PING, PING, publish("b") * 4]
    parts += [encode(Pubrel(5), 5), publish("c"), subscribe, encode(Pubcomp(5), 5) * 2]
    found = feeder().feed(b"".join(parts))
    assert found.shape == [
        ("PublishRun", 2),
        ("AckRun", 3),
        ("AckRun", 1),
        ("Pingreq", 1),
        ("Pingreq", 1),
        ("PublishRun", 4),
        ("AckRun", 1),
        ("PublishRun", 1),
        ("Subscribe", 1),
        ("AckRun", 2),
    ]
    assert found.outcome == read_stream(b"".join(parts), 5)


def test_stream_reads_the_same_wherever_it_is_cut() -> None:
    parts = [publish("a/b", b"x" * 130, qos=1, packet_id=1), encode(Puback(1), 5), PING, publish("c", b"y")]
    stream = encode(Connect(5, "me"), 5) + b"".join(parts) * 2
    expected = read_stream(stream, 0)
    for first in range(1, len(stream)):
        assert feeder(0).feed(stream[:first], stream[first:]).outcome == expected
    for size in range(1, 40):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert feeder(0).feed(*chunks).outcome == expected


def test_empty_chunk_changes_nothing() -> None:
    whole = publish("a", b"payload")
    assert feeder().feed(b"", whole[:4], b"", whole[4:], b"").packets == [Publish("a", b"payload")]


def test_flags_of_a_run_are_those_of_its_own_messages() -> None:
    expiring = encode(Publish("a", b"", properties=Properties(message_expiry_interval=9)), 5)
    events = feeder().decoder.feed(expiring + PING + publish("a", retain=True) + PING + publish("a"))
    assert [event.any_flags for event in events if isinstance(event, PublishRun)] == [0x10, 0x01, 0x00]


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_columns_grow_with_the_chunk(capacity: int) -> None:
    columns = MessageColumns(capacity)
    decoder = Decoder(columns, TopicTable(), version=4)
    stream = b"".join(encode(Publish(f"{i}", b"%d" % i, 1, packet_id=i), 4) for i in range(1, 301))
    acks = b"".join(encode(Pubcomp(i), 4) for i in range(1, 301))
    run, ack_run = decoder.feed(stream + acks)
    assert (len(run), len(ack_run)) == (300, 300)
    assert columns.capacity >= 300
    assert columns.ack_capacity >= 300
    assert list(memoryview(columns.packet_ids).cast("H")[:300]) == list(range(1, 301))
    assert list(memoryview(ack_run.ids).cast("H")) == list(range(1, 301))


def test_ack_run_outlives_the_next_feed() -> None:
    decoder = Decoder(MessageColumns(4), TopicTable(), version=4)
    (first,) = decoder.feed(encode(Puback(1), 4))
    (second,) = decoder.feed(encode(Puback(2), 4))
    assert isinstance(first, AckRun)
    assert (first.ids, second.ids) == (b"\1\0", b"\2\0")


# Chunks


def test_large_packet_in_small_chunks_is_parsed_once_when_it_is_whole() -> None:
    packet = encode(Publish("a", b"x" * 300_000), 4)
    decoder = Decoder(MessageColumns(1), TopicTable(), version=4)
    parsed_bytes = 0
    held = []
    for at in range(0, len(packet), 100):
        decoder.columns.source = None
        events = decoder.feed(packet[at : at + 100])
        parsed_bytes += len(decoder.columns.source or b"")
        held.append(decoder.buffered_bytes)
    assert len(events) == 1
    assert parsed_bytes == 100 + len(packet)
    assert held == [*range(100, len(packet), 100), 0]


def test_header_in_single_bytes_is_parsed_once_a_byte() -> None:
    packet = encode(Publish("a", b"x" * 20_000), 4)
    decoder = Decoder(MessageColumns(1), TopicTable(), version=4)
    parses = 0
    for at in range(len(packet)):
        decoder.columns.source = None
        decoder.feed(packet[at : at + 1])
        parses += decoder.columns.source is not None
    assert parses == 5  # four bytes of header, then the whole


def test_chunk_may_be_the_beginning_of_a_larger_buffer_that_is_used_again() -> None:
    packet = publish("a/b", b"payload")
    found = feeder()
    for at in range(1, len(packet)):
        buffer = bytearray(packet[:at] + b"\xff" * 50)
        found.note(found.decoder.feed(buffer, at))
        buffer[:] = b"\xee" * len(buffer)
        buffer[: len(packet) - at] = packet[at:]
        found.note(found.decoder.feed(buffer, len(packet) - at))
    assert found.packets == [Publish("a/b", b"payload")] * (len(packet) - 1)
    assert found.decoder.feed(bytearray(5), 0) == []


def test_more_bytes_than_the_chunk_has_are_refused() -> None:
    with pytest.raises(UsageError):
        feeder().decoder.feed(b"\x30", 2)


def test_run_refers_to_the_chunk_without_a_copy() -> None:
    chunk = publish("a", b"payload")
    (run,) = feeder().decoder.feed(chunk)
    assert run.columns.source is chunk


# Room to read into


def put(decoder: Decoder, shared: bytearray, data: bytes) -> list[Any]:
    """Have bytes arrive that fit into the room there is."""
    room = decoder.room_in(shared)
    room[: len(data)] = data
    return decoder.arrived(shared, len(data))


def test_what_is_left_of_a_packet_is_parsed_ahead_of_the_next_read() -> None:
    packet = publish("a", b"x" * 100)
    decoder, shared = Decoder(MessageColumns(4), TopicTable(), version=5), bytearray(1000)
    (run,) = put(decoder, shared, packet + packet[:60])
    assert (len(run), decoder.buffered_bytes) == (1, 60)
    assert len(decoder.room_in(shared)) == 940
    (run,) = put(decoder, shared, packet[60:] + packet + packet[:30])
    assert run.columns.source is shared
    assert memoryview(run.columns.payload_ends).cast("I")[:2].tolist() == [len(packet), 2 * len(packet)]
    assert bytes(shared[: 2 * len(packet)]) == 2 * packet
    assert decoder.buffered_bytes == 30


def test_packet_above_half_of_the_buffer_is_received_where_it_is_parsed() -> None:
    packet = publish("a", b"x" * 5_000)
    decoder, shared = Decoder(MessageColumns(4), TopicTable(), version=5), bytearray(1024)
    rest = packet
    rooms = []
    events: list[Any] = []
    while rest:
        room = decoder.room_in(shared)
        rooms.append(len(room))
        part, rest = rest[: len(room)], rest[len(room) :]
        room[: len(part)] = part
        shared_with_others = room is not shared
        del room
        if shared_with_others:
            shared[:] = b"\xee" * len(shared)
        events += decoder.arrived(shared, len(part))
    (run,) = events
    assert rooms == [1024, 3 * 1024, len(packet) - 4 * 1024]  # none of it lets in a byte of the next packet
    assert run.columns.source is not shared
    assert bytes(run.columns.source) == packet
    assert decoder.buffered_bytes == 0


def test_header_of_a_large_packet_alone_gets_no_room_of_its_own() -> None:
    decoder, shared = Decoder(MessageColumns(4), TopicTable(), version=4), bytearray(1024)
    assert put(decoder, shared, b"\x30\xff\xff\x3e") == []
    assert len(decoder.room_in(shared)) == 1020
    assert put(decoder, shared, bytes(59)) == []
    assert len(decoder.room_in(shared)) == 1024 - 63
    assert put(decoder, shared, bytes(1)) == []
    assert len(decoder.room_in(shared)) == 3 * 64


@pytest.mark.parametrize("size", [400, 3_000])
def test_bytes_that_trickle_in_are_counted_and_not_parsed_until_the_packet_is_whole(size: int) -> None:
    packet = publish("a", b"x" * size)
    carried = Carried()
    decoder = Decoder(MessageColumns(4), TopicTable(), version=5, carried=carried)
    shared = bytearray(1024)
    parses = 0
    for at in range(len(packet)):
        decoder.columns.source = None
        events = put(decoder, shared, packet[at : at + 1])
        parses += decoder.columns.source is not None
        assert decoder.buffered_bytes == carried.total_bytes == (at + 1) % len(packet)
    assert len(events) == 1
    assert parses == 4  # three bytes of header, then the whole


@pytest.mark.parametrize("first", [10, 600])
def test_what_waits_for_more_and_what_is_dropped_is_counted(first: int) -> None:
    packet = publish("a", b"x" * 2_000)
    carried = Carried()
    decoder = Decoder(MessageColumns(4), TopicTable(), version=5, carried=carried, max_events=1)
    shared = bytearray(1024)
    put(decoder, shared, packet[:first])
    put(decoder, shared, packet[first : first + 5])
    decoder.hold(packet[first + 5 :] + PING + PING, len(packet) - first - 5 + 4)
    assert decoder.room_in(shared) is shared
    assert carried.total_bytes == decoder.buffered_bytes == len(packet) + 4
    run, ping = decoder.more()
    assert (len(run), ping) == (1, Pingreq())
    assert carried.total_bytes == decoder.buffered_bytes == len(packet) + 4, "the rest is where it was"
    assert decoder.more() == [Pingreq()]
    assert carried.total_bytes == 0
    put(decoder, shared, packet[:first])
    assert carried.total_bytes == first
    decoder.room_in(shared)
    decoder.drop()
    assert carried.total_bytes == decoder.buffered_bytes == 0
    assert decoder.arrived(shared, 10) == []


def test_more_bytes_than_there_was_room_for_are_refused() -> None:
    for first in (10, 600):
        decoder, shared = Decoder(MessageColumns(4), TopicTable(), version=5), bytearray(1024)
        put(decoder, shared, publish("a", b"x" * 5_000)[:first])
        with pytest.raises(UsageError):
            decoder.arrived(shared, len(decoder.room_in(shared)) + 1)


# Limits


@pytest.mark.parametrize("size", [100, 128, 5_000, 20_000, 3_000_000])
def test_packet_over_the_limit_is_refused_at_its_header_and_nothing_is_buffered(size: int) -> None:
    packet = encode(Publish("a", b"x" * size), 4)
    header_bytes = len(packet) - size - 3
    decoder = Decoder(MessageColumns(1), TopicTable(), max_packet_bytes=len(packet) - 1, version=4)
    for at in range(header_bytes - 1):
        assert decoder.feed(packet[at : at + 1]) == []
        assert decoder.buffered_bytes == at + 1
    (error,) = decoder.feed(packet[header_bytes - 1 : header_bytes])
    assert isinstance(error, PeerError)
    assert error.reason == Reason.PACKET_TOO_LARGE
    assert decoder.buffered_bytes == 0
    assert decoder.feed(packet[header_bytes:]) == []
    assert decoder.buffered_bytes == 0


def test_packet_at_the_limit_is_taken() -> None:
    packet = encode(Publish("a", b"x" * 500), 4)
    assert len(feeder(4, max_packet_bytes=len(packet)).feed(packet).packets) == 1


def test_limit_of_an_open_connection_may_change() -> None:
    found = feeder(4).feed(encode(Publish("a", b"x" * 500), 4))
    found.decoder.max_publish_bytes = 100
    assert found.feed(encode(Publish("a", b"x" * 500), 4)).outcome[1] == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("first", [publish(), PING, encode(Puback(1), 5), b"\xe0\x00", b"\x00\x00", b"\xf0\x00"])
def test_first_packet_must_be_a_connect(first: bytes) -> None:
    assert feeder(0).feed(first).outcome == ([], Reason.PROTOCOL_ERROR)
    assert feeder(0).feed(first[:2]).outcome == ([], Reason.PROTOCOL_ERROR), "the header is enough"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_second_connect_ends_the_connection(version: int) -> None:
    connect = Connect(version, "me")
    packet = encode(connect, version)
    assert feeder(0).feed(packet + packet + PING).outcome == ([connect], Reason.PROTOCOL_ERROR)
    assert feeder(0).feed(packet, PING, packet).outcome == ([connect, Pingreq()], Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("limit", [{"max_topics": 2}, {"max_bytes": 3}])
def test_new_topic_for_a_full_table_is_over_quota_while_known_ones_go_on(limit: dict[str, int]) -> None:
    table = TopicTable(0, **limit)
    decoder = Decoder(MessageColumns(4), table, version=4)
    assert [len(run) for run in decoder.feed(encode(Publish("a", b""), 4) + encode(Publish("bb", b""), 4))] == [2]
    run, error = decoder.feed(encode(Publish("bb", b""), 4) + encode(Publish("cc", b""), 4))
    assert len(run) == 1
    assert error.reason == Reason.QUOTA_EXCEEDED
    assert table.all_names() == [b"a", b"bb"]


def test_decoders_share_the_ids_of_a_table() -> None:
    columns, table = MessageColumns(4), TopicTable()
    for version in (3, 4, 5):
        decoder = Decoder(columns, table, version=version)
        (run,) = decoder.feed(encode(Publish("same/topic", b""), version))
        assert memoryview(run.columns.topics).cast("I")[run.start] == 0
    assert len(table) == 1


def test_malformed_topic_is_not_taken_into_the_table() -> None:
    found = feeder(4)
    found.feed(bytes.fromhex("3005 0003 612f23"))
    assert found.outcome == ([], Reason.MALFORMED_PACKET)
    assert len(found.table) == 0


# Topic aliases


def test_alias_stands_for_its_topic_until_it_is_given_another() -> None:
    packets = [publish("a/b", alias=3), publish("", alias=3), publish("c", alias=3), publish("", alias=3)]
    packets += [publish("d", alias=1), publish("", alias=3), publish("", alias=1)]
    found = feeder(max_aliases=3).feed(*packets)
    assert [packet.topic for packet in found.packets] == ["a/b", "a/b", "c", "c", "d", "c", "d"]
    assert found.shape == [("PublishRun", 1)] * 7
    assert feeder(max_aliases=3).feed(b"".join(packets)).packets == found.packets


@pytest.mark.parametrize("topic", ["a", ""])
def test_alias_over_the_limit_is_invalid(topic: str) -> None:
    found = feeder(max_aliases=3).feed(publish("a", alias=3) + publish(topic, alias=4))
    assert len(found.packets) == 1
    assert found.outcome[1] == Reason.TOPIC_ALIAS_INVALID


def test_alias_is_invalid_when_none_are_allowed() -> None:
    assert feeder(max_aliases=0).feed(publish("a", alias=1)).outcome == ([], Reason.TOPIC_ALIAS_INVALID)


def test_alias_zero_is_invalid() -> None:
    packet = bytearray(publish("a", alias=1))
    packet[packet.index(b"\x23\x00\x01") + 2] = 0
    assert feeder().feed(bytes(packet)).outcome == ([], Reason.TOPIC_ALIAS_INVALID)


@pytest.mark.parametrize("before", [b"", publish("a", alias=1)])
def test_alias_without_a_topic_is_a_protocol_error(before: bytes) -> None:
    assert feeder(max_aliases=9).feed(before + publish("", alias=2)).outcome[1] == Reason.PROTOCOL_ERROR


def test_alias_of_a_refused_packet_is_not_set() -> None:
    found = feeder(max_aliases=9).feed(publish("a", alias=1))
    bad = publish("b", alias=1, qos=1, packet_id=1)
    found.feed(bad.replace(b"b\x00\x01", b"b\x00\x00"))
    assert found.outcome == ([Publish("a", b"", properties=Properties(topic_alias=1))], Reason.PROTOCOL_ERROR)


def test_aliases_survive_a_reset_of_the_table() -> None:
    found = feeder(max_aliases=5).feed(publish("zero"), publish("a", alias=1), publish("b", alias=2))
    found.table.reset()
    found.feed(publish("", alias=2), publish("", alias=1), publish("a"))
    assert [packet.topic for packet in found.packets[3:]] == ["b", "a", "a"]
    assert found.table.all_names() == [b"b", b"a"]


def test_alias_changes_hands_after_a_reset_though_the_new_topic_got_the_old_id() -> None:
    found = feeder(max_aliases=5).feed(publish("a", alias=1))
    found.table.reset()
    found.feed(publish("b", alias=1), publish("", alias=1))
    assert [packet.topic for packet in found.packets] == ["a", "b", "b"]


def test_alias_whose_topic_no_longer_fits_the_table_is_over_quota() -> None:
    table = TopicTable(0, max_topics=1)
    decoder = Decoder(MessageColumns(4), table, max_aliases=5, version=5)
    decoder.feed(publish("a", alias=1))
    table.reset()
    decoder.feed(publish("b"))
    (error,) = decoder.feed(publish("", alias=1))
    assert isinstance(error, PeerError)
    assert error.reason == Reason.QUOTA_EXCEEDED


def test_limit_of_aliases_may_rise_while_some_are_in_use() -> None:
    found = feeder(max_aliases=1).feed(publish("a", alias=1))
    found.decoder.max_aliases = 500
    found.feed(publish("b", alias=500), publish("", alias=500), publish("", alias=1))
    assert [packet.topic for packet in found.packets] == ["a", "b", "b", "a"]
    assert found.feed(publish("", alias=499)).outcome[1] == Reason.PROTOCOL_ERROR


# The client's side


@pytest.mark.parametrize("identifiers", [(1,), (127, 128), (16_383, 16_384, 2_097_151, 2_097_152, 268_435_455)])
def test_subscription_identifiers_come_from_servers_only(identifiers: tuple[int, ...]) -> None:
    message = Publish("a", b"x", properties=Properties(subscription_identifiers=identifiers))
    packet = encode(message, 5)
    found = feeder(from_client=False).feed(packet)
    assert found.packets == [message]
    assert found.shape == [("PublishRun", 1)]
    assert feeder(from_client=True).feed(packet).outcome == ([], Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("value", ["00", "8000", "8100", "80808000", "ffffffff01", "8080808001", "ff", "ffffffff"])
def test_subscription_identifier_that_is_no_variable_byte_integer_is_refused(value: str) -> None:
    section = b"\x0b" + bytes.fromhex(value)
    body = b"\x00\x01a" + bytes((len(section),)) + section
    packet = bytes((0x30, len(body))) + body
    expected = read_stream(packet, 5, from_client=False)
    assert expected[1] in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
    assert feeder(from_client=False).feed(packet).outcome == expected


def test_server_may_not_send_what_clients_send() -> None:
    assert feeder(from_client=False).feed(PING).outcome == ([], Reason.PROTOCOL_ERROR)
    assert feeder(from_client=False).feed(encode(Connect(5, "me"), 5)).outcome == ([], Reason.PROTOCOL_ERROR)


# Memory

_FEED = """
import resource
from everlog.base import MessageColumns, TopicTable
from everlog.mqtt import Connect, Decoder, Puback, Publish, Subscribe, Subscription, encode

def peak_kb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

packets = [encode(Publish(f"s/{i % 100}", b"x" * (i % 300), 1, packet_id=i % 65_535 + 1), 5) for i in range(20_000)]
packets += [encode(Puback(i + 1), 5) for i in range(2_000)]
packets += [encode(Subscribe(1, (Subscription("a/#"),)), 5)] * 100
packets += [encode(Publish("large", b"y" * 200_000), 5)] * 3
stream = b"".join(packets)
decoder = Decoder(MessageColumns(16), TopicTable(), version=5)
chunks = [stream[i : i + 65_536] for i in range(0, len(stream), 65_536)]

def feed_once():
    for chunk in chunks:
        for event in decoder.feed(chunk):
            assert not isinstance(event, Exception), event

feed_once()
before = peak_kb()
for _ in range({total} // len(stream) + 1):
    feed_once()
print(peak_kb() - before, decoder.buffered_bytes)
"""


@pytest.mark.slow
def test_memory_stays_flat_over_a_gigabyte() -> None:
    total = 1_000_000_000 if IS_COMPILED else 60_000_000
    script = _FEED.replace("{total}", str(total))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown_kb, buffered = map(int, done.stdout.split())
    assert grown_kb < 10 * 1024
    assert buffered == 0


# Tables that are looked into ahead


@pytest.mark.skipif(not IS_COMPILED, reason="there is no memory to wait for")
@pytest.mark.parametrize("mount", [b"", b"m/"])
def test_names_of_a_large_table_are_found_in_any_order_and_new_ones_added(mount: bytes) -> None:
    table = TopicTable()
    for number in range(20_000):
        table.intern(mount + b"t/%d" % number)
    decoder = Decoder(MessageColumns(16), table, version=5, mount=mount, max_aliases=10)
    numbers = [number * 7919 % 21_000 for number in range(500)] + list(range(300, 400)) + [20_999, 0]
    stream = b"".join(
        publish(f"t/{number}", b"x" * (number % 300), alias=1 if number % 11 == 0 else None) + PING * (number % 13 == 0)
        for number in numbers
    )
    found = []
    for event in decoder.feed(stream):
        if isinstance(event, PublishRun):
            topics = memoryview(event.columns.topics).cast("I")
            found += [table.name(topics[row]) for row in range(event.start, event.stop)]
        else:
            assert isinstance(event, Pingreq)
    assert found == [mount + b"t/%d" % number for number in numbers]
    assert table.count == len(set(table.all_names())) == 20_000 + len({n for n in numbers if n >= 20_000})


@pytest.mark.skipif(not IS_COMPILED, reason="there is no memory to wait for")
@pytest.mark.parametrize(
    "tail", [b"", b"\x30", b"\x30\xff\xff\xff\x7f", b"\x30\xff\xff\xff\xff\x01", b"\x30\x05\xff\xff"]
)
def test_what_follows_may_be_cut_anywhere_or_malformed(tail: bytes) -> None:
    table = TopicTable()
    for number in range(20_000):
        table.intern(b"t/%d" % number)
    data = publish("t/77") + publish("t/5") + tail
    for size in range(1, len(data) + 1):
        decoder = Decoder(MessageColumns(16), table, version=5)
        runs = [event for event in decoder.feed(data[:size]) if isinstance(event, PublishRun)]
        assert sum(map(len, runs)) == (size >= len(publish("t/77"))) + (size >= len(publish("t/77") + publish("t/5")))
