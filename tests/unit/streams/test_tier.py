"""Streams in a bucket: packed when they changed, local files that go and come back, owners without a disk."""

import os
import shutil
import sqlite3
from dataclasses import replace

import pytest
from tests.tiered_owner import FOLDER, QUICK, TieredOwner

from everlog.base import Fenced, StorageError, Unavailable
from everlog.streams import (
    Config,
    Configure,
    Download,
    ErrorCode,
    Get,
    GetAll,
    Info,
    Kind,
    KvGet,
    KvPut,
    Message,
    QueueConfigure,
    QueueTake,
    Remove,
    Reply,
    Set,
)
from everlog.tiering import BucketPacks, MemoryBucket

SMALL = replace(QUICK, most_files=2, most_open=1)


def values(owner, stream="s"):
    return [one.value for chunk in owner.series(GetAll(stream)) for one in chunk.messages]


def files(owner):
    return sorted(path.name for path in (owner.directory / "files").rglob("*.db"))


def test_changed_streams_are_packed_together_and_named(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    for n in range(10):
        owner.add(f"s/{n}", b"%d" % n)
    owner.result(KvPut("kv", "k", Message(b"v")))
    owner.round()
    packs = owner.packs()
    assert len(packs.sizes) == 1
    assert sorted(packs.files) == ["kv", *(f"s/{n}" for n in range(10))]
    assert packs.below == 11
    owner.add("s/3", b"more")
    owner.round()
    packs = owner.packs()
    assert len(packs.sizes) == 2
    assert {name for name, (pack, _) in packs.files.items() if pack == list(packs.sizes)[1]} == {"s/3"}
    for record in packs.records():
        BucketPacks(owner.bucket).verify(record)
    owner.shard.close()


def test_a_round_without_changes_asks_nothing_of_the_bucket(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    owner.add("s", b"1")
    owner.round()
    before = [one.name for one in owner.bucket.find("")]
    for _ in range(5):
        owner.round()
    assert [one.name for one in owner.bucket.find("")] == before
    owner.shard.close()


def test_the_journal_goes_below_packs_and_an_owner_with_an_empty_disk_goes_on(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    for n in range(30):
        owner.add(f"s/{n % 3}", b"%d" % n)
        if n % 10 == 9:
            owner.round()
    owner.result(QueueConfigure("s/1", "q"))
    owner.result(KvPut("kv", "k", Message(b"v")))
    owner.round()
    assert owner.journal.start == owner.journal.end
    owner.add("s/0", b"behind")
    other = owner.next_owner(tmp_path / "b")
    assert files(other) == []
    assert values(other, "s/0") == [*(b"%d" % n for n in range(0, 30, 3)), b"behind"]
    assert other.add("s/2", b"more") == [11]
    assert values(other, "s/2")[-1] == b"more"
    assert other.result(KvGet("kv", "k")).entries[0].value == b"v"
    assert other.result(Info("s/1")).queues == ["q"]
    assert len(other.result(QueueTake("s/1", "q", 3)).deliveries) == 3
    assert other.shard.epoch > owner.shard.epoch
    other.shard.close()


def test_an_owner_that_comes_back_to_an_old_disk_has_all_that_came_since(tmp_path):
    first = TieredOwner(tmp_path / "a")
    first.add("s", b"1")
    first.add("gone", b"1")
    first.round()
    second = first.next_owner(tmp_path / "b")
    second.add("s", b"2")
    second.result(Remove("gone"))
    second.add("new", b"1")
    second.round()
    assert second.journal.start == second.journal.end
    third = second.next_owner(tmp_path / "a")
    assert values(third) == [b"1", b"2"]
    assert values(third, "new") == [b"1"]
    assert third.refusal(Info("gone")).code is ErrorCode.NOT_FOUND
    third.shard.close()


def test_a_disk_that_is_recent_enough_is_used_as_it_is(tmp_path):
    first = TieredOwner(tmp_path / "a")
    first.add("s", b"1")
    first.round()
    first.add("s", b"2")
    again = first.reopen_here()
    assert again.shard.tier.files.fetched == 0
    assert values(again) == [b"1", b"2"]
    assert again.shard.tier.files.fetched == 0
    again.shard.close()


def test_nothing_goes_that_no_pack_has(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=replace(SMALL, upload_us=10**15))
    for n in range(10):
        owner.add(f"s/{n}", b"1")
    for _ in range(5):
        owner.tick(6)
    assert len(files(owner)) == 10
    owner.shard.close()


def test_least_recently_used_files_go_and_come_back(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=SMALL)
    for n in range(10):
        owner.add(f"s/{n}", b"%d" % n)
        owner.tick(6)
    owner.round()
    for _ in range(3):
        owner.tick(6)
    assert len(files(owner)) == 2
    assert owner.shard.tier.index.local()[0] == 2
    for n in range(10):
        assert values(owner, f"s/{n}") == [b"%d" % n]
        assert owner.add(f"s/{n}", b"more") == [2]
        assert values(owner, f"s/{n}") == [b"%d" % n, b"more"]
    owner.round()
    owner.tick(6)
    assert len(files(owner)) == 2
    owner.shard.close()
    again = owner.next_owner(settings=replace(SMALL, upload_us=10**15))
    for n in range(10):
        again.add(f"s/{n}", b"last")
    for _ in range(3):
        again.tick(6)
    assert len(files(again)) == 10  # they have changed, and no pack has that
    again.shard.close()


def test_local_files_are_bounded_by_bytes(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=replace(QUICK, files_bytes=3_000, most_open=1))
    for n in range(10):
        owner.add(f"s/{n}", os.urandom(800))
    for _ in range(6):
        owner.round()
        owner.tick(6)
    assert owner.shard.tier.index.local()[1] <= 3_000
    assert 1 <= len(files(owner)) < 5
    owner.shard.close()


def test_others_do_not_wait_for_a_file_that_is_fetched(tmp_path):
    first = TieredOwner(tmp_path / "a")
    first.add("cold", b"1")
    first.add("hot", b"1")
    first.round()
    owner = first.next_owner(tmp_path / "b", is_manual=True)
    hot = owner.ask(Get("hot", 1))
    owner.work()
    assert isinstance(hot[0], Reply)
    asked = [owner.ask(Get("cold", 1)), owner.ask(Set("cold", Message(b"2"))), owner.ask(Get("cold", 2))]
    assert asked == [[], [], []]
    cold = owner.shard.views.find("cold")
    assert [cold.is_simple, cold.is_simple_store] == [False, False]  # nothing overtakes those who wait
    assert len(owner.waiting) == 1
    assert owner.add("hot", b"2") == [2]
    assert values(owner, "hot") == [b"1", b"2"]
    owner.work()
    owner.turn()
    assert [one[0].result for one in asked][1].seq == 2
    assert asked[0][0].result.messages[0].value == b"1"
    assert asked[2][0].result.messages[0].value == b"2"
    assert owner.shard.views.find("cold").is_simple
    owner.shard.close()


class Away(MemoryBucket):
    """A bucket that can't be reached while it is away."""

    is_away = False

    def _check(self):
        if self.is_away:
            raise Unavailable("no answer")

    def create(self, name, data):
        self._check()
        return super().create(name, data)

    def put(self, name, data):
        self._check()
        super().put(name, data)

    def get_range(self, name, start, size):
        self._check()
        return super().get_range(name, start, size)


def test_without_the_bucket_writes_go_on_and_cold_streams_are_told_to_be_unavailable(tmp_path):
    bucket = Away()
    owner = TieredOwner(tmp_path / "a", bucket, settings=SMALL)
    for n in range(5):
        owner.add(f"s/{n}", b"1")
    owner.round()
    owner.tick(6)
    bucket.is_away = True
    below = owner.packs().below if not bucket.is_away else owner.shard.tier.index.below
    assert owner.add("new", b"1") == [1]
    owner.round()
    assert owner.shard.tier.rounds.trouble is not None
    assert owner.shard.tier.index.below == below
    assert owner.journal.start <= below
    refused = [one for n in range(5) if not isinstance(one := owner.do(Get(f"s/{n}", 1)), Reply)]
    assert {one.code for one in refused} == {ErrorCode.UNAVAILABLE}
    assert len(refused) == 3
    bucket.is_away = False
    owner.round()
    assert "new" in owner.packs().files
    assert all(values(owner, f"s/{n}") == [b"1"] for n in range(5))
    assert owner.shard.tier.rounds.trouble is None
    owner.shard.close()


def test_a_pack_that_was_not_named_does_not_count(tmp_path, monkeypatch):
    bucket = Away()
    owner = TieredOwner(tmp_path / "a", bucket)
    owner.add("s", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "create", lambda name, data: bucket._check() or (_ for _ in ()).throw(Unavailable("x")))
        owner.round()
    assert len(list(bucket.find(f"{FOLDER}/packs"))) == 1
    assert owner.packs().files == {}
    assert owner.journal.start == 0
    assert (owner.shard.tier.index.place("s"), owner.shard.tier.index.below) == (None, 0)
    again = owner.next_owner()
    assert again.shard.tier.index.place("s") is None
    other = again.next_owner(tmp_path / "b")
    assert values(other) == [b"1"]
    other.shard.close()


def test_an_owner_that_was_replaced_names_nothing_and_ends(tmp_path):
    first = TieredOwner(tmp_path / "a")
    first.add("s", b"1")
    second = first.next_owner(tmp_path / "b", is_zombie=True)
    first.round()
    assert isinstance(first.shard.failure, Fenced)
    assert second.packs().files == {}
    second.round()
    assert list(second.packs().files) == ["s"]
    second.shard.close()


def test_a_removed_stream_leaves_the_packs_and_its_name_begins_anew(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=SMALL)
    owner.add("s", b"old")
    owner.add("t", b"1")
    owner.round()
    owner.result(Remove("s"))
    owner.round()
    assert list(owner.packs().files) == ["t"]
    owner.add("s", b"new")
    owner.round()
    assert values(owner) == [b"new"]
    other = owner.next_owner(tmp_path / "b")
    assert values(other) == [b"new"]
    other.result(Remove("s"))
    other.round()
    third = other.next_owner(tmp_path / "c")
    assert third.refusal(Info("s")).code is ErrorCode.NOT_FOUND
    third.shard.close()


def test_a_large_stream_is_packed_less_often_and_keeps_the_journal_meanwhile(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=replace(QUICK, upload_us=60_000_000))
    owner.add("large", os.urandom(5 << 20))
    owner.tick(61)
    owner.tick(1)
    first = owner.packs().files["large"][1]
    owner.add("large", b"more")
    end = owner.journal.end
    owner.add("small", b"1")
    owner.tick(61)
    owner.tick(1)
    assert owner.packs().files["large"][1] == first
    assert "small" in owner.packs().files
    assert owner.packs().below == end - 1
    other = owner.next_owner(tmp_path / "b")
    assert [len(one.value or b"") for chunk in other.series(GetAll("large")) for one in chunk.messages][-1] == 4
    for _ in range(6):
        other.tick(61)
    other.tick(1)
    assert other.packs().files["large"][1].position == end
    other.shard.close()


def test_packs_that_are_mostly_out_of_use_are_packed_again_and_deleted_after_a_while(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    for n in range(10):
        owner.add(f"s/{n}", os.urandom(500))
    owner.round()
    (old,) = owner.packs().sizes
    for n in range(9):
        owner.add(f"s/{n}", b"more")
    owner.round()
    owner.round()
    assert old not in {pack for pack, _ in owner.packs().files.values()}
    assert owner.bucket.get(old) is not None
    owner.bucket.put(f"{FOLDER}/packs/of-a-dead-owner.pack", b"half")
    owner.tick(1800)
    owner.tick(1)
    assert owner.bucket.get(old) is not None
    for _ in range(4):
        owner.tick(3601)
    owner.tick(1)
    assert owner.bucket.get(old) is None
    assert owner.bucket.get(f"{FOLDER}/packs/of-a-dead-owner.pack") is None
    assert all(owner.bucket.get(pack) for pack, _ in owner.packs().files.values())
    other = owner.next_owner(tmp_path / "b")
    assert [len(values(other, f"s/{n}")) for n in range(10)] == [2] * 9 + [1]
    other.shard.close()


def test_the_manifest_tells_it_all_again_and_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    monkeypatch.setattr("everlog.streams.pack_rounds.TOLD_AGAIN", 5)
    owner = TieredOwner(tmp_path / "a")
    for n in range(60):
        owner.add(f"s/{n % 7}", b"%d" % n)
        owner.round()
    assert len(list(owner.bucket.find(f"{FOLDER}/manifest"))) < 40
    other = owner.next_owner(tmp_path / "b")
    for n in range(7):
        assert values(other, f"s/{n}") == [b"%d" % one for one in range(n, 60, 7)]
    other.shard.close()
    back = other.next_owner(tmp_path / "a")
    for n in range(7):
        assert values(back, f"s/{n}") == [b"%d" % one for one in range(n, 60, 7)]
    back.shard.close()


def test_a_packed_file_is_plain_sqlite_and_a_damaged_pack_is_told(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    owner.add("s", b"1", b"2")
    owner.round()
    pack, file = owner.packs().files["s"]
    BucketPacks(owner.bucket).fetch(pack, file.offset, file.length, str(tmp_path / "plain.db"))
    connection = sqlite3.connect(tmp_path / "plain.db")
    assert connection.execute("SELECT seq, value FROM messages").fetchall() == [(1, b"1"), (2, b"2")]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()
    data = bytearray(owner.bucket.get(pack))
    data[file.offset + 40] ^= 1
    owner.bucket.put(pack, bytes(data))
    other = owner.next_owner(tmp_path / "b")
    failure = other.do(Get("s", 1))
    assert failure.code is ErrorCode.STORAGE
    assert "not as written" in failure.message
    other.shard.close()


def test_a_journal_that_lost_what_packs_have_is_refused(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    owner.add("s", b"1", b"2")
    owner.round()
    owner.disk.records.clear()
    owner.disk.start = 0
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(StorageError, match="the journal ends at 0"):
        owner.next_owner(tmp_path / "a")


def test_expiry_of_a_cold_stream_waits_for_its_file(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    owner.result(Set("s", Message(b"1"), ttl_us=60_000_000))
    owner.add("s", b"2")
    owner.round()
    other = owner.next_owner(tmp_path / "b", is_manual=True)
    other.tick(61)
    assert len(other.waiting) >= 1
    other.work()
    other.tick(1)
    other.work()
    assert values(other) == [b"2"]
    other.shard.close()


def test_a_download_of_a_cold_stream_comes_when_its_file_has(tmp_path):
    owner = TieredOwner(tmp_path / "a")
    owner.add("s", b"1")
    owner.round()
    other = owner.next_owner(tmp_path / "b")
    (tmp_path / "got.db").write_bytes(b"".join(part.data for part in other.series(Download("s"))))
    connection = sqlite3.connect(tmp_path / "got.db")
    assert connection.execute("SELECT value FROM messages").fetchall() == [(b"1",)]
    connection.close()
    other.shard.close()


def test_a_file_that_is_behind_its_row_is_not_packed(tmp_path):
    """A power cut may leave a row that is synced and a file that is not: the journal has what is between."""
    owner = TieredOwner(tmp_path / "a", settings=replace(QUICK, sync_us=10**15, upload_us=10**15))
    owner.add("s", b"1")
    owner.tick(1)
    path = owner.shard.views.files.path("s")
    owner.shard.views.files.unsynced_file("s").sync()
    shutil.copyfile(path, tmp_path / "before.db")
    owner.add("s", b"2")
    owner.tick(1)
    owner.shard.views.catalogue.sync()
    owner.shard.abandon()
    os.replace(tmp_path / "before.db", path)
    slow = owner.next_owner(settings=replace(QUICK, apply_us=20_000_000))
    slow.round()
    for _ in range(3):
        slow.add("t", b"x")
        slow.tick(30)
        slow.round()
    assert slow.journal.start >= 2
    other = slow.next_owner(tmp_path / "b")
    assert values(other) == [b"1", b"2"]
    other.shard.close()


def test_a_record_of_the_manifest_that_is_in_doubt_is_told_again_before_any_other(tmp_path, monkeypatch):
    owner = TieredOwner(tmp_path / "a")
    owner.add("s", b"1")
    create = owner.bucket.create

    def lost(name, data):
        create(name, data)
        raise Unavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(owner.bucket, "create", lost)
        owner.round()
    assert owner.shard.tier.rounds.trouble is not None
    owner.add("t", b"1")
    owner.round()
    assert set(owner.packs().files) == {"s", "t"}
    assert {name: owner.shard.tier.index.place(name).pack for name in "st"} == {
        name: pack for name, (pack, _) in owner.packs().files.items()
    }
    other = owner.next_owner(tmp_path / "b")
    assert (values(other, "s"), values(other, "t")) == ([b"1"], [b"1"])
    other.shard.close()


def test_an_old_log_that_a_power_cut_brought_back_does_not_get_into_a_fetched_file(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=replace(SMALL, most_files=1))
    owner.add("s", b"1")
    assert values(owner) == [b"1"]
    path = owner.shard.views.files.path("s")
    shutil.copyfile(f"{path}-wal", tmp_path / "old-wal")
    owner.shard.views.files.unsynced_file("s").sync()
    owner.add("s", *[b"%d" % n for n in range(2, 200)])
    owner.add("t", b"1")
    for _ in range(3):
        owner.round()
        owner.tick(6)
    assert not os.path.exists(path)
    shutil.copyfile(tmp_path / "old-wal", f"{path}-wal")
    assert values(owner) == [b"%d" % n for n in range(1, 200)]
    owner.shard.close()


def test_an_owner_does_not_begin_without_what_neither_packs_nor_journal_have(tmp_path):
    first = TieredOwner(tmp_path / "a", settings=replace(QUICK, upload_us=10**15))
    first.add("s", b"1")
    first.tick(1)
    second = first.next_owner(tmp_path / "b")
    second.add("s", b"2", b"3", b"4")
    second.disk.start = 3
    for directory in ("a", "c"):
        with pytest.raises(StorageError, match="begins at 3"):
            second.next_owner(tmp_path / directory)
    assert files(first) != []  # what there is was left alone


def test_the_grace_of_a_pack_begins_when_nothing_names_it_any_more(tmp_path):
    owner = TieredOwner(tmp_path / "a", settings=replace(QUICK, unnamed_us=3 * 3600_000_000))
    owner.add("s", b"1")
    owner.round()
    (old,) = owner.packs().sizes
    for _ in range(5):
        owner.tick(3601)
    owner.add("s", b"2")
    for _ in range(2):
        owner.tick(3601)
    assert old not in {pack for pack, _ in owner.packs().files.values()}
    assert owner.bucket.get(old) is not None
    for _ in range(4):
        owner.tick(3601)
    assert owner.bucket.get(old) is None
    owner.shard.close()


def test_packs_do_not_claim_what_a_row_does_not_tell_of_yet(tmp_path):
    """While a change of limits is not committed, the row of what was written before it waits."""
    owner = TieredOwner(tmp_path / "a", is_commit_manual=True)
    for request in (Set("s", Message(b"1")), Configure("s", Kind.STREAM, Config(max_messages=5))):
        owner.ask(request)
    owner.turn()
    owner.journal.commit_now(upto=1)
    owner.shard._on_commit(1)
    owner.shard.views.apply_all(1)
    owner.round()
    assert owner.packs().below == 0
    other = owner.next_owner(tmp_path / "b")
    assert values(other) == [b"1"]
    other.shard.close()


def test_a_file_that_comes_after_the_shard_was_closed_is_thrown_away(tmp_path):
    first = TieredOwner(tmp_path / "a")
    first.add("s", b"1")
    first.round()
    owner = first.next_owner(tmp_path / "b", is_manual=True)
    asked = owner.ask(Get("s", 1))
    owner.shard.close()
    assert asked[0].code is ErrorCode.UNAVAILABLE
    owner.work()
    assert (files(owner), len(asked)) == ([], 1)
