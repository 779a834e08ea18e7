"""A write with a message id is done once, however often it is sent; one that is too old is refused."""

import pytest
from tests.state_shards import SECOND_US, Owner

from everlog.streams import Batch, Delete, ErrorCode, GetAll, KvPut, Message, Set


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard")
    yield made
    made.shard.close()


def write(name, value=b"x"):
    return Set("s", Message(value), message_id=name)


def count(owner):
    return sum(len(chunk.messages) for chunk in owner.series(GetAll("s")))


def test_a_retry_gets_the_first_answer(owner):
    first = owner.result(write("a"))
    owner.add("s", b"between")
    second = owner.result(write("a", b"other"))
    assert (second.seq, second.position, second.is_duplicate) == (first.seq, first.position, True)
    assert not first.is_duplicate
    assert count(owner) == 2


def test_a_retry_after_a_crash_gets_the_first_answer(owner):
    first = owner.result(write("a"))
    several = Batch("s", [Set("s", Message(b"1")), Set("s", Message(b"2"))], message_id="b")
    batch = owner.result(several)
    killed = owner.reopen(is_clean=False)
    assert killed.result(write("a")).position == first.position
    closed = killed.reopen()
    assert closed.result(write("a")).position == first.position
    again = closed.result(several)
    assert (again.seqs, again.is_duplicate) == (batch.seqs, True)
    assert count(closed) == 3
    closed.shard.close()


def test_a_duplicate_is_answered_when_the_first_is_committed(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    first, second = owner.ask(write("a")), owner.ask(write("a"))
    owner.turn()
    assert not first
    assert not second
    owner.journal.commit_now()
    owner.run_posted()
    assert second[0].result.position == first[0].result.position
    owner.shard.close()


def test_so_many_ids_are_remembered_and_an_older_retry_is_refused(owner):
    owner.configure("s", dedup_ids=3)
    before = owner.result(write("old")).position
    for name in "abc":
        owner.result(write(name))
    refused = owner.refusal(write("old"), first_seen_position=before - 1)
    assert refused.code is ErrorCode.STALE_RETRY
    assert owner.result(write("a"), first_seen_position=before - 1).is_duplicate
    assert not owner.result(write("new"), first_seen_position=before + 3).is_duplicate
    assert not owner.result(write("first try")).is_duplicate


def test_ids_are_remembered_for_some_time_of_the_stream(owner):
    owner.configure("s", dedup_us=60 * SECOND_US)
    before = owner.result(write("old")).position
    owner.clock.time_us += 59 * SECOND_US
    assert owner.result(write("old")).is_duplicate
    owner.clock.time_us += 2 * SECOND_US
    owner.result(write("new"))
    assert owner.refusal(write("old"), first_seen_position=before - 1).code is ErrorCode.STALE_RETRY
    again = owner.reopen()
    assert again.refusal(write("old"), first_seen_position=before - 1).code is ErrorCode.STALE_RETRY
    assert again.result(write("new")).is_duplicate
    again.shard.close()


def test_a_write_without_effect_is_remembered_too(owner):
    owner.add("s", b"x")
    assert owner.result(Delete("s", [7], message_id="a")).count == 0
    owner.result(Set("s", Message(b"seven"), seq=7))
    assert owner.result(Delete("s", [7], message_id="a")).is_duplicate
    assert count(owner) == 2


def test_ids_of_stores_count_too(owner):
    first = owner.result(KvPut("kv", "k", Message(b"1"), message_id="a"))
    owner.result(KvPut("kv", "k", Message(b"2")))
    assert owner.result(KvPut("kv", "k", Message(b"1"), message_id="a")).seq == first.seq
    assert owner.refusal(KvPut("kv", "k", Message(b"1"), message_id="x" * 200)).code is ErrorCode.BAD_REQUEST


def test_a_delete_of_what_never_was_leaves_nothing_behind(tmp_path):
    owner = Owner(tmp_path / "shard")
    assert owner.result(Delete("s", [1], "id")).count == 0
    assert owner.journal.end == 0
    again = owner.reopen()
    again.add("s", b"1")
    third = again.reopen()
    assert third.add("s", b"2") == [2]
    assert [one.value for chunk in third.series(GetAll("s")) for one in chunk.messages] == [b"1", b"2"]
    third.shard.close()
