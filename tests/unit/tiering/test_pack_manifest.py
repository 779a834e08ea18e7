import pytest

from everlog.base import Fenced, StorageError, Unavailable
from everlog.tiering import JournalWriter, MemoryBucket, PackedFile, PackManifest, PackRecord, read_packs


def record(number: int, *streams: str) -> PackRecord:
    files = [PackedFile(stream, 16 + 100 * at, 100, number, 1) for at, stream in enumerate(streams)]
    return PackRecord(f"pack-{number}", 400, files)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def opened(bucket: MemoryBucket, epoch: int) -> PackManifest:
    manifest = PackManifest(bucket, "shard/packs", epoch)
    manifest.open()
    return manifest


def test_the_next_owner_and_readers_see_what_was_named(bucket: MemoryBucket) -> None:
    first = opened(bucket, 1)
    first.add(record(1, "a", "b"))
    first.add(record(2, "b", "c"))
    first.remove(["a", "unknown"])
    second = opened(bucket, 2)
    assert second.packs == first.packs == read_packs(bucket, "shard/packs")
    assert {stream: pack for stream, (pack, _) in second.packs.files.items()} == {"b": "pack-2", "c": "pack-2"}
    assert second.packs.sizes == {"pack-2": 400}


def test_an_owner_that_was_replaced_names_no_pack(bucket: MemoryBucket) -> None:
    first = opened(bucket, 1)
    first.add(record(1, "a"))
    second = opened(bucket, 2)
    with pytest.raises(Fenced):
        first.add(record(2, "a"))
    assert second.packs.files["a"][0] == "pack-1"
    with pytest.raises(Fenced):
        opened(bucket, 1)


def test_it_stays_short_however_much_is_told(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    monkeypatch.setattr("everlog.tiering.pack_manifest._TOLD_AGAIN", 10)
    manifest = opened(bucket, 1)
    for number in range(100):
        manifest.add(record(number, f"stream-{number % 7}", "often"))
    assert len(list(bucket.find("shard/packs"))) < 40
    again = opened(bucket, 2)
    assert dict(again.packs.files) == dict(manifest.packs.files)
    assert again.packs.sizes == manifest.packs.sizes
    assert again.packs.files["often"][0] == "pack-99"
    assert len(again.packs.files) == 8


def test_a_lost_reply_is_settled_by_telling_it_again(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = opened(bucket, 1)
    create, left = bucket.create, [2]

    def lost(name: str, data: bytes) -> bytes | None:
        answer = create(name, data)
        if left[0]:
            left[0] -= 1
            raise Unavailable("no answer")
        return answer

    monkeypatch.setattr(bucket, "create", lost)
    for _ in range(2):
        with pytest.raises(Unavailable):
            manifest.add(record(1, "a"))
    assert manifest.packs.files == {}
    manifest.add(record(1, "a"))
    assert list(read_packs(bucket, "shard/packs").files) == ["a"]


def test_opening_may_be_tried_again(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(bucket, 1).add(record(1, "a"))
    manifest = PackManifest(bucket, "shard/packs", 2)

    def away(name: str) -> bytes | None:
        raise Unavailable("no answer")

    with monkeypatch.context() as trouble:
        trouble.setattr(bucket, "get", away)
        with pytest.raises(Unavailable):
            manifest.open()
    assert list(manifest.open().files) == ["a"]


def test_what_is_no_manifest_is_refused(bucket: MemoryBucket) -> None:
    writer = JournalWriter(bucket, "shard/packs", 1)
    writer.take_over()
    writer.write([("packs", b"\x93\xa5other\x01\x02")])
    with pytest.raises(StorageError, match="newer Everlog"):
        read_packs(bucket, "shard/packs")
