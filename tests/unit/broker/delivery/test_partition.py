"""Splitting a batch by audience; `tests/properties/test_partition.py` has the rest."""

from tests.twins import batch_of

from everlog.broker.delivery.partition import Partitioner, merge_rows
from everlog.mqtt import Publish


def u32(*values):
    return bytearray(b"".join(value.to_bytes(4, "little") for value in values))


def test_one_audience_for_all_needs_no_list_of_rows():
    records = batch_of([Publish("a", b""), Publish("b", b"")])
    assert Partitioner().split(records, 0, u32(0, 1), u32(1, 1), 2) == [(1, None, 0, 2)]
    assert Partitioner().split(records, 1, u32(0, 1), u32(1, 1), 2) == [(1, None, 1, 2)]
    assert Partitioner().split(records, 0, u32(0, 1), u32(1, 1), 2, 1) == [(1, None, 0, 1)]


def test_nobody_is_no_part():
    records = batch_of([Publish("a", b""), Publish("b", b"")])
    assert Partitioner().split(records, 0, u32(0, 1), u32(0, 0), 1) == []
    ((number, rows, start, stop),) = Partitioner().split(records, 0, u32(0, 1), u32(0, 1), 2)
    assert (number, rows[4 * start : 4 * stop]) == (1, u32(1))


def test_no_rows_are_no_parts():
    records = batch_of([Publish("a", b"")])
    assert Partitioner().split(records, 1, u32(0), u32(1), 2) == []
    assert Partitioner().split(records, 0, u32(0), u32(1), 2, 0) == []


def test_topics_without_a_name_or_an_audience_are_told():
    records = batch_of([Publish("a", b""), Publish("b", b""), Publish("c", b"")])
    unknown = 0xFFFFFFFF
    assert Partitioner().split(records, 0, u32(0, unknown, 1), u32(1, unknown), 2) == {1, 2}


def test_rows_of_several_parts_are_merged():
    assert merge_rows([(u32(5, 1, 3), 1, 3), (u32(0, 4), 0, 2)], 6) == u32(0, 1, 3, 4)
