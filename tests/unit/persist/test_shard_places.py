"""State shards that are found without a server: in a directory of its own, in a broker's, on shared storage."""

import json

import pytest

from everlog.app.embedded import WallClock
from everlog.base import StorageError, UsageError
from everlog.persist import BucketStorage, LocalShards, find_shards
from everlog.streams import BucketPlace, LocalPlace
from everlog.tiering import DirectoryBucket


def test_shards_are_found_where_they_are(tmp_path):
    LocalShards(str(tmp_path / "data" / "persist"), WallClock(), 2).close()
    places = [LocalPlace(f"{tmp_path}/data/persist/shard-{n}") for n in range(2)]
    assert find_shards(str(tmp_path / "data")) == find_shards(str(tmp_path / "data" / "persist")) == places
    shared = tmp_path / "shared"
    BucketStorage(DirectoryBucket(shared), 3).close()
    assert find_shards(str(shared)) == [BucketPlace(str(shared), f"shard-{n}") for n in range(3)]


def test_what_has_no_shards_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no streams"):
        find_shards(str(tmp_path))
    for text, words in (("{", "can't be read"), (json.dumps({"shards": 1, "version": 9}), "version 9 is not known")):
        (tmp_path / "persist.json").write_text(text)
        with pytest.raises(StorageError, match=words):
            find_shards(str(tmp_path))
