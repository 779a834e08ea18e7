"""The outbound kernels: what a subscriber gets for a batch of records, and the acks of a run."""

import struct
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fuzz.plain import read_stream
from tests.twins import TWINS, batch_of

from everlog.base import MessageColumns, RecordBuilder, Records, TopicTable, UsageError, gather, lost_publisher
from everlog.mqtt import (
    TELL_PLACE,
    TELL_PUBLISHER,
    Decoder,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    PublishWriter,
    Pubrec,
    Pubrel,
    encode,
    write_acks,
    write_answers,
)
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.primitives import varint
from everlog.mqtt.properties import encode_properties

SECOND = 1_000_000
EVERY_PROPERTY = Properties(
    payload_format_indicator=1,
    message_expiry_interval=60,
    content_type="text/plain",
    response_topic="answers/here",
    correlation_data=b"\x00\xff#",
    user_properties=(("a", "1"), ("a", "2"), ("", "")),
)


def identifiers(*values: int) -> bytes:
    return b"".join(b"\x0b" + varint(value) for value in values)


def rows(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def write(
    records: Any, writer: PublishWriter, chosen: bytes | None = None, max_qos: int = 2, first_id: int = 1, **more: Any
) -> list[Packet]:
    """The packets of the whole batch (or of the chosen rows) as the subscriber's plain decoder reads them."""
    stop = len(records) if chosen is None else len(chosen) // 4
    now_us = more.pop("now_us", SECOND)
    written = writer.write(records, chosen, 0, stop, max_qos, first_id, now_us, **more)
    packets, error = read_stream(written, writer.version, from_client=False)
    assert error is None
    assert len(packets) == writer.written
    assert writer.written + writer.left_out == writer.stopped_at
    return packets


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("max_qos", [0, 1, 2])
def test_message_goes_out_at_the_lower_of_both_qos(version: int, max_qos: int) -> None:
    records = batch_of([Publish("a", b"%d" % qos, qos, packet_id=9 if qos else 0) for qos in (0, 1, 2)])
    sent = write(records, PublishWriter(version), max_qos=max_qos, first_id=100)
    assert [packet.qos for packet in sent] == [min(qos, max_qos) for qos in (0, 1, 2)]
    assert [packet.packet_id for packet in sent] == ([0, 100, 101] if max_qos else [0, 0, 0])
    assert [packet.payload for packet in sent] == [b"0", b"1", b"2"]


def test_packet_ids_wrap_from_the_highest_to_one() -> None:
    records = batch_of([Publish("a", b"", 1, packet_id=1)] * 4)
    writer = PublishWriter(4)
    assert [packet.packet_id for packet in write(records, writer, first_id=65_534)] == [65_534, 65_535, 1, 2]
    assert (writer.next_id, writer.ids_used) == (3, 4)
    assert [packet.packet_id for packet in write(records, writer, rows(0), first_id=65_535)] == [65_535]
    assert writer.next_id == 1


def test_run_ends_where_the_free_packet_ids_are_used_up() -> None:
    records = batch_of([Publish("a", b"%d" % i, i % 2, packet_id=i % 2) for i in range(6)])
    writer = PublishWriter(4)
    sent = write(records, writer, max_ids=2)
    assert [packet.payload for packet in sent] == [b"0", b"1", b"2", b"3", b"4"]
    assert (writer.stopped_at, writer.ids_used, writer.next_id, writer.left_out) == (5, 2, 3, 0)
    assert [packet.payload for packet in write(records, writer, max_ids=0)] == [b"0"]
    assert (writer.stopped_at, writer.ids_used, writer.next_id) == (1, 0, 1)
    assert len(write(records, writer, max_qos=0, max_ids=0)) == 6


def test_run_ends_after_so_many_bytes_and_goes_on_there() -> None:
    records = batch_of([Publish("a", bytes(100), 1, packet_id=1) for _ in range(10)])
    writer = PublishWriter(5, identifiers=identifiers(*range(1, 50)), max_aliases=5)
    start, written = 0, []
    while start < 10:
        data = writer.write(records, None, start, 10, 1, start + 1, SECOND, max_bytes=700)
        assert len(data) <= 700
        assert writer.is_cut == (writer.stopped_at < 10)
        assert writer.written == writer.ids_used == writer.stopped_at - start == (3 if start < 9 else 1)
        written.append(data)
        start = writer.stopped_at
    plain = PublishWriter(5, identifiers=identifiers(*range(1, 50)), max_aliases=5)
    assert b"".join(written) == plain.write(records, None, 0, 10, 1, 1, SECOND)


def test_a_packet_that_is_larger_than_all_of_that_is_written_alone() -> None:
    records = batch_of([Publish("a", bytes(100)) for _ in range(3)])
    writer = PublishWriter(4)
    writer.write(records, None, 0, 3, 0, 1, SECOND, max_bytes=10)
    assert (writer.is_cut, writer.stopped_at) == (True, 1)


def test_a_name_that_did_not_fit_is_sent_with_the_next_run() -> None:
    records = batch_of([Publish("a", bytes(100)), Publish("b", bytes(100))])
    writer = PublishWriter(5, max_aliases=5)
    first = writer.write(records, None, 0, 2, 0, 1, SECOND, max_bytes=150)
    second = writer.write(records, None, writer.stopped_at, 2, 0, 1, SECOND)
    assert names_on_the_wire(first + second) == [b"a", b"b"]


@pytest.mark.parametrize("version", [4, 5])
def test_retain_is_kept_only_for_who_asked_for_it(version: int) -> None:
    records = batch_of([Publish("a", b"", retain=True), Publish("a", b"")])
    assert [each.retain for each in write(records, PublishWriter(version))] == [False, False]
    keeping = PublishWriter(version, retain_as_published=True)
    assert [each.retain for each in write(records, keeping)] == [True, False]


def test_redelivery_sets_dup_above_qos_0_only() -> None:
    records = batch_of([Publish("a", b"", qos, packet_id=qos) for qos in (0, 1, 2)])
    assert [each.dup for each in write(records, PublishWriter(4), dup=True)] == [False, True, True]
    assert [each.dup for each in write(records, PublishWriter(4), max_qos=0, dup=True)] == [False] * 3


def test_dup_of_the_publisher_is_not_passed_on() -> None:
    records = batch_of([Publish("a", b"", 1, dup=True, packet_id=1)])
    assert write(records, PublishWriter(4)) == [Publish("a", b"", 1, packet_id=1)]


def test_every_property_of_a_message_is_passed_on() -> None:
    message = Publish("a", b"payload", 1, packet_id=1, properties=EVERY_PROPERTY)
    records = batch_of([message, Publish("b", b"none")])
    assert write(records, PublishWriter(5)) == [message, Publish("b", b"none")]
    plain = [Publish("a", b"payload", 1, packet_id=1), Publish("b", b"none")]
    assert write(records, PublishWriter(4)) == plain


@pytest.mark.parametrize("values", [(1,), (127, 128), (16_383, 16_384, 2_097_151, 2_097_152, 268_435_455)])
def test_subscription_identifiers_are_added_to_every_packet(values: tuple[int, ...]) -> None:
    records = batch_of([Publish("a", b"", properties=EVERY_PROPERTY), Publish("b", b"x")])
    sent = write(records, PublishWriter(5, identifiers=identifiers(*values)))
    assert [each.properties.subscription_identifiers for each in sent] == [values, values]
    assert replace(sent[0].properties, subscription_identifiers=()) == EVERY_PROPERTY
    assert write(records, PublishWriter(4, identifiers=identifiers(*values))) == write(records, PublishWriter(4))


def test_many_subscription_identifiers_are_sent_all() -> None:
    values = tuple(range(1, 300))
    sent = write(batch_of([Publish("a", b"x")]), PublishWriter(5, identifiers=identifiers(*values)))
    assert sent == [Publish("a", b"x", properties=Properties(subscription_identifiers=values))]


@pytest.mark.parametrize("size", range(120, 132))
def test_property_length_grows_a_byte_where_it_must(size: int) -> None:
    message = Publish("a", b"x", properties=Properties(correlation_data=b"c" * size))
    sent = write(batch_of([message]), PublishWriter(5, identifiers=identifiers(1)))
    assert sent[0].properties.correlation_data == b"c" * size
    assert sent[0].payload == b"x"


# Topic aliases


def names_on_the_wire(written: bytes) -> list[bytes]:
    """The topic names as they were sent, empty where an alias stands for one."""
    found = []
    while written:
        size = 2 + written[1]
        found.append(written[4 : 4 + written[3]])
        written = written[size:]
    return found


def test_topic_name_is_sent_once_and_then_its_alias() -> None:
    records = batch_of([Publish("a", b"1"), Publish("b", b"2"), Publish("a", b"3"), Publish("b", b"4")])
    writer = PublishWriter(5, max_aliases=10)
    written = writer.write(records, None, 0, 4, 0, 1, SECOND)
    again = writer.write(records, None, 0, 4, 0, 1, SECOND)
    assert names_on_the_wire(written) == [b"a", b"b", b"", b""]
    assert names_on_the_wire(again) == [b""] * 4
    packets, error = read_stream(written + again, 5, from_client=False, max_aliases=10)
    assert error is None
    assert [(each.topic, each.payload) for each in packets] == [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")] * 2


@pytest.mark.parametrize("max_aliases", [1, 2, 3])
def test_alias_changes_hands_when_topics_outnumber_aliases(max_aliases: int) -> None:
    topics = [f"t{i % 5}" for i in range(20)]
    records = batch_of([Publish(topic, b"") for topic in topics])
    written = PublishWriter(5, max_aliases=max_aliases).write(records, None, 0, 20, 0, 1, SECOND)
    packets, error = read_stream(written, 5, from_client=False, max_aliases=max_aliases)
    assert error is None
    assert [each.topic for each in packets] == topics


def test_aliases_start_anew_with_the_names_of_another_segment() -> None:
    writer = PublishWriter(5, max_aliases=10)
    written = b"".join(
        writer.write(batch_of([Publish(topic, b""), Publish(topic, b"")]), None, 0, 2, 0, 1, SECOND)
        for topic in ("a", "b", "a")
    )
    assert names_on_the_wire(written) == [b"a", b"", b"b", b"", b"a", b""]
    packets, _ = read_stream(written, 5, from_client=False)
    assert [each.topic for each in packets] == ["a", "a", "b", "b", "a", "a"]


def test_packet_that_is_left_out_does_not_count_as_having_named_its_alias() -> None:
    records = batch_of([Publish("a", b"x" * 90), Publish("a", b"x"), Publish("a", b"")])
    writer = PublishWriter(5, max_packet_bytes=50, max_aliases=10)
    written = writer.write(records, None, 0, 3, 0, 1, SECOND)
    assert names_on_the_wire(written) == [b"a", b""]
    assert writer.left_out == 1


def test_packet_that_expired_does_not_count_as_having_named_its_alias() -> None:
    gone = Publish("a", b"", properties=Properties(message_expiry_interval=1))
    writer = PublishWriter(5, max_aliases=10)
    written = writer.write(batch_of([gone, Publish("a", b"")]), None, 0, 2, 0, 1, 9 * SECOND)
    assert names_on_the_wire(written) == [b"a"]


def test_aliases_are_named_again_after_a_write_that_was_refused() -> None:
    records = batch_of([Publish("a", b"")])
    writer = PublishWriter(5, max_aliases=10)
    with pytest.raises(UsageError):
        writer.write(records, rows(0, 7), 0, 2, 0, 1, SECOND)
    assert names_on_the_wire(writer.write(records, None, 0, 1, 0, 1, SECOND)) == [b"a"]


def test_aliases_are_named_again_where_the_run_ended_early() -> None:
    records = batch_of([Publish("a", b"", 1, packet_id=1), Publish("b", b"", 1, packet_id=1)])
    writer = PublishWriter(5, max_aliases=10)
    written = writer.write(records, None, 0, 2, 1, 1, SECOND, max_ids=1)
    written += writer.write(records, None, 1, 2, 1, 2, SECOND)
    assert names_on_the_wire(written) == [b"a", b"b"]


def test_publishers_alias_does_not_reach_subscribers() -> None:
    records = batch_of([Publish("a", b"", properties=replace(EVERY_PROPERTY, topic_alias=7))])
    assert write(records, PublishWriter(5)) == [Publish("a", b"", properties=EVERY_PROPERTY)]


def test_aliases_are_for_mqtt_5() -> None:
    records = batch_of([Publish("a", b"1"), Publish("a", b"2")])
    assert [each.topic for each in write(records, PublishWriter(4, max_aliases=10))] == ["a", "a"]


# Expiry


@pytest.mark.parametrize(
    ("after_us", "left"),
    [(-5 * SECOND, 60), (0, 60), (999_999, 60), (SECOND, 59), (59_999_999, 1), (60 * SECOND, None), (1 << 60, None)],
)
@pytest.mark.parametrize("version", [4, 5])
def test_expiry_counts_down_in_whole_seconds_and_then_the_message_is_left_out(
    version: int, after_us: int, left: int | None
) -> None:
    message = Publish("a", b"", properties=EVERY_PROPERTY)
    writer = PublishWriter(version)
    sent = write(
        batch_of([message, Publish("b", b"")], times_us=[9 * SECOND] * 2), writer, now_us=9 * SECOND + after_us
    )
    assert [each.topic for each in sent] == (["b"] if left is None else ["a", "b"])
    assert writer.left_out == (left is None)
    if version == 5 and left is not None:
        assert sent[0].properties == replace(EVERY_PROPERTY, message_expiry_interval=left)


def test_expiry_counts_from_each_messages_own_arrival() -> None:
    message = Publish("a", b"", properties=Properties(message_expiry_interval=0xFFFF_FFFF))
    records = batch_of([message] * 3, times_us=[0, 10 * SECOND, 20 * SECOND])
    sent = write(records, PublishWriter(5), now_us=20 * SECOND)
    assert [0xFFFF_FFFF - each.properties.message_expiry_interval for each in sent] == [20, 10, 0]


@pytest.mark.parametrize("interval", [100_000, 0x0100_0000, 0xFFFF_FFFF])
def test_long_expiry_is_over_neither_too_early_nor_too_late(interval: int) -> None:
    message = Publish("a", b"", properties=Properties(message_expiry_interval=interval))
    records = batch_of([message], times_us=[0])
    for age in (70_000, interval - 1):
        (sent,) = write(records, PublishWriter(5), now_us=age * SECOND)
        assert sent.properties.message_expiry_interval == interval - age
    assert write(records, PublishWriter(5), now_us=interval * SECOND) == []


def test_expiry_is_found_behind_every_other_property() -> None:
    section = encode_properties(
        replace(EVERY_PROPERTY, message_expiry_interval=None, topic_alias=3), PacketType.PUBLISH
    )
    section = section[1:] + b"\x02\x00\x00\x01\x00"
    body = b"\x00\x01a" + bytes((len(section),)) + section
    table = TopicTable()
    (run,) = Decoder(MessageColumns(1), table, max_aliases=5, version=5).feed(bytes((0x30, len(body))) + body)
    builder = RecordBuilder()
    builder.append(run.columns, 0, 1, 0, table)
    records = builder.take(0)
    assert write(records, PublishWriter(5), now_us=6 * SECOND)[0].properties.message_expiry_interval == 250
    assert write(records, PublishWriter(5), now_us=256 * SECOND) == []


# Parts


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("max_qos", [0, 1, 2])
def test_parts_are_together_what_would_be_written(twin: Any, version: int, max_qos: int) -> None:
    messages = [
        Publish(f"t/{n % 3}", bytes([n]) * (size := (0, 20_000, 9_000, 70_000)[n % 4]), n % 3, packet_id=n % 3 and 9,
                properties=EVERY_PROPERTY if version == 5 and size else Properties())
        for n in range(30)
    ]  # fmt: skip
    records = batch_of(messages, twin=twin)
    options = (5, 1 << 28, 2, True, identifiers(7), True) if version == 5 else (4,)
    plain, parted = twin.PublishWriter(*options), twin.PublishWriter(*options)
    arguments = (records, None, 2, 28, max_qos, 65_530, 5 * SECOND, True, 100, 3, 900_000)
    whole, parts = plain.write(*arguments), parted.write_parts(*arguments)
    assert b"".join(parts) == whole
    assert all(part.obj is records.data for part in parts[1::2])
    assert [(writer.written, writer.ids_used, writer.next_id, writer.stopped_at) for writer in (plain, parted)] == [
        (plain.written, plain.ids_used, plain.next_id, plain.stopped_at)
    ] * 2


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_small_packets_are_written_as_one(twin: Any) -> None:
    records = batch_of([Publish("a", bytes(4000)), Publish("a", bytes(9000))], twin=twin)
    assert twin.PublishWriter(4).write_parts(records, None, 0, 2, 0, 1, SECOND) == twin.PublishWriter(4).write(
        records, None, 0, 2, 0, 1, SECOND
    )
    assert twin.PublishWriter(4).write_parts(records, None, 1, 1, 0, 1, SECOND) == b""


# Limits and selections


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size", [20, 122, 123, 124, 125, 126, 16_300, 16_381])
def test_packet_larger_than_the_subscriber_takes_is_left_out(version: int, size: int) -> None:
    message = Publish("a", b"x" * size, 1, packet_id=1)
    whole = len(encode(message, version))
    records = batch_of([message, Publish("b", b"", 1, packet_id=1)])
    fits = PublishWriter(version, max_packet_bytes=whole)
    assert write(records, fits) == [message, Publish("b", b"", 1, packet_id=2)]
    small = PublishWriter(version, max_packet_bytes=whole - 1)
    assert write(records, small) == [Publish("b", b"", 1, packet_id=1)]
    assert (small.written, small.left_out, small.ids_used) == (1, 1, 1)


def test_rows_are_written_in_the_order_they_are_named() -> None:
    records = batch_of([Publish("a", b"%d" % i) for i in range(5)])
    chosen = rows(4, 0, 2, 2)
    assert [each.payload for each in write(records, PublishWriter(4), chosen)] == [b"4", b"0", b"2", b"2"]
    middle = PublishWriter(4).write(records, chosen, 1, 3, 0, 1, SECOND)
    assert [each.payload for each in read_stream(middle, 4, False)[0]] == [b"0", b"2"]
    assert PublishWriter(4).write(records, bytearray(chosen), 0, 4, 0, 1, SECOND) == PublishWriter(4).write(
        records, chosen, 0, 4, 0, 1, SECOND
    )


def test_part_of_a_batch_is_what_the_whole_has_there() -> None:
    records = batch_of([Publish(f"t/{i % 3}", b"%d" % i) for i in range(9)])
    writer = PublishWriter(4)
    whole = writer.write(records, None, 0, 9, 0, 1, SECOND)
    parts = [writer.write(records, None, start, stop, 0, 1, SECOND) for start, stop in ((0, 4), (4, 4), (4, 9))]
    assert b"".join(parts) == whole


@pytest.mark.parametrize(
    ("start", "stop", "max_qos", "first_id"),
    [(-1, 1, 0, 1), (0, 3, 0, 1), (2, 1, 0, 1), (0, 2, 3, 1), (0, 2, -1, 1), (0, 2, 1, 0), (0, 2, 1, 65_536)],
)
def test_write_outside_the_batch_or_the_protocol_is_refused(start: int, stop: int, max_qos: int, first_id: int) -> None:
    records = batch_of([Publish("a", b""), Publish("b", b"")])
    with pytest.raises(UsageError):
        PublishWriter(4).write(records, None, start, stop, max_qos, first_id, SECOND)


@pytest.mark.parametrize("row", [2, 0xFFFF_FFFF])
def test_row_that_the_batch_does_not_have_is_refused(row: int) -> None:
    records = batch_of([Publish("a", b""), Publish("b", b"")])
    with pytest.raises(UsageError):
        PublishWriter(4).write(records, rows(0, row), 0, 2, 0, 1, SECOND)


def test_topic_that_the_table_does_not_know_is_refused() -> None:
    records = batch_of([Publish("a", b""), Publish("b", b"")])
    records.table = TopicTable()
    with pytest.raises(UsageError):
        PublishWriter(4).write(records, None, 0, 2, 0, 1, SECOND)


def test_batch_anywhere_in_a_larger_buffer_is_written_the_same() -> None:
    records = batch_of([Publish("a", b"1", properties=EVERY_PROPERTY), Publish("bb", b"22", 1, packet_id=1)])
    expected = PublishWriter(5).write(records, None, 0, 2, 1, 1, 3 * SECOND)
    for before in range(9):
        data = b"\xaa" * before + bytes(records.to_bytes()) + b"\xbb" * 3
        moved = Records(data, before, records.table)
        assert PublishWriter(5).write(moved, None, 0, 2, 1, 1, 3 * SECOND) == expected


@pytest.mark.parametrize("version", [4, 5])
def test_qos_0_run_is_the_same_for_every_subscriber_of_a_version(version: int) -> None:
    records = batch_of([Publish("a", b"1", 1, packet_id=1, properties=EVERY_PROPERTY), Publish("b", b"2", retain=True)])
    runs = {
        PublishWriter(version).write(records, None, 0, 2, 0, first_id, SECOND, dup)
        for first_id in (1, 77, 65_535)
        for dup in (False, True)
    }
    assert len(runs) == 1


def test_nothing_to_write_is_no_bytes() -> None:
    assert PublishWriter(4).write(batch_of([Publish("a", b"")]), None, 0, 0, 0, 1, SECOND) == b""
    assert PublishWriter(4).write(batch_of([Publish("a", b"")]), b"", 0, 0, 0, 1, SECOND) == b""


# Acks


@pytest.mark.parametrize(("first_byte", "kind"), [(0x40, Puback), (0x50, Pubrec), (0x62, Pubrel), (0x70, Pubcomp)])
def test_acks_name_their_packet_ids_in_order(first_byte: int, kind: Any) -> None:
    ids = [1, 255, 256, 0x1234, 65_535]
    column = struct.pack("<5H", *ids)
    assert write_acks(first_byte, column, 0, 5) == b"".join(encode(kind(each), 4) for each in ids)
    assert write_acks(first_byte, bytearray(column), 1, 3) == b"".join(encode(kind(each), 4) for each in ids[1:3])
    assert write_acks(first_byte, column, 5, 5) == b""


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1)])
def test_acks_outside_their_column_are_refused(start: int, stop: int) -> None:
    with pytest.raises(UsageError):
        write_acks(0x40, b"\1\0\2\0", start, stop)


