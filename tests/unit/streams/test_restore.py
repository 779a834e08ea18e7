"""A stream as it was, out of a bucket; and what verify says of what is damaged there or on a disk."""

import os
import sqlite3
from dataclasses import replace

import pytest
from tests.tiered_owner import FOLDER, QUICK, TieredOwner

from everlog.base import UsageError
from everlog.streams import (
    AsOf,
    Checked,
    Delete,
    KvDelete,
    KvPut,
    LocalJournal,
    Message,
    Remove,
    Set,
    check_shard_in_bucket,
    check_shard_on_disk,
    restore_stream,
)
from everlog.tiering import MemoryBucket, ObjectJournal

KEEPING = replace(QUICK, history_us=3600_000_000)


def opened(tmp_path, **more):
    """An owner whose journal is in the bucket, as a pack's records are."""
    bucket = MemoryBucket()
    journal = ObjectJournal(bucket, f"{FOLDER}/journal", 1, group_s=0)
    return TieredOwner(tmp_path / "shard", bucket, journal, **more)


def done(owner, request):
    """Do a request and wait for its commit, on the journal's thread."""
    answers = owner.ask(request)
    owner.shard.turn()
    while not answers:  # which the journal's thread posts
        owner.run_posted()
    return answers[0].result


def add(owner, stream, *values):
    for value in values:
        done(owner, Set(stream, Message(value)))


def rows(path, query="SELECT seq, value FROM messages ORDER BY seq"):
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.fixture
def owner(tmp_path):
    """Ten messages a minute apart, packed now and then, of which three were deleted in the end."""
    owner = opened(tmp_path, settings=KEEPING)
    for n in range(1, 11):
        add(owner, "s", b"%d" % n)
        add(owner, "other", b"x")
        owner.clock.time_us += 60_000_000
        if n % 4 == 0:
            owner.round()
    done(owner, Delete("s", [2, 3, 9]))
    yield owner
    owner.shard.close()


def restored(owner, path, **wanted):
    path.unlink(missing_ok=True)
    return restore_stream(owner.bucket, FOLDER, "s", str(path), AsOf(**wanted))


def test_a_stream_is_restored_as_of_any_seq(owner, tmp_path):
    path = tmp_path / "s.db"
    assert len(owner.packs().files) == 2
    for seq in range(1, 10):
        assert restored(owner, path, seq=seq).last_seq == seq
        assert rows(path) == [(n, b"%d" % n) for n in range(1, seq + 1)]
    assert restored(owner, path).messages == 7
    assert rows(path) == [(n, b"%d" % n) for n in range(1, 11) if n not in (2, 3, 9)]


def test_a_stream_is_restored_as_of_any_time(owner, tmp_path):
    path = tmp_path / "s.db"
    restored(owner, path, seq=9)
    for n, time_us in rows(path, "SELECT seq, time_us FROM messages"):
        restored(owner, path, time_us=time_us)
        assert rows(path) == [(m, b"%d" % m) for m in range(1, n + 1)]
        restored(owner, path, time_us=time_us + 1_000_000)
        assert rows(path) == [(m, b"%d" % m) for m in range(1, n + 1)]
    with pytest.raises(UsageError, match="was not there"):
        restored(owner, path, time_us=1)


def test_what_the_bucket_does_not_have_any_more_is_said(tmp_path):
    owner = opened(tmp_path)
    add(owner, "s", b"1", b"2")
    owner.round()
    add(owner, "s", b"3", b"4")
    owner.round()
    add(owner, "s", b"5")
    owner.tick(1)
    add(owner, "s", b"6")
    assert owner.journal.start > 0
    path = tmp_path / "s.db"
    restored(owner, path, seq=5)
    assert rows(path) == [(n, b"%d" % n) for n in range(1, 6)]
    with pytest.raises(UsageError, match="does not go back"):
        restored(owner, path, seq=3)
    with pytest.raises(UsageError, match="has no"):
        restore_stream(owner.bucket, FOLDER, "unknown", str(path), AsOf())
    owner.shard.close()


def test_a_removed_stream_and_a_store_come_back(tmp_path):
    owner = opened(tmp_path, settings=KEEPING)
    done(owner, KvPut("s", "k", Message(b"1")))
    before = owner.shard.time_us
    owner.clock.time_us += 1_000_000
    done(owner, KvDelete("s", "k"))
    done(owner, Remove("s"))
    owner.round()
    path = tmp_path / "s.db"
    restored(owner, path, time_us=before)
    assert rows(path, "SELECT key, value FROM entries") == [("k", b"1")]
    with pytest.raises(UsageError, match="was not there"):
        restored(owner, path)
    owner.shard.close()


def damage(bucket, name, at):
    data = bytearray(bucket.get(name))
    data[at] ^= 1
    bucket.put(name, bytes(data))


def checked(bucket):
    counts = Checked()
    return list(check_shard_in_bucket(bucket, FOLDER, counts)), counts


def test_damage_in_the_bucket_is_told_with_stream_and_positions(owner):
    found, counts = checked(owner.bucket)
    assert found == []
    assert (counts.records, counts.streams) == (owner.journal.committed, 2)
    pack, file = owner.packs().files["s"]
    damage(owner.bucket, pack, file.offset + 30)
    journals = [one.name for one in owner.bucket.find(f"{FOLDER}/journal") if one.size > 80]
    damage(owner.bucket, journals[5], 100)
    found, _ = checked(owner.bucket)
    assert [(one.place, one.stream, one.first, one.last) for one in found] == [
        (pack, "s", 0, file.position - 1),
        (journals[5], "", 5, 5),
    ]
    owner.bucket.delete(pack)
    found, _ = checked(owner.bucket)
    assert {one.stream for one in found if one.place == pack} == {"", "s", "other"} & {
        "", *(name for name, (where, _) in owner.packs().files.items() if where == pack)
    }  # fmt: skip


def test_damage_on_a_disk_is_told_with_its_stream(tmp_path):
    directory = tmp_path / "shard"
    directory.mkdir()
    journal = LocalJournal.open(str(directory / "journal"))
    owner = TieredOwner(directory, MemoryBucket(), journal)
    for name in "abc":
        add(owner, name, *[b"x" * 2000] * 20)
    owner.tick(1)
    paths = {name: owner.shard.views.files.path(name) for name in "abc"}
    owner.shard.close()
    assert list(check_shard_on_disk(str(directory), Checked())) == []
    with open(paths["b"], "r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096)
    os.unlink(paths["c"])
    found = {one.stream: one for one in check_shard_on_disk(str(directory), Checked())}
    assert set(found) == {"b", "c"}
    assert "missing" in found["c"].what
    assert found["c"].last >= 40
