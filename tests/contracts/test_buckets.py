"""What a bucket has to keep to, wherever it is: one body over every implementation."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.buckets import BUCKETS, Opener, s3_options
from tests.s3_server import BUCKET

from everlog.tiering import Bucket, check_bucket, open_bucket


@pytest.fixture(params=BUCKETS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    with BUCKETS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def bucket(opener: Opener) -> Bucket:
    return opener()


def test_what_was_put_is_read_back(bucket: Bucket) -> None:
    assert bucket.get("a/b") is None
    bucket.put("a/b", b"one")
    bucket.put("a/b", b"two, which is longer")
    assert bucket.get("a/b") == b"two, which is longer"
    bucket.put("a/empty", b"")
    assert bucket.get("a/empty") == b""


def test_a_large_file_is_put_whole(bucket: Bucket, tmp_path: Path) -> None:
    content = bytes(range(256)) * 50_000
    (tmp_path / "file").write_bytes(content)
    bucket.put("a/b", b"before")
    bucket.put_file("a/b", str(tmp_path / "file"))
    assert bucket.get("a/b") == content
    assert bucket.get_range("a/b", 10_000_003, 7) == content[10_000_003:10_000_010]


def test_an_object_is_created_once(opener: Opener) -> None:
    one, other = opener(), opener()
    assert one.create("a/1", b"mine") is None
    assert other.create("a/1", b"theirs") == b"mine"
    assert other.get("a/1") == b"mine"


def test_who_created_it_and_did_not_hear_so_is_told_again(bucket: Bucket) -> None:
    assert bucket.create("a/1", b"mine") is None
    assert bucket.create("a/1", b"mine") is None
    assert bucket.create("a/1", b"mine!") == b"mine"


def test_one_of_many_creates_it(opener: Opener) -> None:
    answers: dict[bytes, bytes | None] = {}
    begin = threading.Barrier(8)

    def create(content: bytes) -> None:
        bucket = opener()
        begin.wait()
        answers[content] = bucket.create("race/1", content)

    threads = [threading.Thread(target=create, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [content for content, answer in answers.items() if answer is None]
    assert {answer for answer in answers.values() if answer is not None} == {winner}
    assert opener().get("race/1") == winner


def test_a_range_of_an_object(bucket: Bucket) -> None:
    bucket.put("a/b", bytes(range(100)))
    assert bucket.get_range("a/b", 10, 5) == bytes(range(10, 15))
    assert bucket.get_range("a/b", 95, 50) == bytes(range(95, 100))
    assert bucket.get_range("a/b", 0, 0) == b""
    assert bucket.get_range("a/c", 0, 5) is None


def test_objects_are_found_by_folder(bucket: Bucket) -> None:
    for name in ("shard/1", "shard/2", "shard/deep/3", "shards/4", "other/5"):
        bucket.put(name, b"x" * 7)
    found = sorted(bucket.find("shard"), key=lambda one: one.name)
    assert [one.name for one in found] == ["shard/1", "shard/2", "shard/deep/3"]
    assert {one.size for one in found} == {7}
    assert all(one.modified_s > 1.7e9 for one in found)
    assert list(bucket.find("nothing")) == []
    assert len(list(bucket.find(""))) == 5


def test_a_deleted_object_is_gone_and_may_be_deleted_again(bucket: Bucket) -> None:
    bucket.put("a/b", b"one")
    bucket.delete("a/b")
    bucket.delete("a/b")
    assert bucket.get("a/b") is None
    assert bucket.create("a/b", b"again") is None


def test_a_bucket_that_keeps_to_conditions_passes_the_check(bucket: Bucket) -> None:
    check_bucket(bucket)
    assert list(bucket.find("probe")) == []


def test_a_store_without_tls_is_reached_by_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_options().items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(f"s3://{BUCKET}/by-variables")
    bucket.put("one", b"content")
    assert bucket.get("one") == b"content"
