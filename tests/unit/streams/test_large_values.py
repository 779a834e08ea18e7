"""Large values in parts, forks and downloads: never half of one."""

import sqlite3

import pytest
from tests.state_shards import SECOND_US, Owner

from everlog.streams import (
    Batch,
    Configure,
    Download,
    ErrorCode,
    Fork,
    Get,
    GetAll,
    Info,
    Kind,
    KvCreate,
    KvGet,
    KvKeys,
    KvPut,
    Message,
    ReadValue,
    Remove,
    Set,
    ShardSettings,
    Upload,
)

SMALL = ShardSettings(value_bytes=1000, max_message_bytes=100_000, upload_bytes=200_000)


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "shard", settings=SMALL)
    yield made
    made.shard.close()


def upload(owner, stream, name, parts, kind=Kind.STREAM):
    for number, data in enumerate(parts):
        owner.result(Upload(stream, name, number, data, kind))


PARTS = [b"a" * 900, b"b" * 900, b"c" * 10]


def read(owner, message, **where):
    found = b""
    while len(found) < message.size:
        found += owner.result(ReadValue("s", message.position, len(found), 700, **where)).data
    return found


def test_a_value_comes_in_parts_and_is_read_in_parts(owner):
    owner.add("s", b"x")
    upload(owner, "s", "u", PARTS)
    assert [one.seq for chunk in owner.series(GetAll("s")) for one in chunk.messages] == [1]
    assert owner.result(Set("s", Message(None, {"n": "v"}), upload="u")).seq == 2
    (found,) = owner.result(Get("s", 2)).messages
    assert (found.value, found.is_cut, found.size, found.headers) == (None, True, 1810, {"n": "v"})
    assert read(owner, found, seq=2) == b"".join(PARTS)
    assert owner.result(Info("s")).bytes == 1 + 1810 + len('{"n":"v"}')
    owner.result(Set("s", Message(b"other"), seq=2))
    assert owner.refusal(ReadValue("s", found.position, 0, 10, seq=2)).code is ErrorCode.CHANGED
    assert owner.refusal(Set("s", Message(), upload="u")).code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("is_clean", [False, True])
def test_an_upload_goes_on_after_a_restart(owner, is_clean):
    upload(owner, "s", "u", PARTS[:2])
    owner.add("s", b"between")
    again = owner.reopen(is_clean=is_clean)
    again.result(Upload("s", "u", 1, PARTS[1]))  # sent again
    again.result(Upload("s", "u", 2, PARTS[2]))
    again.result(Set("s", Message(), upload="u"))
    last = again.reopen(is_clean=is_clean)
    (found,) = last.result(Get("s", 2)).messages
    assert read(last, found, seq=2) == b"".join(PARTS)
    last.shard.close()


def test_keys_may_have_large_values(owner):
    upload(owner, "s", "u", PARTS, Kind.KV)
    assert owner.refusal(Upload("s", "v", 0, b"x")).code is ErrorCode.WRONG_KIND
    owner.result(KvPut("s", "k", Message(), upload="u"))
    (found,) = owner.result(KvGet("s", "k")).entries
    assert (found.is_cut, found.size) == (True, 1810)
    assert read(owner, found, key="k") == b"".join(PARTS)


def test_parts_out_of_order_and_too_many_are_refused(owner):
    assert owner.refusal(Upload("s", "u", 1, b"x")).code is ErrorCode.BAD_REQUEST
    assert owner.refusal(Upload("s", "u", 0, b"x" * 100_001)).code is ErrorCode.TOO_LARGE
    upload(owner, "s", "u", [b"x" * 99_000])
    assert owner.refusal(Upload("s", "u", 1, b"x" * 2_000)).code is ErrorCode.TOO_LARGE
    upload(owner, "s", "v", [b"x" * 99_000])
    assert owner.refusal(Upload("s", "w", 0, b"x" * 99_000)).code is ErrorCode.BUSY
    owner.result(Set("s", Message(), upload="u"))
    upload(owner, "s", "w", [b"x" * 99_000])


def test_an_upload_that_nobody_asks_for_is_dropped(owner):
    owner.add("s", b"x")
    upload(owner, "s", "u", PARTS)
    owner.tick(3500)
    owner.tick(101)
    assert owner.refusal(Set("s", Message(), upload="u")).code is ErrorCode.NOT_FOUND
    upload(owner, "s", "u", PARTS)
    owner.result(Set("s", Message(), upload="u"))


def test_a_stream_can_be_downloaded_as_plain_sqlite(owner, tmp_path):
    owner.add("s", b"1", b"2")
    parts = owner.series(Download("s", chunk_bytes=5000))
    assert len(parts) > 1
    path = tmp_path / "copy.db"
    path.write_bytes(b"".join(part.data for part in parts))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT seq, value FROM messages ORDER BY seq").fetchall() == [(1, b"1"), (2, b"2")]
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert owner.shard.snapshot("s", str(tmp_path / "snapshot.db")) == 1


