"""Queues: a durable cursor, tickets, messages that come back, dead letters, lag."""

import pytest
from tests.state_shards import SECOND_US, Owner

from everlog.streams import (
    Delete,
    ErrorCode,
    Info,
    KvPut,
    Message,
    QueueAck,
    QueueConfig,
    QueueConfigure,
    QueueDead,
    QueueLag,
    QueueNack,
    QueueRemove,
    QueueRevive,
    QueueTake,
)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard")
    made.add("s", *[b"%d" % n for n in range(1, 6)])
    yield made
    made.shard.close()


def configure(owner, start_seq=0, **more):
    owner.result(QueueConfigure("s", "q", QueueConfig(**more), start_seq))


def take(owner, limit=1, **more):
    return owner.result(QueueTake("s", "q", limit, **more)).deliveries


def seqs(deliveries):
    return [one.message.seq for one in deliveries]


def test_each_message_is_handed_out_once_and_acked(owner):
    configure(owner)
    first = take(owner, 2)
    assert seqs(first) == [1, 2]
    assert [one.deliveries for one in first] == [1, 1]
    assert seqs(take(owner, 2)) == [3, 4]
    assert owner.result(QueueAck("s", "q", [first[0].ticket, 999])).count == 1
    lag = owner.result(QueueLag("s", "q"))
    assert (lag.cursor, lag.waiting, lag.pending, lag.acked, lag.next_us) == (5, 1, 3, 1, 0)


def test_a_queue_begins_where_it_is_told_to(owner):
    configure(owner, start_seq=4)
    assert seqs(take(owner, 9)) == [4, 5]
    owner.result(QueueConfigure("s", "new", start_seq=None))
    assert owner.result(QueueTake("s", "new", 9)).deliveries == []
    owner.add("s", b"6")
    assert seqs(owner.result(QueueTake("s", "new", 9)).deliveries) == [6]
    assert owner.result(Info("s")).queues == ["new", "q"]


def test_its_state_survives_restarts(owner):
    configure(owner, ack_wait_us=10 * SECOND_US)
    first = take(owner, 3)
    owner.result(QueueAck("s", "q", [first[1].ticket]))
    killed = owner.reopen(is_clean=False)
    assert seqs(take(killed, 9)) == [4, 5]
    closed = killed.reopen()
    closed.clock.time_us += 11 * SECOND_US
    again = take(closed, 9)
    assert seqs(again) == [1, 3, 4, 5]
    assert [one.deliveries for one in again] == [2, 2, 2, 2]
    assert min(one.ticket for one in again) > max(one.ticket for one in first)
    assert closed.result(QueueAck("s", "q", [first[0].ticket])).count == 0  # too late: somebody else has it
    assert closed.result(QueueAck("s", "q", [one.ticket for one in again])).count == 4
    closed.clock.time_us += 11 * SECOND_US
    assert take(closed, 9) == []
    assert closed.result(QueueLag("s", "q")).next_us == -1
    closed.shard.close()


def test_a_replay_applies_nothing_twice(owner):
    configure(owner)
    (first,) = take(owner)
    owner.result(QueueAck("s", "q", [first.ticket]))
    owner.shard.views.apply_all(owner.shard.committed)  # in the file, and in what is replayed
    again = owner.reopen(is_clean=False)
    again.shard.views.apply_all(again.shard.committed)
    last = again.reopen()
    assert last.result(QueueLag("s", "q")).acked == 1
    last.shard.close()


def test_a_message_that_is_given_back_comes_again_after_its_delay(owner):
    configure(owner)
    (first,) = take(owner)
    owner.result(QueueNack("s", "q", [first.ticket], 5 * SECOND_US))
    assert seqs(take(owner)) == [2]
    assert owner.result(QueueLag("s", "q")).delayed == 1
    owner.clock.time_us += 5 * SECOND_US
    (again,) = take(owner)
    assert (again.message.seq, again.deliveries) == (1, 2)