def test_answers_follow_the_qos_of_each_message() -> None:
    qos = [1, 0, 2, 2, 1, 0]
    stream = b"".join(
        encode(Publish("a", b"", each, packet_id=200 + i if each else 0), 4) for i, each in enumerate(qos)
    )
    decoder = Decoder(MessageColumns(2), TopicTable(), version=4)
    (run,) = decoder.feed(stream)
    expected = [Puback(200), Pubrec(202), Pubrec(203), Puback(204)]
    assert write_answers(run) == b"".join(encode(each, 4) for each in expected)


def test_answers_are_those_of_the_run_alone() -> None:
    message = encode(Publish("a", b"", 1, packet_id=5), 4)
    decoder = Decoder(MessageColumns(2), TopicTable(), version=4)
    first, _, second = decoder.feed(message + b"\xc0\x00" + message * 2)
    assert (len(write_answers(first)), len(write_answers(second))) == (4, 8)
    (silent,) = decoder.feed(encode(Publish("a", b""), 4))
    assert write_answers(silent) == b""


# Position and time


@pytest.mark.parametrize("shard", [0, 9, 10, 254])
@pytest.mark.parametrize("base_offset", [0, 9, 99_999, (1 << 56) - 2])
def test_position_and_time_are_user_properties_behind_the_messages_own(shard: int, base_offset: int) -> None:
    times = [0, 1_700_000_000_123_456]  # a batch spans 71 minutes, so each is written on its own
    for time_us, shown in zip(times, ("1970-01-01T00:00:00.000000Z", "2023-11-14T22:13:20.123456Z"), strict=True):
        message = Publish("a", b"x", properties=Properties(user_properties=(("own", "1"),)))
        records = batch_of([message, message], times_us=[time_us, time_us], base_offset=base_offset)
        writer = PublishWriter(5, identifiers=identifiers(7), tells=TELL_PLACE)
        sent = write(records, writer, shard=shard)
        assert [each.properties.user_properties for each in sent] == [
            (("own", "1"), ("everlog-position", f"{shard}:{base_offset + k}"), ("everlog-time", shown)) for k in (0, 1)
        ]
        assert [each.properties.subscription_identifiers for each in sent] == [(7,), (7,)]