def test_a_fork_is_a_copy_of_its_own(owner):
    owner.configure("s", max_messages=500)
    owner.clock.time_us += 5
    owner.add("s", *[bytes([n]) * 400 for n in range(200)])
    upload(owner, "s", "u", [b"z" * 60_000, b"y" * 30_000])
    owner.result(Set("s", Message(None, {"big": "yes"}, 7), upload="u", ttl_us=10**12))
    before = [one for chunk in owner.series(GetAll("s")) for one in chunk.messages]
    owner.clock.time_us += 5
    answers = owner.ask(Fork("s", "t"))
    owner.add("s", b"later")
    while not answers:
        owner.turn()
    info = owner.result(Info("t"))
    assert (info.messages, info.bytes, info.last_seq, info.config.max_messages) == (
        201, 200 * 400 + 90_000 + len('{"big":"yes"}'), 201, 500,
    )  # fmt: skip
    after = [one for chunk in owner.series(GetAll("t")) for one in chunk.messages]
    facts = [(one.seq, one.time_us, one.value, one.headers, one.timestamp, one.expires_us, one.size) for one in before]
    assert facts == [
        (one.seq, one.time_us, one.value, one.headers, one.timestamp, one.expires_us, one.size) for one in after
    ]
    assert owner.add("t", b"own") == [202]
    again = owner.reopen()
    assert again.result(Info("t")).messages == 202
    assert again.refusal(Fork("s", "t")).code is ErrorCode.EXISTS
    assert again.refusal(Fork("nothing", "x")).code is ErrorCode.NOT_FOUND
    again.shard.close()


def test_a_store_can_be_forked(owner):
    for n in range(5):
        owner.result(KvPut("kv", f"k{n}", Message(b"%d" % n)))
    revision = owner.result(KvGet("kv", "k3")).entries[0].revision
    owner.result(Fork("kv", "copy"))
    assert owner.series(KvKeys("copy"))[0].keys == [f"k{n}" for n in range(5)]
    assert owner.result(KvGet("copy", "k3")).entries[0].revision == revision
    assert owner.result(Info("copy")).kind is Kind.KV


def test_half_a_fork_is_never_seen(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    asked = owner.ask(Configure("s"))
    owner.ask(Set("s", Message(b"x" * 300_000)))
    owner.ask(Set("s", Message(b"y" * 300_000)))
    for _ in range(2):
        owner.turn()
        owner.journal.commit_now()
        owner.run_posted()
    assert asked
    forked = owner.ask(Fork("s", "t"))
    owner.turn()
    owner.journal.commit_now()  # the first step
    owner.run_posted()
    assert not forked
    assert owner.ask(Info("t"))[0].code is ErrorCode.NOT_FOUND
    again = owner.reopen(is_clean=False, survivors=99)
    assert again.refusal(Info("t")).code is ErrorCode.NOT_FOUND
    assert again.result(Info("s")).messages == 2
    again.result(Fork("s", "t"))
    assert again.result(Info("t")).messages == 2
    again.shard.close()


def test_a_large_value_whose_write_is_refused_is_dropped(owner):
    owner.result(KvPut("k", "a", Message(b"x")))
    for number in range(30):  # each of 10 KB, of 200 KB that may wait
        upload(owner, "k", f"u{number}", [b"x" * 10_000], Kind.KV)
        create = KvCreate("k", "a", Message(None), upload=f"u{number}")
        request = Batch("k", [KvPut("k", "b", Message(b"y")), create]) if number % 2 else create
        assert owner.refusal(request).code is ErrorCode.EXISTS
    owner = owner.reopen()
    assert owner.shard.writes.uploading.bytes == 0
    assert owner.refusal(KvPut("k", "a", Message(None), upload="u29")).code is ErrorCode.NOT_FOUND
    assert owner.shard.writes.uploading.bytes == 0


def test_a_large_value_that_was_written_before_is_dropped(owner):
    for number in range(30):
        upload(owner, "s", f"u{number}", [b"x" * 10_000])
        done = owner.result(Set("s", Message(None), message_id="mine", upload=f"u{number}"))
        assert (done.seq, done.is_duplicate) == (1, number > 0)
    assert owner.shard.writes.uploading.bytes == 0


def test_what_was_uploaded_to_a_removed_stream_does_not_count(owner):
    for number in range(30):
        upload(owner, "s", f"u{number}", [b"x" * 50_000])
        owner.result(Remove("s"))
    assert owner.shard.writes.uploading.bytes == 0


def test_a_fork_leaves_room_for_uploads_as_it_was(owner):
    upload(owner, "s", "u", PARTS)
    owner.result(Set("s", Message(None), upload="u"))
    owner.result(Fork("s", "copy"))
    owner.turn()
    assert owner.shard.writes.uploading.bytes == 0


def test_uploads_that_nobody_goes_on_with_give_way(owner):
    for number in range(4):
        upload(owner, f"s{number}", "gone", [b"x" * 50_000])
    assert owner.refusal(Upload("s", "u", 0, b"x" * 900)).code is ErrorCode.BUSY
    owner.clock.time_us += 30 * SECOND_US
    owner.result(Upload("s0", "gone", 1, b""))
    owner.clock.time_us += 31 * SECOND_US
    upload(owner, "s", "u", PARTS)
    assert owner.result(Set("s", Message(None), upload="u")).seq == 1
    assert owner.result(Set("s0", Message(None), upload="gone")).seq == 1
    assert owner.refusal(Set("s1", Message(None), upload="gone")).code is ErrorCode.NOT_FOUND
    assert owner.shard.writes.uploading.bytes == 0
