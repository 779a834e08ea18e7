"""Streams: append, at a seq, read, delete, batches."""

import msgspec
import pytest
from tests.state_shards import Owner

from everlog.streams import (
    Batch,
    Call,
    Delete,
    DeleteAll,
    ErrorCode,
    Get,
    GetAll,
    Info,
    KvPut,
    Message,
    Messages,
    Remove,
    Set,
)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard")
    yield made
    made.shard.close()


def values(owner, stream, **more):
    chunks = owner.series(GetAll(stream, **more))
    assert all(isinstance(one, Messages) for one in chunks)
    return [(message.seq, message.value) for chunk in chunks for message in chunk.messages]


def test_appended_messages_have_rising_seqs_and_come_back_in_order(owner):
    assert owner.add("a/b", b"x", b"y") == [1, 2]
    assert owner.add("a/b", b"z") == [3]
    assert values(owner, "a/b") == [(1, b"x"), (2, b"y"), (3, b"z")]
    assert values(owner, "a/b", start_seq=2, limit=1) == [(2, b"y")]
    assert values(owner, "a/b", end_seq=2) == [(1, b"x"), (2, b"y")]


def test_what_a_caller_gives_is_kept_as_given(owner):
    owner.clock.time_us = 77_000_000
    message = Message(None, {"content-type": "text/plain", "ü": ""}, 1.5)
    owner.result(Set("s", message))
    (found,) = owner.result(Get("s", 1)).messages
    assert (found.value, found.headers, found.timestamp, found.time_us) == (None, message.headers, 1.5, 77_000_000)
    assert not found.is_cut
    owner.result(Set("s", Message(b"", timestamp=-3)))
    (found,) = owner.result(Get("s", 2)).messages
    assert (found.value, found.headers, found.timestamp) == (b"", None, -3)


def test_a_message_can_be_written_at_a_seq_with_gaps(owner):
    owner.result(Set("s", Message(b"ten"), seq=10))
    assert owner.add("s", b"eleven") == [11]
    owner.result(Set("s", Message(b"three"), seq=3))
    owner.result(Set("s", Message(b"TEN"), seq=10))
    assert values(owner, "s") == [(3, b"three"), (10, b"TEN"), (11, b"eleven")]
    info = owner.result(Info("s"))
    assert (info.messages, info.bytes, info.first_seq, info.last_seq) == (3, 14, 3, 11)
    taken = owner.refusal(Set("s", Message(b"x"), seq=10, must_be_new=True))
    assert taken.code is ErrorCode.EXISTS
    assert owner.refusal(Set("s", Message(b"x"), seq=0)).code is ErrorCode.BAD_REQUEST


def test_an_append_can_expect_the_last_seq(owner):
    owner.add("s", b"a")
    assert owner.result(Set("s", Message(b"b"), expected_last_seq=1)).seq == 2
    refused = owner.refusal(Set("s", Message(b"c"), expected_last_seq=1))
    assert (refused.code, refused.revision) == (ErrorCode.WRONG_REVISION, 2)


def test_deleted_messages_are_gone_and_their_seqs_are_not_given_again(owner):
    owner.add("s", b"1", b"22", b"333", b"4444")
    assert owner.result(Delete("s", [2, 9, 4])).count == 2
    assert values(owner, "s") == [(1, b"1"), (3, b"333")]
    assert owner.result(DeleteAll("s", end_seq=1)).count == 1
    assert owner.add("s", b"5") == [5]
    assert values(owner, "s") == [(3, b"333"), (5, b"5")]
    assert owner.result(DeleteAll("s")).count == 2
    assert values(owner, "s") == []
    info = owner.result(Info("s"))
    assert (info.messages, info.bytes, info.last_seq) == (0, 0, 5)


def test_deletes_count_what_is_in_the_file_and_what_is_not_yet(owner):
    owner.add("s", *[b"x" * 10] * 5)
    owner.series(GetAll("s"))  # applied
    asked = [
        owner.ask(Set("s", Message(b"yy"), seq=3)),
        owner.ask(Set("s", Message(b"zzz"))),
        owner.ask(Delete("s", [2])),
        owner.ask(DeleteAll("s", end_seq=4)),
        owner.ask(Set("s", Message(b"again"), seq=2)),
    ]
    owner.turn()
    assert asked[3][0].result.count == 3
    info = owner.result(Info("s"))
    assert (info.messages, info.bytes) == (3, 10 + 3 + 5)
    assert values(owner, "s") == [(2, b"again"), (5, b"x" * 10), (6, b"zzz")]


def test_a_batch_is_done_whole_or_not_at_all(owner):
    owner.add("s", b"a")
    done = owner.result(Batch("s", [Set("s", Message(b"b")), Set("s", Message(b"c")), Delete("s", [1, 2])]))
    assert (done.seqs, done.count) == ([2, 3, 3], 4)
    assert values(owner, "s") == [(3, b"c")]
    before = owner.result(Info("s"))
    writes = [Set("s", Message(b"d")), Delete("s", [3]), Set("s", Message(b"e"), expected_last_seq=3)]
    assert owner.refusal(Batch("s", writes)).code is ErrorCode.WRONG_REVISION
    assert owner.result(Info("s")) == before
    assert values(owner, "s") == [(3, b"c")]
    assert owner.refusal(Batch("s", [Set("t", Message(b"d"))])).code is ErrorCode.BAD_REQUEST
    assert owner.refusal(Batch("s", [])).code is ErrorCode.BAD_REQUEST


