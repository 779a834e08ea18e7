"""Messages that wait for the owner of their shard: numbers, windows, owners that change."""

from tests.messages import to_columns

from everlog.base import TopicTable
from everlog.cluster.forwarded_rows import read_batch
from everlog.cluster.unconfirmed import BATCH_BYTES, WINDOW_BYTES, Unconfirmed


def take(waiting: Unconfirmed, count: int, size: int = 5) -> None:
    table = TopicTable()
    columns = to_columns([(b"t", 2, b"", b"x" * size)] * count, table)
    assert waiting.take(columns, 0, count, 1, table, bytearray(4 * table.count), 0, None) == count


def sent(waiting: Unconfirmed) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in waiting.to_send()]


def test_nothing_leaves_before_it_may_and_before_there_is_an_owner():
    waiting = Unconfirmed()
    take(waiting, 3)
    waiting.go_on(7, 1, 0)
    assert sent(waiting) == []
    waiting.allow()
    assert sent(waiting) == [(1, 3)]
    assert sent(waiting) == []
    waiting.owner = 0
    take(waiting, 1)
    waiting.allow()
    assert sent(waiting) == []
    waiting.go_on(7, 1, 3)
    assert sent(waiting) == [(4, 4)]


def test_a_large_batch_is_closed_in_the_midst_of_a_turn_and_does_not_leave_before_its_end():
    waiting = Unconfirmed()
    waiting.go_on(7, 1, 0)
    take(waiting, 1, BATCH_BYTES)
    take(waiting, 1)
    assert sent(waiting) == []
    waiting.allow()
    assert sent(waiting) == [(1, 1), (2, 2)]


def test_the_next_owner_is_sent_what_is_behind_its_number_and_a_batch_that_it_has_a_part_of():
    waiting = Unconfirmed()
    waiting.go_on(7, 1, 0)
    for _ in range(4):
        take(waiting, 10)
        waiting.allow()
    assert len(sent(waiting)) == 4
    waiting.confirm(10)
    waiting.go_on(8, 2, 25)
    assert sent(waiting) == [(21, 30), (31, 40)]
    assert [(one.first, read_batch(one.body).count) for one in waiting.take_all(20)] == [(21, 10), (31, 10)]
    assert (waiting.size_bytes, waiting.last) == (0, 40)


def test_what_is_under_way_is_bounded_until_it_is_confirmed():
    waiting = Unconfirmed()
    waiting.go_on(7, 1, 0)
    for _ in range(2 * WINDOW_BYTES // BATCH_BYTES):
        take(waiting, 1, BATCH_BYTES)
    waiting.allow()
    first = sent(waiting)
    assert len(first) == WINDOW_BYTES // BATCH_BYTES
    assert sent(waiting) == []
    waiting.confirm(2)
    assert [last for _, last in sent(waiting)] == [first[-1][1] + 1, first[-1][1] + 2]
    waiting.confirm(waiting.last)
    assert (waiting.size_bytes, len(waiting.batches)) == (0, 0)


def test_all_that_is_held_is_taken_for_an_owner_of_our_own_the_open_batch_too():
    waiting = Unconfirmed()
    take(waiting, 2)
    waiting.allow()
    take(waiting, 3)
    assert [(one.first, one.last) for one in waiting.take_all(0)] == [(1, 2), (3, 5)]