def test_after_so_many_deliveries_a_message_is_a_dead_letter(owner):
    configure(owner, max_deliveries=2, ack_wait_us=SECOND_US)
    (first,) = take(owner)
    owner.result(QueueNack("s", "q", [first.ticket]))
    (second,) = take(owner)
    assert second.message.seq == 1
    owner.result(QueueNack("s", "q", [second.ticket]))  # by giving it back
    take(owner)
    owner.clock.time_us += 2 * SECOND_US
    take(owner)
    owner.clock.time_us += 2 * SECOND_US
    assert seqs(take(owner)) == [3]  # 2 died by being forgotten
    owner.result(Delete("s", [1]))
    again = owner.reopen()
    letters = again.result(QueueDead("s", "q")).letters
    assert [(one.message.seq, one.message.value, one.deliveries) for one in letters] == [(1, b"1", 2), (2, b"2", 2)]
    assert again.result(QueueDead("s", "q", limit=1)).is_last is False
    assert seqs([*again.result(QueueDead("s", "q", after_seq=1)).letters]) == [2]
    assert again.result(QueueLag("s", "q")).dead == 2
    again.shard.close()


def test_dead_letters_can_be_handed_out_again_or_dropped(owner):
    configure(owner, max_deliveries=1)
    for one in take(owner, 3):
        owner.result(QueueNack("s", "q", [one.ticket]))
    owner.result(Delete("s", [1]))
    assert owner.result(QueueRevive("s", "q", [1, 2, 77])).count == 2
    assert owner.result(QueueRevive("s", "q", [3], drop=True)).count == 1
    assert owner.result(QueueDead("s", "q")).letters == []
    again = owner.reopen()
    revived = take(again, 2)
    assert [(one.message.seq, one.message.value, one.deliveries) for one in revived] == [(1, b"1", 1), (2, b"2", 1)]
    assert again.result(QueueAck("s", "q", [one.ticket for one in revived])).count == 2
    assert again.result(QueueLag("s", "q")).dead == 0
    again.shard.close()


def test_no_more_than_max_pending_are_out(owner):
    configure(owner, max_pending=2)
    assert len(take(owner, 9)) == 2
    assert take(owner, 9) == []
    lag = owner.result(QueueLag("s", "q"))
    assert (lag.waiting, lag.pending) == (3, 2)
    assert lag.next_us > owner.clock.time_us


def test_a_retried_take_gets_the_same_messages(owner):
    configure(owner)
    first = take(owner, 2, message_id="t")
    assert take(owner, 2, message_id="t") == first
    owner.result(QueueAck("s", "q", [first[0].ticket]))
    assert take(owner, 2, message_id="t") == first[1:]


def test_deleted_messages_are_not_handed_out(owner):
    configure(owner, ack_wait_us=SECOND_US)
    take(owner, 2)
    owner.result(Delete("s", [1, 3]))
    owner.clock.time_us += 2 * SECOND_US
    assert seqs(take(owner, 9)) == [2, 4, 5]


def test_bad_requests_are_refused(owner):
    assert owner.refusal(QueueTake("s", "q")).code is ErrorCode.NOT_FOUND
    assert owner.refusal(QueueConfigure("s", "")).code is ErrorCode.BAD_REQUEST
    owner.result(KvPut("kv", "k", Message(b"")))
    assert owner.refusal(QueueConfigure("kv", "q")).code is ErrorCode.WRONG_KIND
    configure(owner)
    assert owner.refusal(QueueNack("s", "q", [1], -1)).code is ErrorCode.BAD_REQUEST
    owner.result(QueueRemove("s", "q"))
    assert owner.refusal(QueueLag("s", "q")).code is ErrorCode.NOT_FOUND


def test_large_messages_that_come_back_fit_into_replies(owner):
    owner.add("s", *[bytes(100_000)] * 20)
    configure(owner, 6, max_deliveries=2)
    for _ in range(2):
        taken = []
        while some := take(owner, 100):
            assert len(some) <= 3
            taken += some
        assert seqs(taken) == list(range(6, 26))
        owner.result(QueueNack("s", "q", [one.ticket for one in taken]))
    dead, after = [], 0
    while not dead or dead[-1].is_last is False:
        dead.append(owner.result(QueueDead("s", "q", after)))
        assert len(dead[-1].letters) <= 3
        after = dead[-1].letters[-1].message.seq
    assert [one.message.seq for page in dead for one in page.letters] == list(range(6, 26))


def test_a_queue_has_a_name_of_bounded_length(owner):
    refused = owner.refusal(QueueConfigure("s", "q" * 513))
    assert refused.code is ErrorCode.BAD_REQUEST
