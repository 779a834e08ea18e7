"""Limits of streams: checked before anything is touched, and told when something gives way."""

import pytest
from tests.state_shards import SECOND_US, Owner

from everlog.streams import (
    Batch,
    Config,
    Configure,
    Delete,
    Discard,
    ErrorCode,
    GetAll,
    Info,
    Kind,
    KvGet,
    KvPut,
    Message,
    MessagesDeleted,
    MessageSet,
    Reason,
    Set,
    ShardSettings,
)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard")
    yield made
    made.shard.close()


def seqs(owner, stream="s"):
    return [one.seq for chunk in owner.series(GetAll(stream)) for one in chunk.messages]


def test_the_oldest_give_way_by_count_and_followers_are_told(owner):
    owner.configure("s", max_messages=3)
    owner.follow("s", "kv")
    owner.add("s", b"1", b"2", b"3", b"4", b"5")
    assert seqs(owner) == [3, 4, 5]
    changes = [change for event in owner.events for change in event.changes]
    dropped = [one.ranges for one in changes if isinstance(one, MessagesDeleted)]
    assert dropped == [[(1, 1)], [(2, 2)]]
    assert owner.events[-1].changes[0].reason is Reason.DISCARDED
    assert isinstance(owner.events[-1].changes[1], MessageSet)
    assert owner.result(Info("s")).messages == 3


def test_the_oldest_give_way_by_bytes_in_file_and_memory(owner):
    owner.configure("s", max_bytes=100)
    owner.add("s", *[b"x" * 30] * 3)
    seqs(owner)  # applied
    owner.add("s", b"y" * 30)
    assert owner.result(Info("s")).bytes == 90
    owner.add("s", b"z" * 100)
    assert seqs(owner) == [5]
    assert owner.refusal(Set("s", Message(b"z" * 101))).code is ErrorCode.TOO_LARGE
    assert seqs(owner) == [5]


def test_many_discards_over_restarts_keep_the_newest(owner):
    owner.configure("s", max_messages=100)
    for n in range(30):
        owner.add("s", *[b"%d" % n] * 21)
        if n % 7 == 3:
            seqs(owner)
    assert seqs(owner) == list(range(531, 631))
    again = owner.reopen()
    again.add("s", *[b"more"] * 5)
    assert seqs(again) == list(range(536, 636))
    again.result(Delete("s", [536, 540]))
    again.add("s", b"a", b"b", b"c")
    assert again.result(Info("s")).messages == 100
    assert seqs(again)[:3] == [538, 539, 541]
    again.shard.close()


def test_a_full_stream_may_refuse_instead(owner):
    owner.configure("s", max_messages=2, discard=Discard.NEW)
    owner.add("s", b"1", b"2")
    assert owner.refusal(Set("s", Message(b"3"))).code is ErrorCode.FULL
    assert owner.result(Set("s", Message(b"two"), seq=2)).seq == 2
    owner.result(Delete("s", [1]))
    assert owner.result(Set("s", Message(b"3"))).seq == 3


def test_a_batch_that_does_not_fit_changes_nothing(owner):
    owner.configure("s", max_messages=3, max_message_bytes=10)
    owner.add("s", b"1", b"2", b"3")
    writes = [Set("s", Message(b"4")), Set("s", Message(b"x" * 11))]
    assert owner.refusal(Batch("s", writes)).code is ErrorCode.TOO_LARGE
    assert seqs(owner) == [1, 2, 3]
    owner.result(Batch("s", [Set("s", Message(b"%d" % n)) for n in range(5)]))
    assert seqs(owner) == [6, 7, 8]
    owner.result(Batch("s", [Set("s", Message(b"low"), seq=2), *[Set("s", Message(b"n")) for n in range(2)]]))
    assert len(seqs(owner)) == 3
    assert owner.result(Info("s")).messages == 3


def test_headers_count_and_a_store_refuses_when_full(owner):
    owner.configure("s", max_message_bytes=20)
    assert owner.refusal(Set("s", Message(b"x", {"name": "a long value"}))).code is ErrorCode.TOO_LARGE
    owner.configure("kv", Kind.KV, max_messages=1)
    owner.result(KvPut("kv", "a", Message(b"1")))
    owner.result(KvPut("kv", "a", Message(b"2")))
    assert owner.refusal(KvPut("kv", "b", Message(b"1"))).code is ErrorCode.FULL


def test_the_rate_has_a_burst_of_a_second(owner):
    owner.configure("s", max_rate=2)
    owner.add("s", b"1", b"2")
    assert owner.refusal(Set("s", Message(b"3"))).code is ErrorCode.RATE
    owner.clock.time_us += SECOND_US // 2
    owner.add("s", b"3")
    assert owner.refusal(Set("s", Message(b"4"))).code is ErrorCode.RATE


def test_messages_expire_by_their_ttl_and_the_streams_age(owner):
    owner.follow("s", "kv")
    owner.result(Set("s", Message(b"soon"), ttl_us=5 * SECOND_US))
    owner.add("s", b"never")
    owner.result(KvPut("kv", "k", Message(b"soon"), ttl_us=5 * SECOND_US))
    owner.tick(4)
    assert seqs(owner) == [1, 2]
    owner.tick(1)
    assert seqs(owner) == [2]
    assert owner.refusal(KvGet("kv", "k")).code is ErrorCode.NOT_FOUND
    gone = [change for event in owner.events for change in event.changes if hasattr(change, "reason")]
    assert [one.reason for one in gone] == [Reason.EXPIRED, Reason.EXPIRED]
    owner.configure("s", max_age_us=60 * SECOND_US)
    owner.tick(54)
    assert seqs(owner) == [2]
    owner.add("s", b"young")
    owner.tick(2)
    assert seqs(owner) == [3]
    owner.tick(60)
    assert seqs(owner) == []
    assert owner.result(Info("s")).bytes == 0


def test_what_is_not_in_memory_expires_too(owner):
    owner.result(Set("s", Message(b"soon"), ttl_us=5 * SECOND_US))
    owner.configure("old", max_age_us=60 * SECOND_US)
    owner.add("old", b"x")
    again = owner.reopen()
    again.tick(5)
    assert seqs(again) == []
    again.tick(60)
    assert again.result(Info("old")).messages == 0
    again.shard.close()


def test_nothing_expires_while_the_clock_is_in_doubt(owner):
    owner.result(Set("s", Message(b"soon"), ttl_us=5 * SECOND_US))
    owner.clock.is_believed = False
    owner.tick(365 * 86_400)
    assert seqs(owner) == [1]
    owner.clock.is_believed = True
    owner.tick()
    assert seqs(owner) == []


def test_many_expired_messages_go_in_several_ticks(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(expire_rows=10))
    owner.configure("s", max_age_us=SECOND_US)
    owner.add("s", *[b"x"] * 25)
    owner.tick(2)
    assert len(seqs(owner)) == 15
    owner.tick()
    owner.tick()
    assert seqs(owner) == []
    owner.shard.close()


def test_bad_limits_are_refused(owner):
    assert owner.refusal(Configure("s", Kind.STREAM, Config(max_bytes=-1))).code is ErrorCode.BAD_REQUEST
    owner.configure("s")
    assert owner.refusal(Configure("s", Kind.KV)).code is ErrorCode.WRONG_KIND
