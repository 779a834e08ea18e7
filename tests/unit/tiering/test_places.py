import sys
from pathlib import Path

import pytest

from everlog.base import StorageError, UsageError
from everlog.tiering import DirectoryBucket, MemoryBucket, ObjectStoreBucket, check_bucket, open_bucket


def test_a_place_says_what_kind_of_bucket_it_is(tmp_path: Path) -> None:
    for place in (str(tmp_path), f"file://{tmp_path}"):
        bucket = open_bucket(place)
        assert isinstance(bucket, DirectoryBucket)
        assert bucket.directory == tmp_path
    assert isinstance(open_bucket("memory:"), MemoryBucket)
    assert isinstance(open_bucket("s3://bucket/prefix", {"AWS_REGION": "eu-central-1"}), ObjectStoreBucket)


@pytest.mark.parametrize("place", ["", "ftp://somewhere/else"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(UsageError):
        open_bucket(place)


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"everlog\[bucket\]"):
        open_bucket("s3://bucket")


def test_a_bucket_that_ignores_conditions_is_refused() -> None:
    class Careless(MemoryBucket):
        def create(self, name: str, data: bytes) -> bytes | None:
            self.put(name, data)
            return None

    bucket = Careless()
    with pytest.raises(StorageError, match="conditional puts"):
        check_bucket(bucket)
    assert list(bucket.find("")) == []
