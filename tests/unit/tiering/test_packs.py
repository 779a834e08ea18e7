import sqlite3
from pathlib import Path
from random import Random

import pytest

from everlog.base import StorageError, UsageError
from everlog.tiering import (
    AllPacks,
    BucketPacks,
    MemoryBucket,
    PackedFile,
    PackRecord,
    Packs,
    PackWriter,
    StreamsRemoved,
    plan_scrub,
    scrub,
)
from everlog.tiering.pack_format import FRAME
from everlog.tiering.ports import StoredObject


def live(path: Path, rows: int) -> sqlite3.Connection:
    """A stream's file as a server has it open."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY, value BLOB)")
    connection.executemany("INSERT INTO messages VALUES (?, ?)", [(seq, b"value") for seq in range(rows)])
    return connection


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def packed(bucket: MemoryBucket, tmp_path: Path) -> PackRecord:
    """Three streams of different sizes, the last of which is the contents of a random file."""
    with PackWriter(bucket, "packs/shard-0", 7, tmp_path) as writer:
        for number, rows in enumerate((1, 500)):
            connection = live(tmp_path / f"{number}.db", rows)
            connection.execute("VACUUM INTO ?", (str(tmp_path / f"{number}.copy"),))
            connection.close()
            writer.add(f"stream/{number}", tmp_path / f"{number}.copy", 10 * number)
        (tmp_path / "other").write_bytes(Random(3).randbytes(10_001))
        writer.add("stream/2", tmp_path / "other", 20)
        return writer.upload()


def test_each_stream_is_restored_from_its_range(bucket: MemoryBucket, packed: PackRecord, tmp_path: Path) -> None:
    packs = BucketPacks(bucket)
    for number, file in enumerate(packed.files):
        assert (file.stream, file.position, file.epoch) == (f"stream/{number}", 10 * number, 7)
        packs.fetch(packed.pack, file.offset, file.length, str(tmp_path / "restored.db"))
        content = (tmp_path / "restored.db").read_bytes()
        assert content == (tmp_path / (f"{number}.copy" if number < 2 else "other")).read_bytes()
        if number < 2:
            connection = sqlite3.connect(tmp_path / "restored.db")
            assert connection.execute("SELECT count(*) FROM messages").fetchone() == ((1, 500)[number],)
            connection.close()


def test_a_pack_tells_what_is_in_it_and_is_verified(bucket: MemoryBucket, packed: PackRecord) -> None:
    packs = BucketPacks(bucket)
    assert len(bucket.get(packed.pack) or b"") == packed.size
    assert packs.files(packed.pack, packed.size) == packed.files
    packs.verify(packed)


def test_no_local_file_is_left_behind(packed: PackRecord, tmp_path: Path) -> None:
    assert list(tmp_path.glob("*.pack")) == []


def test_every_changed_byte_of_a_file_or_directory_is_noticed(
    bucket: MemoryBucket, packed: PackRecord, tmp_path: Path
) -> None:
    content = bucket.get(packed.pack) or b""
    places = {0, 4, 6, 9, packed.size - 1, packed.size - 20, packed.size - 60}
    places |= {file.offset + at for file in packed.files for at in (0, 5, 9, FRAME.size, file.length - 1)}
    places.add(packed.files[2].offset + packed.files[2].length)  # of what fills up to a whole word
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        bucket.put(packed.pack, bytes(damaged))
        with pytest.raises(StorageError):
            BucketPacks(bucket).verify(packed)
    bucket.put(packed.pack, content[:-1])
    with pytest.raises(StorageError, match="too short"):
        BucketPacks(bucket).verify(packed)
    bucket.delete(packed.pack)
    with pytest.raises(StorageError, match="missing"):
        BucketPacks(bucket).verify(packed)


def test_a_damaged_file_is_not_restored(bucket: MemoryBucket, packed: PackRecord, tmp_path: Path) -> None:
    file = packed.files[1]
    damaged = bytearray(bucket.get(packed.pack) or b"")
    damaged[file.offset + 1000] ^= 1
    bucket.put(packed.pack, bytes(damaged))
    with pytest.raises(StorageError, match="not as written"):
        BucketPacks(bucket).fetch(packed.pack, file.offset, file.length, str(tmp_path / "restored.db"))
    assert not list(tmp_path.glob("restored*"))
    with pytest.raises(StorageError, match="no file of"):
        BucketPacks(bucket).fetch(packed.pack, file.offset + 8, file.length, str(tmp_path / "restored.db"))


def test_a_live_database_is_refused(bucket: MemoryBucket, tmp_path: Path) -> None:
    connection = live(tmp_path / "live.db", 5)
    with (
        PackWriter(bucket, "packs", 1, tmp_path) as writer,
        pytest.raises(UsageError, match="VACUUM INTO"),
    ):
        writer.add("stream", tmp_path / "live.db", 5)
    connection.close()


def test_an_empty_pack_is_refused(bucket: MemoryBucket, tmp_path: Path) -> None:
    with PackWriter(bucket, "packs", 1, tmp_path) as writer, pytest.raises(UsageError):
        writer.upload()
    assert list(bucket.find("")) == []


def test_no_two_packs_have_the_same_name(bucket: MemoryBucket, tmp_path: Path) -> None:
    names = set()
    for _ in range(100):
        with PackWriter(bucket, "packs/shard-0", 7, tmp_path) as writer:
            names.add(writer.name)
    assert len(names) == 100
    assert all(name.startswith("packs/shard-0/0000000007-") for name in names)


def test_the_last_record_that_names_a_stream_counts() -> None:
    packs = Packs()
    packs.take(PackRecord("p1", 300, [PackedFile("a", 16, 100, 5, 1), PackedFile("b", 116, 150, 6, 1)], 5))
    packs.take(PackRecord("p2", 200, [PackedFile("a", 16, 120, 9, 2)], 9))
    assert {stream: pack for stream, (pack, _) in packs.files.items()} == {"a": "p2", "b": "p1"}
    assert {one.pack: [file.stream for file in one.files] for one in packs.records()} == {"p1": ["b"], "p2": ["a"]}
    assert packs.below == 9
    packs.take(StreamsRemoved(["b"], 12))
    assert [one.pack for one in packs.records()] == ["p2"]
    packs.take(AllPacks([PackRecord("p3", 200, [PackedFile("b", 16, 150, 9, 2)])], 10))
    assert list(packs.files) == ["b"]
    assert packs.below == 12


def test_a_stream_moves_from_pack_to_pack_as_it_is(bucket: MemoryBucket, packed: PackRecord, tmp_path: Path) -> None:
    packs = BucketPacks(bucket)
    file = packed.files[1]
    with PackWriter(bucket, "packs/shard-0", 8, tmp_path) as writer:
        writer.add_packed(file.stream, packs.stored(packed.pack, file.offset, file.length), file.position)
        again = writer.upload()
    packs.fetch(again.pack, again.files[0].offset, again.files[0].length, str(tmp_path / "restored.db"))
    assert (tmp_path / "restored.db").read_bytes() == (tmp_path / "1.copy").read_bytes()


def test_what_can_not_be_read_leaves_nothing_in_the_next_pack(
    bucket: MemoryBucket, packed: PackRecord, tmp_path: Path
) -> None:
    packs = BucketPacks(bucket)
    damaged = bytearray(bucket.get(packed.pack) or b"")
    damaged[packed.files[0].offset + 30] ^= 1
    bucket.put(packed.pack, bytes(damaged))
    with PackWriter(bucket, "packs/shard-0", 8, tmp_path) as writer:
        for file in packed.files[:2]:
            pieces = packs.stored(packed.pack, file.offset, file.length)
            if file is packed.files[0]:
                with pytest.raises(StorageError, match="not as written"):
                    writer.add_packed(file.stream, pieces, file.position)
            else:
                writer.add_packed(file.stream, pieces, file.position)
        packs.verify(writer.upload())


def test_only_old_objects_that_no_record_names_are_scrubbed() -> None:
    found = [StoredObject(name, 1, modified) for name, modified in (("named", 0), ("old", 0), ("young", 5000))]
    assert plan_scrub(found, {"named"}, now_s=90_000) == ["old"]


def test_a_scrub_goes_by_the_clock_of_the_bucket(
    bucket: MemoryBucket, packed: PackRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("packs/shard-0/0000000006-dead.pack", b"x")
    assert scrub(bucket, "packs/shard-0", {packed.pack}) == []
    assert scrub(bucket, "packs/shard-0", {packed.pack}, age_s=-1) == ["packs/shard-0/0000000006-dead.pack"]
    assert [one.name for one in bucket.find("packs")] == [packed.pack]
