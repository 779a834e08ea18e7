"""A session: what it takes, what it leaves in the log, what waits, and what is dropped."""

import pytest
from tests.twins import batch_of

from everlog.base import NOT_KEPT, RETAINED, MessageColumns, TopicTable
from everlog.mqtt import Decoder, Puback, Publish, encode
from everlog.sessions import (
    RELEASED,
    CopiesTotal,
    MergedSubscription,
    OutgoingRows,
    RetainedFeed,
    Session,
    Terms,
    is_within,
)

SIZE = 1_000


def session(limit=100, expiry_s=0, **options):
    made = Session("c", **options)
    made.connected(Terms(expiry_s=expiry_s, max_inflight=limit, max_packet_bytes=1 << 20))
    return made


def batch(count=10, qos=1, base=0):
    return batch_of(
        [Publish("t", bytes(SIZE), qos, packet_id=1 if qos else 0) for _ in range(count)], base_offset=base, version=4
    )


def rows(to, count=10, qos=1, base=0, **options):
    return OutgoingRows(batch(count, qos, base), None, 0, count, MergedSubscription(to, 1, **options))


def test_a_session_takes_what_its_window_allows_and_leaves_the_rest_in_the_log():
    one = session(4)
    assert len(one.push(rows(one, base=50), 2, 0)) > 4 * SIZE
    assert (one.lag, one.inflight, one.queued_bytes) == ({2: 54}, 4, 0)
    assert one.push(rows(one, base=60), 2, 0) == b""
    assert one.lag == {2: 54}


def test_what_is_in_no_log_waits_in_the_queue_in_order():
    one = session(4)
    one.push(rows(one), NOT_KEPT, 0)
    one.push(rows(one, 2), NOT_KEPT, 0)
    assert one.waiting
    assert one.queued_bytes > 8 * SIZE
    while one.waiting:
        assert one.inflight == 4
        for packet_id, _, _ in one.pending():
            one.window.forget(packet_id)
        one.drain(0)
    assert one.counters.sent == 12
    assert one.queued_bytes == 0


def test_the_oldest_qos_0_messages_are_dropped_when_too_much_waits():
    one = session(queue_bytes=25 * SIZE)
    one.set_ready(False)
    for number in range(5):
        one.push(rows(one, 10, number % 2), NOT_KEPT, 0)
    assert one.queued_bytes <= 25 * SIZE
    assert not one.shed()
    assert one.counters.dropped == 30
    one.set_ready(True)
    one.drain(0)
    assert (one.counters.sent, one.inflight) == (20, 20)


def test_without_qos_0_messages_its_queue_gets_long_and_it_sheds_what_is_too_much():
    one = session(queue_bytes=25 * SIZE)
    one.set_ready(False)
    one.push(rows(one, 5), NOT_KEPT, 0)
    assert not one.take_long()
    one.push(rows(one), NOT_KEPT, 0)
    assert one.take_long()
    assert not one.take_long()
    assert not one.shed()
    one.push(rows(one), NOT_KEPT, 0)
    assert one.shed()
    assert not one.shed()
    assert one.counters.dropped == 5
    one.push(rows(one), NOT_KEPT, 0)
    one.disconnected(1)
    one.connected(Terms())
    assert not one.take_long()
    assert not one.shed()


def test_what_waits_when_a_session_spills_may_wait():
    one = session(queue_bytes=25 * SIZE)
    one.set_ready(False)
    one.push(rows(one, 40), NOT_KEPT, 0)
    assert one.take_long()
    one.spilled()
    assert not one.shed()
    one.push(rows(one, 50), NOT_KEPT, 0)
    assert one.shed()


@pytest.mark.parametrize("queue_bytes", [500, 5 * SIZE, 99 * SIZE])
def test_the_newest_rows_of_a_batch_larger_than_the_queue_stay(queue_bytes):
    one = session(queue_bytes=queue_bytes)
    one.set_ready(False)
    one.push(rows(one, 100, 0), NOT_KEPT, 0)
    assert one.queued_bytes <= queue_bytes
    one.set_ready(True)
    one.drain(0)
    assert one.counters.sent + one.counters.dropped == 100
    assert (one.counters.sent > 0) == (queue_bytes > SIZE)


