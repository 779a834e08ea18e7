"""Kernels of delivery and of runs against plain Python: audiences of rows, merged rows, sets of packet ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, batch_of

from everlog.base import UsageError
from everlog.mqtt import Publish, encode

UNKNOWN = 0xFFFFFFFF
both = pytest.mark.parametrize("twin", TWINS, ids=str)


def u32(*values: int) -> bytearray:
    return bytearray(b"".join(value.to_bytes(4, "little") for value in values))


def rows_of(part) -> list[int]:
    _, rows, start, stop = part
    return list(range(start, stop)) if rows is None else list(memoryview(rows).cast("I")[start:stop])


@both
@given(
    topics=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    names=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 9, UNKNOWN]), min_size=7, max_size=7),
    audiences=st.lists(st.sampled_from([0, 1, 2, 3, 70, UNKNOWN]), min_size=6, max_size=10),
    known=st.sampled_from([3, 4, 100]),
    bounds=st.tuples(st.integers(0, 60), st.integers(-1, 70)),
)
def test_every_row_goes_to_its_audience_in_order(twin: Twin, topics, names, audiences, known, bounds):
    records = batch_of([Publish(f"t{topic}", b"") for topic in [*range(7), *topics]], twin)
    first = min(bounds[0], records.count)
    stop = records.count if not 0 <= bounds[1] <= records.count else bounds[1]
    partitioner = twin.Partitioner()
    wanted: dict[int, list[int]] = {}
    missing = set()
    for row, topic in enumerate([*range(7), *topics]):
        if first <= row < stop:
            name = names[topic]
            number = audiences[name] if name < len(audiences) else UNKNOWN
            if number >= known:
                missing.add(topic)
            elif number:
                wanted.setdefault(number, []).append(row)
    for _ in range(2):  # what one call leaves behind must not be seen by the next
        parts = partitioner.split(records, first, u32(*names), u32(*audiences), known, stop)
        if missing:
            assert parts == missing
        else:
            assert {part[0]: rows_of(part) for part in parts} == wanted
            assert len(parts) == len(wanted)


@both
def test_a_topic_that_the_batch_has_no_name_for_is_refused(twin: Twin):
    records = batch_of([Publish("a", b""), Publish("b", b"")], twin)
    partitioner = twin.Partitioner()
    with pytest.raises(UsageError):
        partitioner.split(records, 0, u32(0), u32(1), 2)
    assert [rows_of(part) for part in partitioner.split(records, 0, u32(0, 0), u32(1), 2)] == [[0, 1]]


@both
@given(st.lists(st.sets(st.integers(0, 80), max_size=30), max_size=5), st.integers(0, 90))
def test_merged_rows_are_the_rows_in_order(twin: Twin, parts, count):
    columns = [(u32(*range(500, 503), *sorted(part)), 3, 3 + len(part)) for part in parts]
    expected = sorted({row for part in parts for row in part if row < count})
    assert list(memoryview(twin.merge_rows(columns, count)).cast("I")) == expected


def run_of(twin: Twin, messages: list[Publish]):
    """A run as a decoder makes it, from its second message on."""
    table = twin.TopicTable(3)
    decoder = twin.Decoder(twin.MessageColumns(4), table, version=4)
    (run,) = decoder.feed(b"".join(encode(one, 4) for one in [Publish("zero", b""), *messages]))
    return twin.PublishRun(run.columns, 1, run.stop, run.any_flags), table


def ids_of(twin: Twin, ids):
    """A set of received packet ids."""
    bits = bytearray(8192)
    for one in ids:
        bits[one >> 3] |= 1 << (one & 7)
    return twin.ReceivedIds(bits)


def members(received) -> set[int]:
    return {one for one in range(65_536) if received.bits[one >> 3] >> (one & 7) & 1}


packet_ids = st.sampled_from([1, 2, 7, 8, 255, 256, 32_768, 65_534, 65_535])
messages = st.lists(
    st.builds(
        lambda qos, one, topic: Publish(topic, b"", qos, packet_id=one if qos else 0),
        st.integers(0, 2),
        packet_ids,
        st.sampled_from(["a", "b", "$c"]),
    ),
    min_size=1,
    max_size=30,
)


@both
@given(messages, st.sets(packet_ids), st.sets(st.integers(0, 29)))
def test_known_qos_2_messages_are_dropped_and_new_ones_remembered(twin: Twin, plan, before, dropped):
    run, _ = run_of(twin, plan)
    received = ids_of(twin, before)
    flags = run.columns.flags
    for place in dropped & set(range(len(plan))):
        flags[run.start + place] |= 0x80
    known, count = set(before), 0
    expected = []
    for place, message in enumerate(plan):
        gone = place in dropped
        if message.qos == 2 and not gone:
            gone = message.packet_id in known
            count += gone
            known.add(message.packet_id)
        expected.append(gone)
    assert received.drop_duplicates(run) == count
    assert [bool(flags[run.start + place] & 0x80) for place in range(len(plan))] == expected
    assert members(received) == known
    assert twin.count_qos_2(run) == sum(one.qos == 2 and not gone for one, gone in zip(plan, expected, strict=True))


@both
@given(st.sets(packet_ids), st.lists(packet_ids, max_size=10))
def test_released_ids_are_forgotten(twin: Twin, before, released):
    received = ids_of(twin, before)
    column = b"".join(one.to_bytes(2, "little") for one in released)
    assert received.count(column) == sum(one in before for one in released)
    assert received.discard(column) == len(set(released) & before)
    assert members(received) == before - set(released)


@both
def test_a_set_of_ids_of_another_size_is_refused(twin: Twin):
    for size in (0, 8191, 8193):
        with pytest.raises(UsageError):
            twin.ReceivedIds(bytearray(size))


@both
@given(messages, st.integers(0, 5))
def test_reserved_topics_are_dropped(twin: Twin, plan, size):
    run, table = run_of(twin, plan)
    reserved = bytearray(table.name(topic).startswith(b"$") for topic in range(min(size, table.count)))
    expected = [(topic := table.lookup(one.topic.encode())) < len(reserved) and bool(reserved[topic]) for one in plan]
    assert twin.drop_reserved(run, reserved) == sum(expected)
    assert [bool(run.columns.flags[run.start + k] & 0x80) for k in range(len(plan))] == expected
    assert sorted(twin.distinct_topics(run)) == sorted({table.lookup(one.topic.encode()) for one in plan})


@both
@given(
    messages, st.binary(min_size=80, max_size=80), st.sets(st.integers(0, 255)), st.integers(0, 20), st.integers(0, 256)
)
def test_messages_of_shards_that_refuse_are_dropped_once(twin: Twin, plan, shards, refusing, topics, size):
    run, table = run_of(twin, plan)
    routes = bytearray(shards[: 4 * min(topics, table.count)])
    marks = bytearray(number in refusing for number in range(size))

    def is_refused(one) -> bool:
        place = 4 * table.lookup(one.topic.encode()) + one.qos
        return place < len(routes) and routes[place] < size and routes[place] in refusing

    expected = [run.start + k for k, one in enumerate(plan) if is_refused(one)]
    assert twin.drop_unkeepable(run, routes, marks) == expected
    assert [row for row in range(run.start, run.stop) if run.columns.flags[row] & 0x80] == expected
    assert twin.drop_unkeepable(run, routes, marks) == []
