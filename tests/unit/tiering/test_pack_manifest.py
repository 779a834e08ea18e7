import pytest

from everlog.base import Fenced, StorageError, Unavailable
from everlog.tiering import (
    AllPacks,
    JournalWriter,
    MemoryBucket,
    PackedFile,
    PackManifest,
    PackRecord,
    StreamsRemoved,
    read_manifest,
    read_packs,
)


def record(number: int, *streams: str) -> PackRecord:
    files = [PackedFile(stream, 16 + 100 * at, 100, number, 1) for at, stream in enumerate(streams)]
    return PackRecord(f"pack-{number}", 400, files, number)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def opened(bucket: MemoryBucket, epoch: int) -> PackManifest:
    manifest = PackManifest(bucket, "shard/packs", epoch)
    manifest.open()
    return manifest


def test_the_next_owner_and_readers_see_what_was_named(bucket: MemoryBucket) -> None:
    first = opened(bucket, 1)
    told = [record(1, "a", "b"), record(2, "b", "c"), StreamsRemoved(["a", "unknown"], 3)]
    for one in told:
        first.tell(one)
    second = opened(bucket, 2)
    assert list(second.read(0)) == list(read_manifest(bucket, "shard/packs")) == list(enumerate(told))
    packs = read_packs(bucket, "shard/packs")
    assert {stream: pack for stream, (pack, _) in packs.files.items()} == {"b": "pack-2", "c": "pack-2"}
    assert [one.pack for one in packs.records()] == ["pack-2"]
    assert packs.below == 3


def test_an_owner_that_was_replaced_names_no_pack(bucket: MemoryBucket) -> None:
    first = opened(bucket, 1)
    first.tell(record(1, "a"))
    opened(bucket, 2)
    with pytest.raises(Fenced):
        first.tell(record(2, "a"))
    assert read_packs(bucket, "shard/packs").files["a"][0] == "pack-1"
    with pytest.raises(Fenced):
        opened(bucket, 1)


def test_it_begins_where_everything_was_told(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    manifest = opened(bucket, 1)
    for number in range(100):
        manifest.tell(record(number, f"stream-{number % 7}", "often"))
        if number % 10 == 9:
            at, packs = manifest.end, read_packs(bucket, "shard/packs")
            manifest.tell(AllPacks(packs.records(), packs.below))
            manifest.begin_at(at)
    assert len(list(bucket.find("shard/packs"))) < 40
    again = read_packs(bucket, "shard/packs")
    assert (again.files, again.below) == (packs.files, 99)
    assert again.files["often"][0] == "pack-99"
    assert len(again.files) == 8


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
            manifest.tell(record(1, "a"))
    manifest.tell(record(1, "a"))
    assert list(read_packs(bucket, "shard/packs").files) == ["a"]


def test_opening_may_be_tried_again(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(bucket, 1).tell(record(1, "a"))
    manifest = PackManifest(bucket, "shard/packs", 2)

    def away(name: str) -> bytes | None:
        raise Unavailable("no answer")

    with monkeypatch.context() as trouble:
        trouble.setattr(bucket, "get", away)
        with pytest.raises(Unavailable):
            manifest.open()
    manifest.open()
    assert [one.files[0].stream for _, one in manifest.read(0)] == ["a"]  # type: ignore[union-attr]


def test_what_is_no_manifest_is_refused(bucket: MemoryBucket) -> None:
    writer = JournalWriter(bucket, "shard/packs", 1)
    writer.take_over()
    writer.write([("packs", b"\x93\xa5other\x01\x02")])
    with pytest.raises(StorageError, match="newer Everlog"):
        read_packs(bucket, "shard/packs")
