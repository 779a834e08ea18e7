"""Emptied records: offsets and times stay, the rest of them goes, and what stays is what it was."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, batch_of

from everlog.base import DROPPED, FOR_SESSIONS, FOR_SPILL, GONE, UsageError
from everlog.mqtt import Properties, Publish, encode

NAMES = [b"a", b"b/c", b"d"]


def message(topic: int, payload: bytes, expiry: int = 0) -> Publish:
    properties = Properties(message_expiry_interval=expiry or None)
    return Publish(NAMES[topic].decode(), payload, qos=1, packet_id=1, properties=properties)


def emptied(twin: Twin, records: Any, gone: set[bytes], marks: int = 0) -> Any:
    """The batch with some topics' records emptied, in a table of its own."""
    table, old, brought = twin.TopicTable(), records.table.all_names(), []
    for name in [name for name in old if name not in gone] + [GONE]:
        brought.append(name)
        table.intern(name)
    special = table.lookup(GONE)
    ids = [special if name in gone else table.lookup(name) for name in old]
    return twin.empty_topics(records, bytearray(struct.pack(f"<{len(ids)}I", *ids)), special, brought, table, marks)


@pytest.mark.parametrize("twin", TWINS)
@given(
    sent=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=30), st.integers(0, 3)), min_size=1, max_size=20),
    gone=st.sets(st.sampled_from(NAMES)),
)
def test_what_stays_is_what_it_was_and_the_rest_is_empty(
    twin: Twin, sent: list[tuple[int, bytes, int]], gone: set[bytes]
) -> None:
    times = [1_000_000 + 7 * k for k in range(len(sent))]
    records = batch_of([message(*one) for one in sent], twin, times, base_offset=40)
    made = emptied(twin, records, gone)
    assert made.verify()
    assert (made.base_offset, made.count, made.with_offsets) == (40, len(sent), False)
    assert made.new_names() == [name for name in records.table.all_names() if name not in gone] + [GONE]
    freed = 0
    for before, after in zip(records.rows(), made.rows(), strict=True):
        assert after[:2] == before[:2]
        name = records.table.name(before[2])
        if name in gone:
            assert (made.table.name(after[2]), *after[3:]) == (GONE, DROPPED, b"", b"")
            freed += len(before[4]) + len(before[5])
        else:
            assert (made.table.name(after[2]), *after[3:]) == (name, *before[3:])
    chosen = bytearray(name in gone for name in records.table.all_names())
    assert twin.bytes_of_topics(records, chosen) == freed
    assert made.property_bytes + made.payload_bytes == records.property_bytes + records.payload_bytes - freed


@pytest.mark.parametrize("twin", TWINS)
@given(sent=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.binary(max_size=9)), min_size=1, max_size=20))
def test_what_only_spills_have_kept_is_flagged_and_can_be_emptied(
    twin: Twin, sent: list[tuple[int, int, bytes]]
) -> None:
    # by topic: QoS 0 and 2 for sessions alone; spilled from QoS 1 on; spilled at QoS 1, the rest for sessions
    marks = (0b101_000, FOR_SPILL | 0b110, FOR_SPILL | 0b101_010)
    table, builder = twin.TopicTable(3), twin.RecordBuilder()
    for name in NAMES:
        table.intern(name)
    routes = bytearray(b"".join(bytes((5, 5, 5, mark)) for mark in marks))
    decoder = twin.Decoder(twin.MessageColumns(4), table, version=5)
    for topic, qos, payload in sent:
        packet = Publish(NAMES[topic].decode(), payload, qos, packet_id=1 if qos else 0)
        (run,) = decoder.feed(encode(packet, 5))
        assert builder.append(run.columns, run.start, run.stop, 9, table, routes, 5) == 1
    records = builder.take(7)
    spilled = [bool(marks[topic] >> qos & 1) for topic, qos, _ in sent]
    assert [bool(row[3] & FOR_SPILL) for row in records.rows()] == spilled
    owed = [bool(marks[topic] >> qos + 3 & 1) for topic, qos, _ in sent]
    assert [bool(row[3] & FOR_SESSIONS) for row in records.rows()] == owed
    made = emptied(twin, records, set(), marks=FOR_SPILL)
    assert made.verify()
    for is_spilled, before, after in zip(spilled, records.rows(), made.rows(), strict=True):
        assert after[:2] == before[:2]
        name = records.table.name(before[2])
        left = (GONE, DROPPED, b"", b"") if is_spilled else (name, *before[3:])
        assert (made.table.name(after[2]), *after[3:]) == left
    kept = emptied(twin, records, set())
    assert [row[3:] for row in kept.rows()] == [row[3:] for row in records.rows()]


@pytest.mark.parametrize("twin", TWINS)
def test_a_topic_without_a_new_id_is_refused(twin: Twin) -> None:
    records = batch_of([message(0, b"x"), message(1, b"y")], twin)
    table = twin.TopicTable()
    table.intern(GONE)
    for ids in (bytearray(4), bytearray(struct.pack("<2I", 0, 1))):
        with pytest.raises(UsageError, match="no new id"):
            twin.empty_topics(records, ids, 0, [], table)
    with pytest.raises(UsageError, match="1 topics were asked"):
        twin.bytes_of_topics(records, bytearray(1))
