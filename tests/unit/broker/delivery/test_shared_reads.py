"""Reads of the log that sessions share: the same rows as a read of one's own, within a bound, for a moment."""

from hypothesis import given
from hypothesis import strategies as st
from tests.twins import batch_of

from everlog.base import Records, row_column
from everlog.broker.delivery.shared_reads import SharedReads
from everlog.mqtt import Publish
from everlog.store import Found, Lost, ReadResult
from everlog.topics import parse_filter

ANY, OTHER = (parse_filter("#"),), (parse_filter("a/#"),)


def _batch(base: int, count: int, size: int = 1) -> Records:
    return batch_of([Publish("a", b"x" * size) for _ in range(count)], base_offset=base)


class _Log:
    """A log of batches of ten records that loses all below `start`; every third record is wanted."""

    def __init__(self, size: int = 1, start: int = 0) -> None:
        self.batches = [_batch(base, 10, size) for base in range(0, 100, 10)]
        self.start = start
        self.reads = 0

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        self.reads += 1
        lost = (Lost(shard, offset, self.start),) if offset < self.start else ()
        offset = max(offset, self.start)
        found: list[Found] = []
        for records in self.batches[offset // 10 : offset // 10 + 3]:
            rows = [row for row in range(10) if records.offset(row) % 3 == 0 and records.offset(row) >= offset]
            found.append(Found(shard, records, row_column(rows), 0, len(rows)))
        end = min(100, offset // 10 * 10 + 30)
        return ReadResult([one for one in found if len(one)], (end,), end == 100, lost)

    def release(self) -> None: ...


def _offsets(result: ReadResult) -> list[int]:
    return [found.records.offset(row) for found in result.batches for row in found.row_numbers()]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.integers(0, 50), st.integers(200, 5000))
def test_what_was_read_for_another_is_what_one_would_read(places: list[int], start: int, max_bytes: int) -> None:
    log, shared = _Log(start=start), SharedReads(max_bytes)
    for at in places:
        result = shared.read(log, ANY, 0, at, 100, 100)
        end = result.positions[0]
        assert end > at
        assert _offsets(result) == [offset for offset in range(max(at, start), end) if offset % 3 == 0]
        lost = [offset for one in result.lost for offset in range(one.from_offset, one.to_offset)]
        assert lost == list(range(at, start))
        assert shared.held_bytes <= max_bytes


def test_a_stretch_is_read_once_for_all_who_have_the_same_filters() -> None:
    log, shared = _Log(), SharedReads()
    for at in (0, 7, 29, 0):
        shared.read(log, ANY, 0, at, 100, 100)
    assert log.reads == 1
    shared.read(log, OTHER, 0, 0, 100, 100)
    shared.read(log, ANY, 1, 0, 100, 100)
    assert log.reads == 3


def test_the_end_is_read_again_since_more_may_have_come() -> None:
    log, shared = _Log(), SharedReads()
    for _ in range(2):
        assert shared.read(log, ANY, 0, 70, 100, 100).caught_up
        shared.read(log, ANY, 0, 100, 100, 100)
    assert log.reads == 3


def test_what_nobody_reads_any_more_is_let_go() -> None:
    log, shared = _Log(), SharedReads()
    shared.read(log, ANY, 0, 0, 100, 100)
    shared.age()
    assert shared.held_bytes > 0
    shared.age()
    assert shared.held_bytes == 0
    shared.read(log, ANY, 0, 0, 100, 100)
    assert log.reads == 2
