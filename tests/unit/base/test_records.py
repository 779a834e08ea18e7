"""Batches: what goes in comes out, nothing damaged goes unnoticed, and no range is believed unchecked."""

import struct
from typing import Any

import pytest
from msgspec.structs import replace
from tests.twins import batch_of

from everlog.base import HEADER_BYTES, MessageColumns, RecordBuilder, Records, StorageError, TopicTable, UsageError
from everlog.mqtt import Decoder, Properties, Publish, encode
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.properties import encode_properties

PROPERTIES = Properties(content_type="text", user_properties=(("k", "v"),))


def section(properties: Properties) -> bytes:
    return encode_properties(properties, PacketType.PUBLISH)[1:]


class Source:
    """A connection that messages arrive on."""

    def __init__(self, table: TopicTable | None = None, version: int = 5) -> None:
        self.table = TopicTable() if table is None else table
        self.version = version
        self.decoder = Decoder(MessageColumns(2), self.table, max_aliases=20, version=version)

    def run(self, *messages: Publish) -> Any:
        (run,) = self.decoder.feed(b"".join(encode(message, self.version) for message in messages))
        return run

    def append(self, builder: RecordBuilder, now_us: int, *messages: Publish, **more: Any) -> int:
        run = self.run(*messages)
        return builder.append(run.columns, run.start, run.stop, now_us, self.table, **more)


# Round trip


def test_batch_gives_back_what_was_appended() -> None:
    builder, source = RecordBuilder(), Source()
    source.append(builder, 1_000, Publish("a", b"one", 1, packet_id=1), Publish("b/c", b"", retain=True))
    source.append(builder, 2_000, Publish("a", b"three", 2, packet_id=2, properties=PROPERTIES))
    assert len(builder) == 3
    records = builder.take(500)
    assert records.verify_columns()
    assert records.verify()
    assert records.rows() == [
        (500, 1_000, 0, 0x02, b"", b"one"),
        (501, 1_000, 1, 0x01, b"", b""),
        (502, 2_000, 0, 0x04, section(PROPERTIES), b"three"),
    ]
    assert (records.base_offset, records.end_offset, len(records)) == (500, 503, 3)
    assert (records.first_time, records.last_time) == (1_000, 2_000)
    assert records.new_names() == [b"a", b"b/c"]
    assert [records.offset(i) for i in range(3)] == [500, 501, 502]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("properties", [Properties(), PROPERTIES])
def test_batch_of_any_length_verifies(count: int, properties: Properties) -> None:
    messages = [Publish(f"t/{i % 10}", b"x" * (i % 20), properties=properties) for i in range(count)]
    records = batch_of(messages, base_offset=7)
    assert records.verify()
    assert [row[5] for row in records.rows()] == [message.payload for message in messages]
    assert {row[4] for row in records.rows()} == {section(properties)}
    assert len(records.to_bytes()) == records.size == records.layout.end
    assert records.size % 8 == 0


def test_batch_reads_the_same_anywhere_in_a_buffer() -> None:
    records = batch_of([Publish("a", b"1", properties=PROPERTIES), Publish("b", b"2")], base_offset=1 << 40)
    for before in range(10):
        for kind in (bytes, bytearray):
            data = kind(b"\xaa" * before + bytes(records.to_bytes()) + b"\xbb" * 5)
            moved = Records(data, before, records.table)
            assert moved.verify()
            assert moved.rows() == records.rows()
            assert moved.new_names() == records.new_names()
            assert moved.to_bytes() == records.to_bytes()


def test_batch_alone_in_its_buffer_is_not_copied() -> None:
    records = batch_of([Publish("a", b"1")])
    assert records.to_bytes() is records.data


def test_builder_is_empty_and_reusable_after_take() -> None:
    builder, source = RecordBuilder(), Source()
    first = source.append(builder, 5, Publish("a", b"1")) and builder.take(0)
    assert len(builder) == 0
    second = source.append(builder, 6, Publish("a", b"2")) and builder.take(1)
    assert [first.row(0)[5], second.row(0)[5]] == [b"1", b"2"]
    with pytest.raises(UsageError):
        builder.take(2)


def test_size_foretells_the_bytes_of_the_batch() -> None:
    builder, source = RecordBuilder(), Source()
    for i in range(100):
        source.append(builder, 5, Publish("a", b"x" * i, properties=PROPERTIES))
    foretold = builder.size
    assert 0 <= builder.take(0).size - foretold < 600