def test_a_message_that_is_in_no_log_has_a_time_only() -> None:
    records = batch_of([Publish("a", b"x")], times_us=[86_399_999_999])
    (sent,) = write(records, PublishWriter(5, tells=TELL_PLACE))
    assert sent.properties.user_properties == (("everlog-time", "1970-01-01T23:59:59.999999Z"),)


def test_a_311_subscriber_gets_no_positions() -> None:
    records = batch_of([Publish("a", b"x")])
    assert write(records, PublishWriter(4, tells=TELL_PLACE), shard=0) == [Publish("a", b"x")]


def test_position_and_time_count_for_the_packet_size() -> None:
    records = batch_of([Publish("a", b"x")], base_offset=99)
    whole = len(PublishWriter(5, tells=TELL_PLACE).write(records, None, 0, 1, 0, 1, SECOND, shard=12))
    fits = PublishWriter(5, max_packet_bytes=whole, tells=TELL_PLACE)
    assert len(write(records, fits, shard=12)) == 1
    small = PublishWriter(5, max_packet_bytes=whole - 1, tells=TELL_PLACE)
    assert (write(records, small, shard=12), small.left_out) == ([], 1)


def test_selected_rows_have_their_own_positions() -> None:
    whole = batch_of([Publish("a", b"%d" % k) for k in range(5)], base_offset=1000)
    records = gather([(whole, bytearray(rows(1, 4)))], True)
    sent = write(records, PublishWriter(5, tells=TELL_PLACE), shard=3)
    assert [dict(each.properties.user_properties)["everlog-position"] for each in sent] == ["3:1001", "3:1004"]


