"""Row postings that grow: what they find, how much memory they take, which rows of a batch are picked."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages import EXPIRY, Message, segment_batches
from tests.stores import PLENTY

from everlog.base import Records, TopicTable, UsageError, row_column
from everlog.store.open_postings import OpenPostings, pick

BYTES_A_RECORD, BYTES_A_TOPIC, BYTES_AT_FIRST = 13, 20, 8 << 10


def batches_of(runs: Sequence[Sequence[int]], payload: bytes = b"p") -> list[Records]:
    """A segment's batches, given the number of the topic of each message."""
    return segment_batches([[(b"t/%d" % topic, 2, b"", payload) for topic in run] for run in runs])


def listed(batches: Sequence[Records]) -> OpenPostings:
    postings = OpenPostings()
    for records in batches:
        postings.add(records)
    return postings


def topics_of(batches: Sequence[Records]) -> list[int]:
    return [row[2] for records in batches for row in records.rows()]


def found_by(postings: OpenPostings, ids: Sequence[int], first: int, stop: int) -> list[tuple[int, int]]:
    """Rows and topics."""
    words = memoryview(postings.find(row_column(ids), first, stop)).cast("Q")
    return [(word >> 32, word & 0xFFFFFFFF) for word in words]


runs = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=60), min_size=1, max_size=8)


@given(runs, st.sets(st.integers(0, 20)), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_exactly_the_rows_of_the_asked_topics_are_found_in_order(
    made: list[list[int]], asked: set[int], part: tuple[float, float]
) -> None:
    batches = batches_of(made)
    postings = listed(batches)
    topics = topics_of(batches)
    first, stop = sorted(int(one * len(topics)) for one in part)
    ids = sorted(asked)
    wanted = [(row, topic) for row, topic in enumerate(topics) if topic in asked and first <= row < stop]
    assert found_by(postings, ids, first, stop) == wanted
    assert postings.count(row_column(ids)) == sum(topic in asked for topic in topics)
    assert (postings.rows, postings.topics) == (len(topics), max(topics) + 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 1023, 1024, 1025, 2047, 2048, 3071, 3072, 5000])
def test_long_lists_are_found_whole_and_from_any_row(rows: int) -> None:
    batches = batches_of([[0, 1] * rows])
    postings = listed(batches)
    for first in {0, 1, rows // 2, rows, 2 * rows - 2, 2 * rows - 1, 2 * rows}:
        for stop in {first, min(first + 3, 2 * rows), 2 * rows}:
            assert found_by(postings, [1], first, stop) == [(row, 1) for row in range(first, stop) if row % 2]


def test_a_list_goes_on_where_it_ended() -> None:
    postings = OpenPostings()
    batches = batches_of([[0, 1, 1], [2, 1], [0, 3, 1]])
    seen = []
    for records in batches:
        postings.add(records)
        seen.append(found_by(postings, [1], 0, postings.rows))
    assert seen == [[(1, 1), (2, 1)], [(1, 1), (2, 1), (4, 1)], [(1, 1), (2, 1), (4, 1), (7, 1)]]


@pytest.mark.parametrize("topics", [1, 2, 7, 100, 3000])
def test_memory_stays_within_its_bound(topics: int) -> None:
    batches = batches_of([[n * 7919 % topics for n in range(3000)]] * 2)
    postings = listed(batches)
    assert postings.memory_bytes <= BYTES_A_RECORD * postings.rows + BYTES_A_TOPIC * postings.topics + BYTES_AT_FIRST


def test_rows_that_are_not_there_are_refused() -> None:
    postings = listed(batches_of([[0, 1]]))
    for first, stop in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(UsageError):
            postings.find(row_column([0]), first, stop)


def test_a_batch_that_uses_an_unknown_topic_is_refused() -> None:
    (records,) = batches_of([[0, 1]])
    records.table = TopicTable()
    with pytest.raises(UsageError):
        OpenPostings().add(records)


def test_picked_rows_count_from_their_batch_and_end_at_the_bytes() -> None:
    run: list[Message] = [(b"t", 2, EXPIRY if n % 2 else b"", b"x" * 10 * n) for n in range(10)]
    first, second = segment_batches([run, run])
    found = listed([first, second]).find(row_column([0]), 0, 20)
    rows, size = pick(found, 10, 20, 10, second, PLENTY)
    assert rows == row_column(range(10))
    assert size == sum(25 + 10 * n + 5 * (n % 2) for n in range(10))
    sizes = [pick(found, 10, 20, 10, second, limit) for limit in range(0, size + 1, 5)]
    assert [len(rows) for rows, _ in sizes] == sorted(len(rows) for rows, _ in sizes)
    assert len(sizes[0][0]) == 4
    assert all(few < many for (_, few), (_, many) in pairwise(sizes) if few != many)
    assert all(size <= max(limit, 25) for limit, (_, size) in zip(range(0, size + 1, 5), sizes, strict=True))


def test_rows_outside_the_batch_are_not_picked() -> None:
    first, second = batches_of([[0, 1], [0, 0]])
    found = listed([first, second]).find(row_column([0]), 0, 4)
    for start, stop, base in ((0, 2, 0), (0, 1, 2), (1, 1, 2), (1, 9, 2)):
        with pytest.raises(UsageError):
            pick(found, start, stop, base, second, PLENTY)