def test_large_payloads_pass_through() -> None:
    builder, source = RecordBuilder(), Source()
    payloads = [bytes((i,)) * (3 << 20) for i in range(3)]
    for again in range(2):
        for payload in payloads:
            source.append(builder, 5, Publish("a", payload))
        records = builder.take(3 * again)
        assert records.verify()
        assert [row[5] for row in records.rows()] == payloads


# What is kept of a message


def test_dup_and_alias_belong_to_the_connection() -> None:
    for other in (Properties(), PROPERTIES, Properties(message_expiry_interval=9, correlation_data=b"\x23\x00\x01")):
        message = Publish("a", b"x", 1, True, True, 9, replace(other, topic_alias=3))
        row = batch_of([message]).row(0)
        assert row[3] == 0x03 | (0x10 if other.message_expiry_interval else 0)
        assert row[4] == section(other)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_alias_is_taken_out_wherever_it_stands(at: int) -> None:
    parts = [b"\x02\x00\x00\x00\x09", b"\x26\x00\x01\x23\x00\x01\x23", b"\x09\x00\x03\x23\x23\x23"]
    properties = b"".join([*parts[:at], b"\x23\x00\x07", *parts[at:]])
    body = b"\x00\x01a" + bytes((len(properties),)) + properties + b"payload"
    source, builder = Source(), RecordBuilder()
    (run,) = source.decoder.feed(bytes((0x30, len(body))) + body)
    builder.append(run.columns, run.start, run.stop, 0, source.table)
    row = builder.take(0).row(0)
    assert row[4:] == (b"".join(parts), b"payload")


def test_times_never_go_back() -> None:
    builder, source = RecordBuilder(), Source()
    for now_us in (100, 50, 120, 119):
        source.append(builder, now_us, Publish("a", b""))
    assert [row[1] for row in builder.take(0).rows()] == [100, 100, 120, 120]
    source.append(builder, 3, Publish("a", b""))
    assert builder.take(4).row(0)[1] == 120


def test_batch_spans_no_more_than_its_time_deltas_can_say() -> None:
    builder, source = RecordBuilder(), Source()
    source.append(builder, 10, Publish("a", b""))
    source.append(builder, 10 + 0xFFFF_FFFF, Publish("a", b""))
    with pytest.raises(UsageError):
        source.append(builder, 11 + 0xFFFF_FFFF, Publish("a", b""))
    records = builder.take(0)
    assert records.verify()
    assert [row[1] for row in records.rows()] == [10, 10 + 0xFFFF_FFFF]


def test_times_and_offsets_use_all_their_bits() -> None:
    records = batch_of([Publish("a", b"")], times_us=[(1 << 63) + 5], base_offset=(1 << 62) + 1)
    assert records.row(0)[:2] == ((1 << 62) + 1, (1 << 63) + 5)


# Routes


def test_routes_choose_messages_by_topic_and_qos() -> None:
    builder, source = RecordBuilder(), Source()
    messages = [Publish(topic, b"%d" % qos, qos, packet_id=qos) for topic in ("a", "b", "c") for qos in (0, 1, 2)]
    for topic in ("a", "b", "c"):
        source.table.intern(topic.encode())
    routes = bytearray(12)
    routes[4 * 0 + 1] = routes[4 * 2 + 0] = routes[4 * 2 + 2] = 7
    routes[4 * 1 + 0] = 8
    assert source.append(builder, 5, *messages, routes=routes, wanted=7) == 3
    records = builder.take(0)
    assert [(records.table.name(row[2]), row[5]) for row in records.rows()] == [
        (b"a", b"1"),
        (b"c", b"0"),
        (b"c", b"2"),
    ]
    assert records.new_names() == [b"a", b"c"]


def test_nothing_chosen_is_nothing_taken_in() -> None:
    builder, source = RecordBuilder(), Source()
    assert source.append(builder, 5, Publish("a", b""), routes=bytearray(4), wanted=1) == 0
    assert len(builder) == 0
    assert len(builder.table) == 0


def test_routes_for_fewer_topics_than_there_are_are_refused() -> None:
    builder, source = RecordBuilder(), Source()
    source.table.intern(b"other")
    with pytest.raises(UsageError):
        source.append(builder, 5, Publish("a", b""), routes=bytearray(7), wanted=0)


