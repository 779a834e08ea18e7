"""The tail: recent batches, within a limit, never dropping what is not written."""

import gc
import tracemalloc

import pytest
from tests.shard_logs import batch, columns_of
from tests.twins import needs_compiled

from everlog.base import RecordBuilder, TopicTable
from everlog.commitlog.tail import Tail

SIZE = batch(0, 2, 1).size


def memory(base: int = 0) -> int:
    """Return what a tail counts for a batch of two."""
    tail = Tail(1 << 20)
    tail.add([batch(base, 2, 1)], base)
    return tail.held_bytes


def offsets(tail: Tail, offset: int, max_bytes: int = 1 << 20) -> list[int] | None:
    found = tail.read(offset, max_bytes)
    return None if found is None else [records.base_offset for records in found]


def test_it_answers_from_the_batch_that_holds_the_offset() -> None:
    tail = Tail(1 << 20)
    assert tail.read(0, 100) is None
    tail.add([batch(base, 2, 1) for base in (4, 6, 8)], 10)
    assert offsets(tail, 3) is None
    assert offsets(tail, 4) == [4, 6, 8]
    assert offsets(tail, 7) == [6, 8]
    assert offsets(tail, 7, 1) == [6]
    assert offsets(tail, 4, 2 * SIZE) == [4, 6]
    assert offsets(tail, 10) == []


def test_the_oldest_go_at_the_limit() -> None:
    tail = Tail(3 * memory())
    for base in range(0, 5000, 2):
        tail.add([batch(base, 2, 1)], base + 2)
    assert len(tail) == 3
    assert tail.held_bytes == 3 * memory() > 3 * SIZE
    assert offsets(tail, 4996) == [4996, 4998]
    assert offsets(tail, 4992) is None


def test_what_is_not_written_stays_whatever_the_limit() -> None:
    tail = Tail(0)
    tail.add([batch(0, 2, 1), batch(2, 2, 1)], written=0)
    assert offsets(tail, 0) == [0, 2]
    tail.trim(2)
    assert offsets(tail, 0) is None
    assert offsets(tail, 2) == [2]
    tail.trim(4)
    assert len(tail) == tail.held_bytes == 0


@needs_compiled
@pytest.mark.parametrize(("rows", "payload_bytes"), [(1, 0), (1, 100), (20, 100), (9, 9_000)])
def test_what_is_counted_is_the_memory_that_is_taken(rows: int, payload_bytes: int) -> None:
    tail, builder, table = Tail(4 << 20), RecordBuilder(), TopicTable()
    columns = columns_of([(b"t", bytes(payload_bytes))] * rows, table)
    builder.append(columns, 0, rows, 1, table)
    builder.take(0)
    gc.collect()
    tracemalloc.start()
    before, offset = tracemalloc.get_traced_memory()[0], 0
    for _ in range(20_000):
        builder.append(columns, 0, rows, 1, table)
        offset += rows
        tail.add([builder.take(offset - rows)], offset)
        if tail.held_bytes > tail.limit_bytes - 200_000:
            break
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.9 < tail.held_bytes / taken < 1.1