@pytest.mark.parametrize("twin", TWINS)
def test_publishers_are_user_properties_behind_all_others(twin: Any) -> None:
    table, builder = twin.TopicTable(), twin.RecordBuilder()
    decoder = twin.Decoder(twin.MessageColumns(4), table, version=5)
    names = (b"one\0ann", b"two", None, b"one\0ann", b"x" * 30_000 + b"\0" + b"y" * 30_000, lost_publisher(3))
    for number, name in enumerate(names):
        message = Publish("a", b"%d" % number, properties=Properties(user_properties=(("everlog-publisher", "me"),)))
        (run,) = decoder.feed(encode(message, 5))
        publisher = None if name is None else twin.PublisherName(name)
        builder.append(run.columns, run.start, run.stop, 0, table, None, 0, publisher)
    records = builder.take(7)
    told = [
        (("everlog-publisher", "one"), ("everlog-user", "ann")),
        (("everlog-publisher", "two"),),
        (),
        (("everlog-publisher", "one"), ("everlog-user", "ann")),
        (("everlog-publisher", "x" * 30_000), ("everlog-user", "y" * 30_000)),
        (),
    ]
    own = ("everlog-publisher", "me")
    sent = write(records, twin.PublishWriter(5, tells=TELL_PUBLISHER))
    assert [each.properties.user_properties for each in sent] == [(own, *pairs) for pairs in told]
    placed = write(records, twin.PublishWriter(5, tells=TELL_PLACE | TELL_PUBLISHER), shard=2)
    for number, (each, pairs) in enumerate(zip(placed, told, strict=True)):
        at, time = ("everlog-position", f"2:{7 + number}"), ("everlog-time", "1970-01-01T00:00:00.000000Z")
        assert each.properties.user_properties == (own, at, time, *pairs)
    for writer in (twin.PublishWriter(5), twin.PublishWriter(4, tells=TELL_PUBLISHER)):
        assert [each.properties.user_properties for each in write(records, writer)] == [
            (own,) if writer.version == 5 else ()
        ] * len(told)
    whole = len(twin.PublishWriter(5, tells=TELL_PUBLISHER).write(records, None, 0, 1, 0, 1, 0))
    small = twin.PublishWriter(5, max_packet_bytes=whole - 1, tells=TELL_PUBLISHER)
    assert (small.write(records, None, 0, 1, 0, 1, 0), small.left_out) == (b"", 1)


@pytest.mark.parametrize("twin", TWINS)
def test_acks_for_unknown_ids_say_so(twin: Any) -> None:
    ids = struct.pack("<4H", 1, 0x1234, 65_535, 7)
    told = twin.write_told_acks(0x70, ids, b"\x01\x00\x00\x01", 0x92)
    assert told == b"\x70\x02\x00\x01\x70\x03\x12\x34\x92\x70\x03\xff\xff\x92\x70\x02\x00\x07"
    assert twin.write_told_acks(0x70, ids, b"\x01\x00\x00\x01", 0) == b"\x70\x02\x00\x01\x70\x02\x00\x07"
    assert twin.write_told_acks(0x70, b"", b"", 0x92) == b""
    with pytest.raises(UsageError):
        twin.write_told_acks(0x70, ids, b"\x01", 0x92)
