"""The columns of arriving messages and the runs that are ranges of them."""

import pytest

from everlog.base import AckRun, MessageColumns, PublishRun

WIDTHS = {"topics": 4, "flags": 1, "packet_ids": 2, "property_starts": 4, "payload_starts": 4, "payload_ends": 4}


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_columns_hold_their_capacity_and_grow_to_twice_of_it(capacity: int) -> None:
    columns = MessageColumns(capacity)
    for size in (capacity, 2 * capacity, 4 * capacity):
        assert columns.capacity == size
        assert {name: len(getattr(columns, name)) for name in WIDTHS} == {
            name: width * size for name, width in WIDTHS.items()
        }
        columns.grow()


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_ack_columns_grow_by_themselves(capacity: int) -> None:
    columns = MessageColumns(capacity)
    columns.grow_acks()
    assert (columns.capacity, columns.ack_capacity) == (capacity, 2 * capacity)
    assert (len(columns.ack_ids), len(columns.ack_reasons)) == (4 * capacity, 2 * capacity)


def test_columns_without_room_grow_too() -> None:
    columns = MessageColumns(0)
    columns.grow()
    columns.grow_acks()
    assert (columns.capacity, columns.ack_capacity) == (1, 1)
    assert (len(columns.topics), len(columns.ack_ids)) == (4, 2)


def test_growing_keeps_what_the_columns_hold() -> None:
    columns = MessageColumns(2)
    columns.topics[:] = b"12345678"
    columns.ack_ids[:] = b"abcd"
    columns.grow()
    columns.grow_acks()
    assert columns.topics == b"12345678" + bytes(8)
    assert columns.ack_ids == b"abcd" + bytes(4)


def test_run_is_as_long_as_its_range() -> None:
    columns = MessageColumns(8)
    run = PublishRun(columns, 3, 7, 0x11)
    assert (len(run), run.start, run.stop, run.any_flags) == (4, 3, 7, 0x11)
    assert run.columns is columns


def test_ack_run_has_an_id_for_each_reason() -> None:
    run = AckRun(4, b"\1\0\2\0", b"\0\x10")
    assert (len(run), run.packet_type, run.ids, run.reasons) == (2, 4, b"\1\0\2\0", b"\0\x10")
