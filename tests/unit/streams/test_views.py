"""Files of streams: applied late, few open at a time, and trusted only for what is synced."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.power_cut import watched
from tests.state_shards import Owner

from everlog.streams import Call, ErrorCode, Get, GetAll, Info, KvPut, Message, Remove, Set, ShardSettings
from everlog.streams.views import SyncRound

TRIMMING = ShardSettings(keep_records=0, sync_us=1, apply_us=0)


def seqs(owner, stream="s"):
    return [one.seq for chunk in owner.series(GetAll(stream)) for one in chunk.messages]


def test_rows_gather_before_they_are_applied(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(apply_rows=64))
    owner.add("s", *[b"x"] * 63)
    assert not owner.shard.views.files.opened
    owner.add("s", b"x")
    assert owner.shard.views.files.opened == 1
    assert owner.shard.views.pending_rows == 0
    owner.add("t", b"x")
    owner.tick(10)
    assert owner.shard.views.pending_rows == 1
    owner.tick(21)
    assert owner.shard.views.pending_rows == 0
    owner.add("t", b"x" * (2 << 20), b"y")
    assert owner.shard.views.pending_rows == 0
    owner.shard.close()


def test_a_long_replay_leaves_out_what_rows_and_files_tell(tmp_path, monkeypatch):
    monkeypatch.setattr("everlog.streams.views.LONG_REPLAY", 0)
    owner = Owner(tmp_path / "shard", settings=ShardSettings(apply_rows=10, sync_us=10**15))
    for name in ("s", "t", "u"):
        owner.add(name, *[b"%d" % number for number in range(12)])
    owner.tick()  # writes the rows
    owner.add("s", *[b"more"] * 5)
    owner.add("u", *[b"more"] * 12)
    missing = owner.shard.views.files.path("t")
    damaged = owner.shard.views.files.path("u")
    owner = owner.reopen(is_clean=False, survivors=0)
    views = owner.shard.views
    assert (views.files.opened, views.pending_rows) == (3, 5 + 12)
    assert list(views._unsynced) == ["s", "t", "u"]  # a power cut may take from the files what they have
    assert [len(seqs(owner, name)) for name in ("s", "t", "u")] == [17, 12, 24]
    owner.shard.abandon()
    Path(missing).unlink()
    Path(missing + "-wal").unlink(missing_ok=True)
    Path(damaged).write_bytes(b"nothing of SQLite's" * 1000)
    Path(damaged + "-wal").unlink(missing_ok=True)
    owner = Owner(tmp_path / "shard", owner.disk, clock=owner.clock)
    assert [seqs(owner, name)[-1] for name in ("s", "t")] == [17, 12]
    assert owner.refusal(Info("u")).code == ErrorCode.STORAGE
    owner.shard.abandon()


def test_what_is_pending_is_bounded_over_all_streams(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(pending_rows=50))
    for n in range(100):
        owner.add(f"s/{n}", b"x")
        assert owner.shard.views.pending_rows <= 50
    assert owner.shard.views.pending_bytes > 0
    owner.shard.close()
    big = Owner(tmp_path / "big", settings=ShardSettings(pending_bytes=100_000))
    for n in range(20):
        big.add(f"s/{n}", b"x" * 20_000)
        assert big.shard.views.pending_bytes <= 100_000
    big.shard.close()


def test_what_is_applied_does_not_wait_for_files_that_are_being_synced(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(apply_rows=4, pending_rows=20, sync_us=10**15))
    views = owner.shard.views
    owner.add("s", *[b"x"] * 4)
    owner.add("t", *[b"x"] * 4)
    syncing = views.files.unsynced_file("s").lock
    with syncing:
        owner.add("s", *[b"y"] * 10)  # whoever takes the lock once more waits for ever
        owner.add("t", *[b"y"] * 4)
        owner.tick(31)
        assert (views.pending_rows, len(views.find("t").pending)) == (10, 0)
        owner.add("s", *[b"z"] * 10)
        assert owner.add("t", *[b"z"] * 3) == [9, 10, 11]
        assert views.pending_rows == 20, "there was no room for more, and what could be applied was"
    owner.add("u", b"x")
    assert len(views.find("s").pending) == 0
    assert seqs(owner) == list(range(1, 25))
    owner.shard.close()


def test_few_files_are_open_and_streams_that_are_idle_leave_memory(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(most_open=5, most_states=7, apply_rows=2))
    for n in range(30):
        owner.add(f"s/{n}", b"1", b"2")
    assert len(owner.shard.views.files) == 5
    owner.tick()
    assert len(owner.shard.views._states) == 7
    for n in range(30):
        assert owner.add(f"s/{n}", b"3") == [3]
        assert seqs(owner, f"s/{n}") == [1, 2, 3]
    owner.shard.close()


def test_a_cold_append_opens_no_file(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"1")
    again = owner.reopen()
    assert again.add("s", b"2") == [2]
    assert again.shard.views.files.opened == 0
    assert seqs(again) == [1, 2]
    again.shard.close()


def test_after_a_clean_stop_nothing_is_replayed(tmp_path):
    owner = Owner(tmp_path / "shard")
    for n in range(10):
        owner.add(f"s/{n}", b"x")
    owner.result(Remove("s/3"))
    again = owner.reopen()
    assert again.shard.views.pending_rows == 0
    assert again.shard.views.catalogue.whole == again.journal.end
    again.shard.close()


def test_uncommitted_records_are_in_no_file(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True, settings=ShardSettings(apply_rows=1))
    asked = [owner.ask(Set("s", Message(b"%d" % n))) for n in range(4)]
    owner.turn()
    owner.journal.commit_now(upto=2)
    owner.shard._on_commit(2)
    assert [bool(one) for one in asked] == [True, True, False, False]
    path = owner.shard.views.files.path("s")
    owner.shard.views.apply_all(2)
    assert owner.shard.views.files.unsynced_file("s").rows("SELECT max(seq) FROM messages") == [(2,)]
    again = owner.reopen(is_clean=False)
    assert seqs(again) == [1, 2]
    assert again.shard.views.files.path("s") == path
    again.shard.close()


@pytest.mark.parametrize("is_mutant", [False, True])
def test_the_journal_is_trimmed_below_what_is_synced_only(tmp_path, is_mutant, monkeypatch):
    """Mutant: the journal goes by what is applied; a power cut then loses what was acknowledged."""
    if is_mutant:

        def by_applied(done):
            done._catalogue.sync()
            done.synced = done._written

        monkeypatch.setattr(SyncRound, "run", by_applied)
    directory = tmp_path / "shard"
    with watched(directory) as power:
        owner = Owner(directory, settings=TRIMMING)
        for n in range(20):
            owner.add("s", b"%d" % n)
            owner.add("t", b"%d" % n)
            owner.tick(1)
        assert owner.journal.start > 20
        owner.add("s", b"last")
        seqs(owner)  # applied, and not synced
        power.cut()
        again = Owner(directory, owner.disk, settings=TRIMMING)
        if is_mutant:
            assert again.series(GetAll("s"))[0].code is ErrorCode.STORAGE
            again.shard.abandon()
            return
        assert seqs(again) == list(range(1, 22))
        assert seqs(again, "t") == list(range(1, 21))
        again.shard.close()


def test_an_idle_stream_does_not_pin_the_journal(tmp_path):
    owner = Owner(tmp_path / "shard", settings=TRIMMING)
    owner.add("idle", b"x")
    for _ in range(5):
        owner.add("busy", b"x")
        owner.tick(1)
    assert owner.journal.start >= 5
    assert seqs(owner, "idle") == [1]
    owner.shard.close()


def test_followers_keep_some_of_the_journal(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(keep_records=3, sync_us=1, apply_us=0))
    for _ in range(5):
        owner.add("s", b"x")
        owner.tick(1)
    assert owner.journal.start == 2
    owner.shard.close()


def test_a_lost_file_is_reported_and_not_taken_for_empty(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"x")
    owner.add("t", b"x")
    path = owner.shard.views.files.path("s")
    owner.shard.close()
    (tmp_path / "shard" / path).unlink()
    again = Owner(tmp_path / "shard", owner.disk)
    refused = again.refusal(Get("s", 1))
    assert refused.code is ErrorCode.STORAGE
    assert "missing" in refused.message
    assert seqs(again, "t") == [1]
    again.shard.close()


def test_the_file_of_a_removed_stream_is_not_taken_for_a_new_ones(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(apply_rows=64))
    owner.add("s", *[b"old"] * 70)
    path = owner.shard.views.files.path("s")
    owner.shard.views.files.unsynced_file("s").sync()
    content = Path(path).read_bytes()
    owner.result(Remove("s"))
    owner.shard.close()
    Path(path).write_bytes(content)  # the removal was lost in a power cut
    again = Owner(tmp_path / "shard", owner.disk)
    again.add("s", b"new")
    assert seqs(again) == [1]
    again.shard.close()


def test_a_file_that_is_older_than_it_was_is_reported(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"1")
    path = Path(owner.shard.views.files.path("s"))
    again = owner.reopen()
    content = path.read_bytes()
    again.add("s", b"2")
    again.shard.close()
    path.write_bytes(content)
    last = Owner(tmp_path / "shard", owner.disk)
    assert "older than it was" in last.refusal(Get("s", 1)).message
    last.shard.abandon()


def test_an_unknown_version_is_refused(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"x")
    path = owner.shard.views.files.path("s")
    owner.shard.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    again = Owner(tmp_path / "shard", owner.disk)
    assert "version 99" in again.refusal(Get("s", 1)).message
    again.shard.close()


def test_many_streams_are_ready_without_listing_them(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(most_open=4))
    for n in range(40):
        owner.ask(Set(f"s/{n}", Message(b"x")))
        owner.ask(KvPut(f"k/{n}", "a", Message(b"x")))
    owner.turn()
    again = owner.reopen()
    assert len(again.shard.views._states) == 0
    assert again.shard.views.catalogue.count() == 80
    assert again.result(Info("s/7")).messages == 1
    answers = []
    again.shard.handle(Call(Get("s/39", 1)), answers.append)
    assert answers[0].result.messages[0].value == b"x"
    again.shard.close()


def test_a_name_that_begins_anew_keeps_its_old_file_until_the_removal_is_committed(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True, settings=replace(TRIMMING, most_open=1))
    for stream in "st":
        owner.ask(Set(stream, Message(b"old")))
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    owner.tick(1)
    for request in (Set("s", Message(b"of the first life")), Remove("s"), Set("s", Message(b"new"))):
        owner.ask(request)
    owner.turn()
    owner.journal.commit_now(upto=3)
    owner.shard._on_commit(3)
    owner.shard.views.apply_all(3)
    again = owner.reopen(is_clean=False, survivors=0)
    assert seqs(again) == [1, 2]
    again.result(Remove("s"))
    again.add("s", b"new")
    assert seqs(again) == [1]
    again.shard.close()