def test_a_refused_first_write_makes_no_stream(owner):
    assert owner.refusal(Set("s", Message(b"x"), expected_last_seq=4)).code is ErrorCode.WRONG_REVISION
    assert owner.refusal(Info("s")).code is ErrorCode.NOT_FOUND


def test_a_name_is_one_thing(owner):
    owner.add("s", b"x")
    assert owner.refusal(KvPut("s", "k", Message(b""))).code is ErrorCode.WRONG_KIND
    for name in ("", "a/+", "#", "$SYS/x", "a//b", "x" * 513, "a\0"):
        assert owner.refusal(Set(name, Message(b""))).code is ErrorCode.BAD_REQUEST


def test_a_removed_stream_begins_anew(owner):
    owner.add("s", b"old", b"old")
    assert owner.result(Remove("s")).count == 2
    assert owner.refusal(Get("s", 1)).code is ErrorCode.NOT_FOUND
    assert owner.add("s", b"new") == [1]
    assert values(owner, "s") == [(1, b"new")]
    owner.result(Remove("s"))
    owner.result(KvPut("s", "k", Message(b"kind changed")))
    again = owner.reopen()
    assert again.result(Info("s")).messages == 1
    again.result(Remove("s"))
    last = again.reopen()
    assert last.refusal(Info("s")).code is ErrorCode.NOT_FOUND
    assert last.shard.views.catalogue.count() == 0
    last.shard.close()


def test_long_answers_come_in_chunks(owner):
    owner.add("s", *[bytes([n]) * 1000 for n in range(200)])
    chunks = owner.series(GetAll("s", chunk_bytes=10_000))
    assert len(chunks) > 15
    assert [message.seq for chunk in chunks for message in chunk.messages] == list(range(1, 201))
    assert owner.series(GetAll("s", limit=5, chunk_bytes=10_000))[0].is_last
    assert chunks[0].next_seq == chunks[1].messages[0].seq


def test_times_never_go_back(owner):
    owner.clock.time_us = 5_000_000
    first = owner.result(Set("s", Message(b"")))
    owner.clock.time_us = 4_000_000
    second = owner.result(Set("s", Message(b"")))
    assert second.time_us >= first.time_us


@pytest.mark.parametrize("timestamp", [1 << 63, -(1 << 63) - 1, float("nan")])
@pytest.mark.parametrize("kind", ["stream", "kv"])
def test_a_timestamp_that_can_not_be_kept_is_refused(owner, timestamp, kind):
    message = Message(b"x", timestamp=timestamp)
    request = Set("s", message) if kind == "stream" else KvPut("s", "k", message)
    assert owner.refusal(request).code is ErrorCode.BAD_REQUEST
    assert owner.add("other", b"y") == [1]
    owner = owner.reopen()
    assert values(owner, "other") == [(1, b"y")]


@pytest.mark.parametrize("timestamp", [(1 << 63) - 1, -(1 << 63), float("inf"), -0.5])
def test_the_outermost_timestamps_are_kept(owner, timestamp):
    owner.result(Set("s", Message(b"x", timestamp=timestamp)))
    assert owner.result(Get("s", 1)).messages[0].timestamp == timestamp


def test_a_time_to_live_beyond_all_times_is_refused(owner):
    assert owner.refusal(Set("s", Message(b"x"), ttl_us=1 << 63)).code is ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    "request_",
    [
        ["set", "s", [b"v", None, 1 << 63]],
        ["set", "s", [b"v"], None, None, 1 << 63],
        ["get", "s", 1 << 63],
        ["delete", "s", [1 << 63]],
        ["get_all", "s", 0, 1 << 63],
        ["nack", "s", "q", [1], 1 << 63],
        ["queue_configure", "s", "q", [1 << 63]],
        ["configure", "s", "stream", [0, 0, 1 << 63]],
    ],
)
def test_numbers_that_no_file_can_hold_are_no_request(request_):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([request_]), type=Call)


def test_large_headers_count_in_the_size_of_a_reply(owner):
    for _ in range(10):
        owner.result(Set("s", Message(b"x", {"a": "b" * 100_000})))
    assert [len(chunk.messages) for chunk in owner.series(GetAll("s"))] == [3, 3, 3, 1]


@pytest.mark.parametrize("asked", [1 << 40, -1])
def test_no_reply_is_larger_than_the_shard_allows(owner, asked):
    owner.add("s", *[bytes(100_000)] * 10)
    assert [len(chunk.messages) for chunk in owner.series(GetAll("s", chunk_bytes=asked))] == [3, 3, 3, 1]


def test_a_request_can_not_hold_up_the_others_by_what_it_deletes(owner):
    owner.add("s", b"x")
    seqs = list(range(2, 60_000))
    refused = owner.refusal(Batch("s", [Delete("s", seqs), Delete("s", seqs)]))
    assert refused.code is ErrorCode.BAD_REQUEST
    assert refused.hint
    assert owner.result(Delete("s", [1, *seqs])).count == 1
