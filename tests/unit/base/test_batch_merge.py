"""Batches made of other batches: rows selected by topic, rows and whole batches gathered into one."""

import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages import EXPIRY, Message, segment_batches

from everlog.base import (
    HAS_EXPIRY,
    Records,
    StorageError,
    UsageError,
    gather,
    row_column,
    select,
)

batches = partial(segment_batches, base=7)


def flipped(records: Records, position: int) -> Records:
    data = bytearray(records.to_bytes())
    data[position] ^= 0x10
    return Records(bytes(data), 0, records.table)


A: Message = (b"a", 2, b"", b"one")
B: Message = (b"b", 0, EXPIRY, b"")
C: Message = (b"c", 4 | HAS_EXPIRY, EXPIRY, b"three")

messages = st.tuples(
    st.sampled_from([b"a", b"b", b"c/d", b"x" * 300]),
    st.sampled_from([0, 1, 2, 3, 4, HAS_EXPIRY]),
    st.sampled_from([b"", EXPIRY]),
    st.binary(max_size=20),
)
some_runs = st.lists(st.lists(messages, min_size=1, max_size=12), min_size=1, max_size=6)


def test_rows_of_wanted_topics_are_selected() -> None:
    (records,) = batches([[A, B, A, C, B]])
    assert select(records, bytearray([1, 0, 1])) == row_column([0, 2, 3])
    assert select(records, b"\x01\x00\x01", 1) == row_column([2, 3])
    assert select(records, bytearray([1, 0, 1]), 1, 3) == row_column([2])
    assert select(records, bytearray(3)) == row_column([])
    assert select(records, bytearray([9, 9, 9]), 9) == row_column([])


def test_a_topic_nobody_was_asked_about_is_refused() -> None:
    (records,) = batches([[A, B]])
    with pytest.raises(UsageError):
        select(records, bytearray(1))


@given(some_runs)
def test_merged_batches_hold_the_same_rows_and_names(runs: list[list[Message]]) -> None:
    parts = batches(runs)
    merged = gather([(part, None) for part in parts])
    assert merged.verify()
    assert merged.rows() == [row for part in parts for row in part.rows()]
    assert merged.new_names() == [name for part in parts for name in part.new_names()]
    assert (merged.base_offset, merged.end_offset) == (parts[0].base_offset, parts[-1].end_offset)
    assert (merged.first_time, merged.last_time) == (parts[0].first_time, parts[-1].last_time)
    assert merged.first_new_topic == 0
    assert not merged.with_offsets
    assert merged.to_bytes() == gather([(part, None) for part in parts], verified=True).to_bytes()


@given(some_runs, st.data())
def test_gathered_rows_are_those_chosen_with_their_offsets(runs: list[list[Message]], data: st.DataObject) -> None:
    parts = batches(runs, base=1 << 40)
    chosen = [sorted(data.draw(st.sets(st.integers(0, len(part) - 1)))) for part in parts]
    if not any(chosen):
        chosen[0] = [len(parts[0]) - 1]
    pairs: list[tuple[Records, bytearray | None]] = [
        (part, None if i and len(rows) == len(part) else row_column(rows))
        for i, (part, rows) in enumerate(zip(parts, chosen, strict=True))
    ]
    picked = gather(pairs)
    assert picked.verify()
    assert picked.rows() == [part.row(i) for part, rows in zip(parts, chosen, strict=True) for i in rows]
    assert picked.new_names() == []
    assert picked.with_offsets
    again = gather([(picked, row_column([len(picked) - 1]))])
    assert again.rows() == picked.rows()[-1:]
    assert again.verify()


def test_a_selection_opens_again_from_its_bytes() -> None:
    parts = batches([[A, B, C], [C, A]])
    picked = gather([(parts[0], row_column([1])), (parts[1], row_column([0, 1]))])
    opened = Records(b"...." + bytes(picked.to_bytes()), 4, picked.table)
    assert opened.verify()
    assert [opened.offset(i) for i in range(3)] == [8, 10, 11]
    assert opened.end_offset == 12


def test_offsets_that_do_not_rise_are_not_verified() -> None:
    import crc32c

    (part,) = batches([[A, B, C]])
    picked = gather([(part, row_column([0, 1, 2]))])
    data = bytearray(picked.to_bytes())
    for wrong in ((1, 1, 2), (1, 2, 3), (0, 2, 2), (0, 2, 1)):
        struct.pack_into("<3I", data, picked.layout.offsets, *wrong)
        covered = data[16:64] + data[picked.layout.columns : picked.layout.columns_end]
        struct.pack_into("<I", data, 12, crc32c.crc32c(bytes(covered)))
        opened = Records(bytes(data), 0, picked.table)
        assert opened.verify_columns()
        assert not opened.verify()


def test_whole_batches_with_a_gap_between_them_are_refused() -> None:
    parts = batches([[A], [B], [C]])
    with pytest.raises(UsageError):
        gather([(parts[0], None), (parts[2], None)])
    with pytest.raises(UsageError):
        gather([(parts[1], None), (parts[0], None)])
    picked = gather([(parts[0], row_column([0])), (parts[2], None)])
    assert picked.rows() == [parts[0].row(0), parts[2].row(0)]


def test_a_gap_is_seen_though_no_name_is_missing() -> None:
    parts = batches([[A], [A], [A]])
    with pytest.raises(UsageError):
        gather([(parts[1], None), (gather([(parts[2], row_column([0]))]), None)])
    with pytest.raises(UsageError):
        gather([(parts[0], None), (parts[2], None)])


def test_batches_of_two_segments_are_refused() -> None:
    with pytest.raises(UsageError):
        gather([(batches([[A]])[0], None), (batches([[A]], base=8)[0], None)])


@pytest.mark.parametrize("rows", [(3,), (1, 1), (2, 1), (0, 4_000_000_000)])
def test_rows_that_are_not_rising_rows_of_the_batch_are_refused(rows: tuple[int, ...]) -> None:
    (part,) = batches([[A, B, C]])
    with pytest.raises(UsageError):
        gather([(part, row_column(rows))], verified=True)


def test_nothing_can_not_be_gathered() -> None:
    (part,) = batches([[A]])
    nothing: list[tuple[Records, bytearray | None]] = [(part, row_column([]))]
    for parts in ([], nothing):
        with pytest.raises(UsageError):
            gather(parts)


def test_a_batch_never_spans_more_than_its_deltas_hold() -> None:
    parts = batches([[A], [B]], step_us=0x1_0000_0000)
    with pytest.raises(UsageError):
        gather([(part, None) for part in parts])
    near = batches([[A], [B]], step_us=0xFFFFFFFF)
    assert gather([(part, None) for part in near]).rows() == [near[0].row(0), near[1].row(0)]


def test_a_damaged_row_is_never_gathered() -> None:
    (part,) = batches([[A, B, C, A]])
    whole = part.to_bytes()
    rows = row_column([1, 2])
    clean = gather([(part, rows)]).to_bytes()
    for position in range(len(whole)):
        try:
            taken = gather([(flipped(part, position), rows)])
        except StorageError:
            continue
        assert taken.to_bytes() == clean, position


def test_a_damaged_batch_is_never_merged() -> None:
    parts = batches([[A, B], [C, A]])
    for position in range(len(parts[1].to_bytes())):
        with pytest.raises(StorageError):
            gather([(parts[0], None), (flipped(parts[1], position), None)])
