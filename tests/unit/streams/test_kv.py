"""Key-value stores: put, create, compare-and-set, delete, keys."""

import pytest
from tests.state_shards import Owner

from everlog.streams import (
    Batch,
    DeleteAll,
    Entries,
    ErrorCode,
    Info,
    KvCas,
    KvCreate,
    KvDelete,
    KvGet,
    KvKeys,
    KvPut,
    Level,
    Message,
)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard")
    yield made
    made.shard.close()


def get(owner, key):
    (entry,) = owner.result(KvGet("kv", key)).entries
    return entry


def put(owner, key, value=b"v"):
    return owner.result(KvPut("kv", key, Message(value))).seq


def test_a_key_has_its_last_value_only(owner):
    put(owner, "a", b"1")
    second = put(owner, "a", b"2")
    found = get(owner, "a")
    assert (found.value, found.revision) == (b"2", second)
    assert owner.result(Info("kv")).messages == 1
    assert owner.refusal(KvGet("kv", "b")).code is ErrorCode.NOT_FOUND


def test_create_wants_no_value_and_cas_wants_the_revision(owner):
    first = owner.result(KvCreate("kv", "a", Message(b"1"))).seq
    assert owner.refusal(KvCreate("kv", "a", Message(b"2"))).code is ErrorCode.EXISTS
    second = owner.result(KvCas("kv", "a", Message(b"2"), first)).seq
    refused = owner.refusal(KvCas("kv", "a", Message(b"3"), first))
    assert (refused.code, refused.revision) == (ErrorCode.WRONG_REVISION, second)
    assert owner.refusal(KvCas("kv", "a", Message(b"3"), 0)).code is ErrorCode.WRONG_REVISION
    assert owner.result(KvCas("kv", "b", Message(b"3"), 0)).seq > second
    assert get(owner, "a").value == b"2"


def test_cas_is_won_by_one_in_a_turn(owner):
    first = put(owner, "a")
    asked = [owner.ask(KvCas("kv", "a", Message(b"%d" % n), first)) for n in range(5)]
    owner.turn()
    assert [hasattr(one[0], "result") for one in asked] == [True, False, False, False, False]
    assert get(owner, "a").value == b"0"


def test_a_deleted_key_has_no_value_and_keeps_no_revision(owner):
    first = put(owner, "a")
    assert owner.refusal(KvDelete("kv", "a", revision=first + 1)).code is ErrorCode.WRONG_REVISION
    assert owner.result(KvDelete("kv", "a", revision=first)).count == 1
    assert owner.result(KvDelete("kv", "a")).count == 0
    assert owner.refusal(KvGet("kv", "a")).code is ErrorCode.NOT_FOUND
    assert owner.result(KvCreate("kv", "a", Message(b""))).seq > first


def test_keys_come_by_prefix_and_in_order(owner):
    for key in ("b/2", "a", "b/10", "c", "b"):
        put(owner, key, key.encode())
    assert owner.series(KvKeys("kv"))[0].keys == ["a", "b", "b/10", "b/2", "c"]
    assert owner.series(KvKeys("kv", prefix="b/"))[0].keys == ["b/10", "b/2"]
    assert owner.series(KvKeys("kv", prefix="b", after="b", limit=1))[0].keys == ["b/10"]
    (found,) = owner.series(KvKeys("kv", prefix="b/", with_values=True))
    assert isinstance(found, Entries)
    assert [one.value for one in found.entries] == [b"b/10", b"b/2"]


def test_a_read_back_comes_from_memory_and_is_right_after_a_restart(owner):
    put(owner, "a", b"1")
    owner.series(KvKeys("kv"))  # applied, and the overlay is empty
    opened = owner.shard.views.files.opened
    assert get(owner, "a").value == b"1"
    revision = put(owner, "a", b"2")
    assert owner.shard.views.files.opened == opened
    again = owner.reopen()
    assert get(again, "a").value == b"2"
    assert get(again, "a").revision == revision
    third = again.result(KvCas("kv", "a", Message(b"3"), revision)).seq
    assert third > revision
    assert get(again, "a").value == b"3"
    again.result(DeleteAll("kv"))
    assert again.refusal(KvGet("kv", "a")).code is ErrorCode.NOT_FOUND
    assert again.result(Info("kv")).bytes == 0
    again.shard.close()


def test_revisions_of_values_that_were_lost_are_never_given_again(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    answers = owner.ask(KvPut("kv", "a", Message(b"kept")))
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    lost = owner.ask(KvPut("kv", "a", Message(b"lost"), level=Level.MEMORY))
    owner.turn()
    assert lost[0].level is Level.MEMORY
    again = owner.reopen(is_clean=False, survivors=0)
    assert get(again, "a").revision == answers[0].result.seq
    new = put(again, "a", b"new")
    assert new > lost[0].result.seq
    again.shard.close()


def test_a_batch_of_keys_is_done_whole(owner):
    first = put(owner, "a")
    writes = [KvPut("kv", "b", Message(b"")), KvCas("kv", "a", Message(b""), first + 5)]
    assert owner.refusal(Batch("kv", writes)).code is ErrorCode.WRONG_REVISION
    assert owner.refusal(KvGet("kv", "b")).code is ErrorCode.NOT_FOUND
    done = owner.result(
        Batch("kv", [KvPut("kv", "b", Message(b"")), KvDelete("kv", "a"), KvCreate("kv", "a", Message())])
    )
    assert done.count == 3
    assert get(owner, "a").value is None


def test_bad_keys_are_refused(owner):
    assert owner.refusal(KvPut("kv", "", Message(b""))).code is ErrorCode.BAD_REQUEST
    assert owner.refusal(KvPut("kv", "x" * 4097, Message(b""))).code is ErrorCode.BAD_REQUEST


def test_keys_of_the_highest_characters_are_listed(owner):
    high = "\U0010ffff"
    for key in ("a", f"a{high}", f"a{high}{high}", high, high * 1024):
        put(owner, key)
    listed = {prefix: [one for chunk in owner.series(KvKeys("kv", prefix)) for one in chunk.keys]
              for prefix in ("", "a", f"a{high}", high)}  # fmt: skip
    assert listed[""] == ["a", f"a{high}", f"a{high}{high}", high, high * 1024]
    assert listed["a"] == ["a", f"a{high}", f"a{high}{high}"]
    assert listed[f"a{high}"] == [f"a{high}", f"a{high}{high}"]
    assert listed[high] == [high, high * 1024]
