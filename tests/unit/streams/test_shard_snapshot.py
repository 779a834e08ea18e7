"""Snapshots of a shard beside its owner: as of one position, whatever the owner does meanwhile."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.state_shards import Owner

from everlog.base import Unavailable, UsageError
from everlog.commitlog import LogSettings
from everlog.streams import (
    Delete,
    Kind,
    KvDelete,
    KvPut,
    LocalJournal,
    Message,
    Remove,
    Set,
    ShardSettings,
    Upload,
    live_copy,
    read_snapshot,
    take_snapshot,
)

AT_ONCE = ShardSettings(apply_rows=1)


class Stepped(LocalJournal):
    """A journal that commits when it is asked to, in the same call."""

    def commit(self, done, failed):
        super().commit(done, failed)
        self._log.commit_step()


def owner_of(where: Path, settings: ShardSettings | None = None, **log: int) -> Owner:
    journal = Stepped.open(f"{where}/journal", background=False, settings=LogSettings(retention_bytes=0, **log))
    return Owner(where, journal, settings=settings)


def values(snapshot, name: str) -> dict[object, bytes | None]:
    streams = [one for one in snapshot.streams if one.name == name]
    found = {}
    for _, chunk in read_snapshot(snapshot, streams):
        found |= {getattr(one, "seq", None) or one.key: one.value for one in chunk}
    return found


def take(where: Path, kind: Kind = Kind.STREAM, end: int | None = None):
    return take_snapshot(str(where), lambda name: True, kind, end)


@pytest.mark.parametrize("settings", [ShardSettings(), AT_ONCE], ids=["in the journal", "in files"])
def test_a_snapshot_beside_the_owner_has_what_is_committed_then(tmp_path, settings):
    owner = owner_of(tmp_path, settings)
    owner.add("a", b"1", b"2", b"3")
    owner.result(Delete("a", [2]))
    owner.result(KvPut("kv", "key", Message(b"old", {"h": "x"}, 1.5)))
    owner.result(KvPut("kv", "key", Message(b"new")))
    owner.add("gone", b"x")
    owner.result(Remove("gone"))
    streams, stores = take(tmp_path), take(tmp_path, Kind.KV)
    assert [(one.name, one.messages) for one in streams.streams] == [("a", 2)]
    assert [one.name for one in stores.streams] == ["kv"]
    owner.add("a", b"4")  # from here on nothing changes what was taken
    owner.result(Delete("a", [1]))
    owner.result(Set("a", Message(b"other"), 3))
    owner.result(KvPut("kv", "key", Message(b"newest")))
    owner.result(KvPut("kv", "more", Message(b"x")))
    assert values(streams, "a") == {1: b"1", 3: b"3"}
    assert values(stores, "kv") == {"key": b"new"}
    assert values(take(tmp_path), "a") == {3: b"other", 4: b"4"}
    owner.result(KvDelete("kv", "key"))
    owner.result(Remove("a"))
    assert values(streams, "a") == {1: b"1", 3: b"3"}
    assert values(stores, "kv") == {"key": b"new"}
    owner.shard.close()
    assert values(take(tmp_path, Kind.KV), "kv") == {"more": b"x"}


def test_a_snapshot_may_be_of_an_earlier_position(tmp_path):
    owner = owner_of(tmp_path, AT_ONCE)
    for n in range(5):
        owner.add("s", b"%d" % n)
    owner.result(Remove("s"))
    owner.add("s", b"again")
    owner.add("late", b"x")
    for end in range(1, 6):
        assert values(take(tmp_path, end=end), "s") == {n + 1: b"%d" % n for n in range(end)}
    assert take(tmp_path, end=0).streams == take(tmp_path, end=6).streams == ()
    assert values(take(tmp_path, end=7), "s") == {1: b"again"}
    with pytest.raises(UsageError, match="ends at position 8, before 9"):
        take(tmp_path, end=9)
    owner.shard.close()


def test_large_values_come_whole(tmp_path):
    owner = owner_of(tmp_path)
    for part in range(3):
        owner.result(Upload("s", "u", part, b"%d" % part * 1000, Kind.STREAM))
    owner.result(Set("s", Message(None), upload="u"))
    found = take(tmp_path)
    assert values(found, "s") == {1: b"0" * 1000 + b"1" * 1000 + b"2" * 1000}
    owner.shard.close()
    assert values(found, "s")[1] is not None


def test_what_is_gone_from_file_and_journal_is_told(tmp_path):
    settings = ShardSettings(apply_rows=1, keep_records=0, sync_us=1)
    owner = owner_of(tmp_path, settings, segment_bytes=4096)
    owner.add("s", b"precious", b"other")
    for _ in range(3):
        for _ in range(30):
            owner.add("noise", b"x" * 300)
        owner.tick(1)
    assert owner.journal.start > 2
    before = take(tmp_path)
    owner.add("s", b"third")
    assert values(before, "s") == {1: b"precious", 2: b"other"}
    owner.result(Delete("s", [1]))
    with pytest.raises(Unavailable, match="s was changed since the snapshot was taken"):
        values(before, "s")
    with pytest.raises(UsageError, match="the journal begins at position"):
        take(tmp_path, end=1)
    owner.shard.close()


def test_a_file_whose_log_begins_anew_while_it_is_copied_is_copied_again(tmp_path, monkeypatch):
    """Its pages would be of two times: the first of before a checkpoint, the others of after it."""
    owner = owner_of(tmp_path / "shard", AT_ONCE)
    owner.result(KvPut("kv", "key", Message(b"a" * 50_000)))
    copies = []

    def copy_slowly(source, target, size):
        copies.append(source.name)
        target.write(source.read(8192))
        if len(copies) == 1:
            for letter in (b"b", b"c"):
                owner.result(KvPut("kv", "key", Message(letter * 50_000)))
                next(iter(owner.shard.views.files._files.values())).sync()
        target.write(source.read())

    path = next((tmp_path / "shard" / "files").glob("*/*.db"))
    monkeypatch.setattr(live_copy.shutil, "copyfileobj", copy_slowly)
    assert live_copy.copy_live(str(path), str(tmp_path / "copy.db"))
    assert len(copies) == 2
    monkeypatch.undo()
    assert values(take(tmp_path / "shard", Kind.KV), "kv") == {"key": b"c" * 50_000}
    owner.shard.close()
    shutil.rmtree(tmp_path / "shard")
    assert not live_copy.copy_live(str(path), str(tmp_path / "copy.db"))


WRITER = """
import sys, everlog
from everlog.streams import Message, Set
with everlog.open(sys.argv[1]) as client:
    stream = client.stream("pairs")
    for n in range(100_000):
        stream.batch([Set("pairs", Message(b"%d" % n * 200), seq) for seq in (1, 2)])
        if n == 100:
            print("begun", flush=True)
"""


def test_a_snapshot_beside_a_process_that_writes_never_has_half_of_a_write(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            seen = []
            for _ in range(20):
                found = values(take(tmp_path / "shard-0"), "pairs")
                assert found[1] == found[2]
                seen.append(found[1])
            assert len(set(seen)) > 10
        finally:
            process.kill()
