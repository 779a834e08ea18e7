"""The batch index: offsets and times are found, stored columns come back."""

from tests.shard_logs import batch

from everlog.commitlog.batch_index import GrowingIndex


def index() -> GrowingIndex:
    """Offsets 10 to 14, 20 to 21 and 22 to 24, at times 100, 200 and 200."""
    made = GrowingIndex()
    position = 160
    for base, count, time in ((10, 5, 100), (20, 2, 200), (22, 3, 200)):
        records = batch(base, count, time)
        made.add(records, position)
        position += records.size + 32
    return made


def test_an_offset_is_found_or_the_first_batch_behind_it() -> None:
    made = index()
    expected = {0: 0, 10: 0, 14: 0, 15: 1, 19: 1, 20: 1, 21: 1, 22: 2, 24: 2, 25: 3}
    assert {offset: made.find(offset) for offset in expected} == expected
    assert {offset: made.snapshot().find(offset) for offset in expected} == expected
    assert GrowingIndex().find(0) == GrowingIndex().snapshot().find(0) == 0


def test_a_time_finds_the_first_batch_that_reaches_it() -> None:
    made = index()
    expected = {0: 0, 100: 0, 101: 1, 200: 1, 201: 3}
    assert {time: made.find_time(time) for time in expected} == expected
    assert {time: made.snapshot().find_time(time) for time in expected} == expected
    assert made.times() == (100, 200)


def test_a_snapshot_does_not_grow() -> None:
    made = index()
    before = made.snapshot()
    assert made.snapshot() is before
    made.add(batch(25, 1, 300), 9000)
    assert (len(before), len(made), len(made.snapshot())) == (3, 4, 4)
    assert list(made.snapshot().offsets) == [10, 20, 22, 25]


def test_columns_come_back_from_the_side_file() -> None:
    made = index()
    again = GrowingIndex.from_bytes(made.to_bytes())
    assert again.to_bytes() == made.to_bytes()
    assert again.snapshot() == made.snapshot()
    assert again.end_offset(2) == 25


def test_a_range_holds_at_least_one_batch_and_no_more_than_asked_for() -> None:
    made = index()
    whole = made.file_end(2) - made.position(0)
    assert made.range_of(0, 3, 1) == 1
    assert made.range_of(0, 3, whole) == 3
    assert made.range_of(0, 3, whole - 1) == 2
    assert made.range_of(0, 2, whole) == 2
    assert made.range_of(2, 3, 10_000) == 3