# Names


def test_batch_names_only_the_topics_that_are_new_in_its_segment() -> None:
    builder, source = RecordBuilder(), Source()
    found = []
    for names in (["a", "b"], ["b"], ["c", "a", "d"]):
        source.append(builder, 5, *(Publish(name, b"") for name in names))
        found.append(builder.take(0))
    assert [records.new_names() for records in found] == [[b"a", b"b"], [], [b"c", b"d"]]
    assert [records.first_new_topic for records in found] == [0, 2, 2]
    assert [[row[2] for row in records.rows()] for records in found] == [[0, 1], [1], [2, 0, 3]]
    assert builder.table.all_names() == [b"a", b"b", b"c", b"d"]


def test_sources_with_their_own_tables_meet_in_the_segments_ids() -> None:
    builder, one, other = RecordBuilder(), Source(), Source()
    one.append(builder, 5, Publish("a", b""), Publish("b", b""))
    other.append(builder, 5, Publish("b", b""), Publish("c", b""))
    one.append(builder, 5, Publish("b", b""))
    assert [row[2] for row in builder.take(0).rows()] == [0, 1, 1, 2, 1]


def test_source_that_was_reset_is_not_taken_for_what_it_was() -> None:
    builder, source = RecordBuilder(), Source()
    source.append(builder, 5, Publish("a", b""), Publish("b", b""))
    source.table.reset()
    source.append(builder, 5, Publish("b", b""), Publish("a", b""))
    records = builder.take(0)
    assert [records.table.name(row[2]) for row in records.rows()] == [b"a", b"b", b"b", b"a"]


@pytest.mark.parametrize("step", [1, 3, 33])
def test_topics_may_come_one_after_another_without_end(step: int) -> None:
    builder, source = RecordBuilder(), Source()
    for first in range(0, 700, step):
        source.append(builder, 5, *(Publish(f"topic/{i}", b"%d" % i) for i in range(first, first + step)))
    records = builder.take(0)
    assert records.verify()
    assert all(records.table.name(row[2]) == b"topic/" + row[5] for row in records.rows())


def test_new_segment_starts_without_names() -> None:
    builder, source = RecordBuilder(), Source()
    source.append(builder, 5, Publish("a", b""), Publish("b", b""))
    with pytest.raises(UsageError):
        builder.start_segment()
    builder.take(0)
    builder.start_segment()
    source.append(builder, 5, Publish("b", b""))
    records = builder.take(2)
    assert (records.new_names(), records.first_new_topic, records.row(0)[2]) == ([b"b"], 0, 0)


def test_continued_segment_knows_its_names_and_its_last_time() -> None:
    builder, source = RecordBuilder(), Source()
    builder.continue_segment([b"a", b"b"], last_time=1_000)
    source.append(builder, 5, Publish("c", b""), Publish("b", b""))
    records = builder.take(9)
    assert (records.new_names(), records.first_new_topic) == ([b"c"], 2)
    assert [row[:3] for row in records.rows()] == [(9, 1_000, 2), (10, 1_000, 1)]


# Damage


def small_batches() -> list[Any]:
    plain = batch_of([Publish("a", b"one"), Publish("bc", b"three")], base_offset=3)
    full = batch_of([Publish("a", b"one", properties=PROPERTIES), Publish("bc", b"three", 1, packet_id=1)])
    return [plain, full]


def is_sound(data: bytes) -> bool:
    try:
        return Records(data, 0, TopicTable()).verify()
    except StorageError:
        return False


@pytest.mark.parametrize("records", small_batches(), ids=["plain", "with-properties"])
def test_every_change_of_one_byte_is_noticed(records: Any) -> None:
    data = bytes(records.to_bytes())
    assert is_sound(data)
    for at in range(len(data)):
        for change in (*(1 << bit for bit in range(8)), 0xFF):
            assert not is_sound(data[:at] + bytes((data[at] ^ change,)) + data[at + 1 :]), (at, change)


@pytest.mark.parametrize("records", small_batches(), ids=["plain", "with-properties"])
def test_every_cut_is_noticed(records: Any) -> None:
    data = bytes(records.to_bytes())
    for size in range(len(data)):
        with pytest.raises(StorageError):
            Records(data[:size], 0, records.table)
        with pytest.raises(StorageError):
            Records(data, len(data) - size, records.table)