def test_what_a_shared_group_gave_is_never_left_in_the_log():
    one = session(4)
    group = ("g", "t")
    one.push(rows(one, base=50, group=group), 2, 0)
    assert one.lag == {}
    assert one.queued_bytes > 0


def test_a_lost_member_gives_up_what_waits_and_what_is_under_way_at_qos_1():
    one = session(4)
    group = ("g", "t")
    one.push(rows(one, 6, group=group), 0, 0)
    one.push(rows(one, 3), NOT_KEPT, 0)
    one.window.forget(2)
    given = one.give_up_shared()
    assert [(each.row(), each.stop - each.start) for each in given][:3] == [(0, 1), (2, 1), (3, 1)]
    assert sum(each.stop - each.start for each in given) == 5
    assert one.queued_bytes < 4 * SIZE


def test_a_durable_member_keeps_what_is_under_way():
    one = session(4, expiry_s=100)
    one.push(rows(one, 6, group=("g", "t")), 0, 0)
    assert sum(each.stop - each.start for each in one.give_up_shared()) == 2
    assert one.copy_of(1, 0).row() == 0
    assert one.in_memory_only


def test_what_is_acknowledged_is_let_go_of():
    one = session(10, expiry_s=100)
    one.push(rows(one, 1), NOT_KEPT, 0)
    one.window.forget(1)
    size = one.copies_total.total_bytes
    for number in range(1, 500):
        one.push(rows(one, 1), NOT_KEPT, 0)
        one.window.forget(number + 1)
        one.window.room()
    assert one.copies_total.total_bytes < 100 * size


class Source:
    """Messages with the numbers from 0 on, handed out as they are asked for."""

    def __init__(self, to, count, qos=1):
        self.to, self.count, self.qos, self.at = to, count, qos, 0

    @property
    def is_over(self):
        return self.at == self.count

    def take(self, most):
        first, self.at = self.at, min(self.count, self.at + most)
        return None if first == self.at else rows(self.to, self.at - first, self.qos, RETAINED | first)

    def go_back(self, number):
        self.at = number


def feed(to, count, qos=1):
    return RetainedFeed("t", 0, 100, source=Source(to, count, qos))


def test_retained_messages_are_taken_as_there_is_room():
    one = session(3)
    first = feed(one, 10)
    one.feed(first, feed(one, 2, 0))
    got = 0
    while one.waiting:
        one.take_feed(0)
        got += one.inflight
        assert one.inflight <= 3
        for packet_id, _, _ in one.pending():
            one.window.forget(packet_id)
    assert (got, first.at) == (10, 10)
    assert one.counters.sent == 12


def test_retained_messages_that_were_not_sent_are_asked_for_again():
    one = session(3)
    mine = feed(one, 40)
    one.feed(mine)
    mine.source.take = lambda most: rows(one, 40, 1, RETAINED)  # more than there is room for
    one.take_feed(0)
    assert (one.inflight, mine.at, mine.source.at) == (3, 3, 3)


def test_retained_messages_wait_while_the_output_is_full():
    one = session()
    one.feed(feed(one, 3))
    one.set_ready(False)
    assert one.take_feed(0) == (b"", 0)
    assert one.waiting
    one.disconnected(1)
    assert not one.waiting


def test_own_messages_are_remembered_until_they_are_handed_over():
    one = session()
    one.published(0, 5, 7, 0)
    one.published(0, 7, 8, 0)
    one.published(0, 20, 21, 0)
    one.published(1, 0, 3, 0)
    assert one.own(0) == [(5, 8), (20, 21)]
    assert [offset for offset in range(25) if is_within(offset, one.own(0))] == [5, 6, 7, 20]
    one.published(0, 30, 31, 20)
    assert one.own(0) == [(20, 21), (30, 31)]
    assert one.own(1) == [(0, 3)]
    assert one.own(2) == []


def test_the_stretches_of_own_messages_are_bounded():
    one = session()
    one._own = {0: [(2 * k, 2 * k + 1) for k in range(10_000)]}
    one.published(0, 50_000, 50_001, 0)
    assert len(one.own(0)) == 10_000
    assert one.own(0)[-1] == (50_000, 50_001)


