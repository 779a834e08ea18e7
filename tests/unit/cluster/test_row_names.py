"""A row can be read alone: the names it does not bring are beside it."""

import pytest
from tests.messages import Message, segment_batches

from everlog.base import StorageError
from everlog.cluster.row_names import pack_names, read_alone, read_together


def runs() -> list[list[Message]]:
    """Batches that use topics of earlier ones and bring some of their own."""
    return [
        [(b"a", 2, b"", b"1"), (b"b", 2, b"", b"2"), (b"unused", 2, b"", b"3")],
        [(b"b", 2, b"", b"4"), (b"c", 2, b"", b"5")],
        [(b"a", 2, b"", b"6"), (b"c", 2, b"", b"7"), (b"a", 2, b"", b"8")],
    ]


@pytest.mark.parametrize("named", [False, True])
def test_each_batch_of_a_segment_can_be_read_without_the_others(named: bool) -> None:
    for run, records in zip(runs(), segment_batches(runs(), named=named), strict=True):
        alone = read_alone(bytes(records.to_bytes()), pack_names(records))
        assert [(alone.table.name(row[2]), row[5]) for row in alone.rows()] == [(one[0], one[3]) for one in run]
        if named and records.layout.publishers:
            assert alone.table.publishers is not None
            assert records.table.publishers is not None
            for row in range(records.count):
                who = records.publisher(row)
                assert alone.table.publishers.name(who) == records.table.publishers.name(who)


def test_only_names_that_are_used_and_not_brought_are_beside() -> None:
    first, _, third = segment_batches(runs())
    assert pack_names(first) == bytes(8)
    assert b"unused" not in pack_names(third)
    assert len(pack_names(third)) == 8 + 2 * (8 + 1)


def test_a_damaged_row_is_refused() -> None:
    records = segment_batches(runs())[1]
    body = bytearray(records.to_bytes())
    body[-1] ^= 1
    with pytest.raises(StorageError, match="damaged"):
        read_alone(bytes(body), pack_names(records))


@pytest.mark.parametrize("named", [False, True])
def test_rows_from_the_midst_of_a_segment_are_read_with_one_table(named: bool) -> None:
    batches = segment_batches(runs(), named=named)[1:]
    read = read_together([(bytes(one.to_bytes()), pack_names(one)) for one in batches])
    for run, records in zip(runs()[1:], read, strict=True):
        assert [(records.table.name(row[2]), row[5]) for row in records.rows()] == [(one[0], one[3]) for one in run]
    assert len({id(records.table) for records in read}) == 1
    for known, records in zip(batches, read, strict=True):
        for row in range(records.count if named and known.layout.publishers else 0):
            assert known.table.publishers is not None
            assert records.table.publishers is not None
            who = known.publisher(row)
            assert records.table.publishers.name(who) == known.table.publishers.name(who)