def test_damaged_payload_leaves_the_columns_sound() -> None:
    records = batch_of([Publish("a", b"one")])
    data = bytearray(records.to_bytes())
    data[records.layout.payloads] ^= 1
    damaged = Records(data, 0, records.table)
    assert damaged.verify_columns()
    assert not damaged.verify()


@pytest.mark.parametrize(
    ("position", "value", "says"),
    [(0, b"XVLB", "no batch"), (4, b"\3\0", "version 3"), (6, b"\x80", "feature"), (24, b"\0\0\0\0", "shorter")],
)
def test_batch_of_another_kind_is_refused_with_what_is_wrong(position: int, value: bytes, says: str) -> None:
    data = bytearray(batch_of([Publish("a", b"one")]).to_bytes())
    data[position : position + len(value)] = value
    with pytest.raises(StorageError, match=says):
        Records(data, 0, TopicTable())


def test_batch_starts_inside_its_buffer() -> None:
    data = batch_of([Publish("a", b"one")]).to_bytes()
    for start in (-1, -HEADER_BYTES, len(data), len(data) + 1):
        with pytest.raises(StorageError):
            Records(data, start, TopicTable())


@pytest.mark.parametrize("field", [24, 28, 52, 56, 60])
@pytest.mark.parametrize("change", [1, -1, 8, -2, 1 << 16, 1 << 30, 1 << 31])
def test_header_that_miscounts_is_noticed(field: int, change: int) -> None:
    data = bytearray(batch_of([Publish("a", b"one"), Publish("b", b"x" * 40)], base_offset=1).to_bytes())
    (count,) = struct.unpack_from("<I", data, field)
    struct.pack_into("<I", data, field, count + change & 0xFFFF_FFFF)
    assert not is_sound(data)


@pytest.mark.parametrize("i", [-1, 2, 1 << 40])
def test_row_that_is_not_there_is_an_index_error(i: int) -> None:
    with pytest.raises(IndexError):
        batch_of([Publish("a", b""), Publish("b", b"")]).row(i)


# Columns that lie


def lying(**changes: int) -> tuple[Any, TopicTable]:
    """A run of three messages, one number of whose second message is changed."""
    source = Source()
    run = source.run(*(Publish("a", b"payload", properties=PROPERTIES) for _ in range(3)))
    for name, value in changes.items():
        memoryview(getattr(run.columns, name)).cast("I")[1] = value
    return run, source.table


def test_run_that_does_not_lie_is_taken() -> None:
    run, table = lying()
    assert RecordBuilder().append(run.columns, 0, 3, 0, table) == 3


@pytest.mark.parametrize("value", [0, 26, 61, 10_000, 0x7FFF_FFFF, 0xFFFF_FFFF])
@pytest.mark.parametrize("name", ["property_starts", "payload_starts", "payload_ends"])
def test_range_outside_the_chunk_or_out_of_order_is_refused(name: str, value: int) -> None:
    run, table = lying(**{name: value})  # the second message has 33 to 47 to 54, between 27 and 60
    builder = RecordBuilder()
    with pytest.raises(UsageError):
        builder.append(run.columns, 0, 3, 0, table)
    assert len(builder) == 0


@pytest.mark.parametrize("topic", [1, 0xFFFF_FFFF])
def test_topic_that_the_table_does_not_know_is_refused(topic: int) -> None:
    run, table = lying(topics=topic)
    with pytest.raises(UsageError):
        RecordBuilder().append(run.columns, 0, 3, 0, table)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 1_000), (2, 1)])
def test_messages_that_the_columns_do_not_have_are_refused(start: int, stop: int) -> None:
    run, table = lying()
    with pytest.raises(UsageError):
        RecordBuilder().append(run.columns, start, stop, 0, table)


def test_source_that_shrank_is_refused() -> None:
    run, table = lying()
    run.columns.source = run.columns.source[:-1]
    with pytest.raises(UsageError):
        RecordBuilder().append(run.columns, 0, 3, 0, table)
    run.columns.source = None
    with pytest.raises(UsageError):
        RecordBuilder().append(run.columns, 0, 3, 0, table)


def test_empty_run_is_nothing() -> None:
    run, table = lying()
    assert RecordBuilder().append(run.columns, 1, 1, 0, table) == 0