def test_a_session_shares_runs_only_when_its_bytes_are_anybodys():
    one = session()
    assert not one.shares_runs(0)  # a maximum packet size of its own
    one.connected(Terms(max_inflight=10))
    assert one.shares_runs(0)
    one.read_on(0, 3)
    assert not one.shares_runs(0)
    assert one.shares_runs(1)
    one.connected(Terms(5, max_inflight=10, max_aliases=5))
    assert not one.shares_runs(1)


def test_a_qos_2_message_that_is_given_up_is_stored_as_released_before_its_pubrel():
    one = session(expiry_s=100)
    one.push(OutgoingRows(batch(2, 2), None, 0, 2, MergedSubscription(one, 2)), 0, 0)
    assert one.take_ahead()
    one.begin_redelivery()
    assert one.give_up(1)
    assert one.window.state(1) == RELEASED
    assert one.take_ahead()


def long_rows(to, shard_base=0):
    identifiers = b"".join(b"\x0b" + bytes((number,)) for number in range(1, 128)) * 100
    return OutgoingRows(batch(100, 1, shard_base), None, 0, 100, MergedSubscription(to, 1, identifiers))


def test_what_is_written_at_once_is_limited_and_the_rest_is_for_the_next_call():
    one = session(1000)
    one.connected(Terms(version=5, max_inflight=1000))
    out = long_rows(one)
    sizes = []
    while out.start < out.stop:
        sizes.append(len(one.push(out, 0, 0)))
    assert max(sizes) <= 1 << 20
    assert (len(sizes), one.counters.sent, one.lag, one.queued_bytes) == (3, 100, {}, 0)


def test_what_is_left_stays_in_the_log_when_the_output_is_full_meanwhile():
    one = session(1000)
    one.connected(Terms(version=5, max_inflight=1000))
    out = long_rows(one, 50)
    assert one.push(out, 2, 0)
    sent = one.counters.sent
    one.set_ready(False)
    assert one.push(out, 2, 0) == b""
    assert out.start == out.stop
    assert one.lag == {2: 50 + sent}


def test_a_queue_is_drained_a_stretch_at_a_time():
    one = session(1000)
    one.connected(Terms(version=5, max_inflight=1000))
    one.set_ready(False)
    for _ in range(3):
        one.push(long_rows(one), NOT_KEPT, 0)
    one.set_ready(True)
    sizes = []
    while data := one.drain(0):
        sizes.append(len(data))
    assert max(sizes) < 2 << 20
    assert (one.counters.sent, one.queued_bytes) == (300, 0)


def ack_run(*ids):
    decoder = Decoder(MessageColumns(16), TopicTable(0), version=4)
    (run,) = decoder.feed(b"".join(encode(Puback(packet_id), 4) for packet_id in ids))
    return run


def test_copies_of_all_sessions_are_counted_until_they_are_acknowledged_or_dropped():
    total = CopiesTotal(30 * SIZE)
    calls = []
    total.on_over = lambda: calls.append(total.largest())
    one, two = session(copies_total=total), session(copies_total=total)
    group = {"group": ("g", "t")}
    one.push(rows(one, 5, **group), NOT_KEPT, 0)
    assert 5 * SIZE < total.total_bytes < 7 * SIZE
    two.push(rows(two, 20, **group), NOT_KEPT, 0)
    assert 25 * SIZE < total.total_bytes < 30 * SIZE
    assert not calls
    one.push(rows(one, 5, **group), NOT_KEPT, 0)
    assert calls == [two]
    assert len(two.give_up_shared()) == 20
    two.drop_copies()
    assert 10 * SIZE < total.total_bytes < 13 * SIZE
    one.acked(ack_run(*range(1, 10)))
    assert [out.records.row(out.row())[0] for out in one.give_up_shared()] == [4]
    one.acked(ack_run(10))
    assert (total.total_bytes, total.holders) == (0, {})


def test_acknowledged_copies_do_not_add_up_while_others_are_under_way():
    total = CopiesTotal()
    one = session(1000, copies_total=total)
    one.push(rows(one, 1, group=("g", "t")), NOT_KEPT, 0)
    for packet_id in range(2, 500):
        one.push(rows(one, 1, group=("g", "t")), NOT_KEPT, 0)
        one.acked(ack_run(packet_id))
    assert total.total_bytes < 200 * SIZE
