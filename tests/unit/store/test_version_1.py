"""A store that was written with batches of version 1 is read, sealed, merged and gone on with for ever.

`tests/vectors/store-v1` was written by the last Everlog that wrote version 1: two shards with sealed segments of merged
batches and one that is open, messages of all QoS, some retained, some with properties.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.stores import Row, append, drain, filters, settle, small

from everlog.commitlog import RealDisk, verify_directory
from everlog.store import LogStore

VECTOR = Path(__file__).parents[2] / "vectors" / "store-v1"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(shutil.copytree(VECTOR / "data", tmp_path / "data"))


def expected() -> list[Row]:
    rows = json.loads((VECTOR / "rows.json").read_text())
    return [
        (shard, offset, time_us, topic.encode(), flags, bytes.fromhex(properties), payload.encode())
        for shard, offset, time_us, topic, flags, properties, payload in rows
    ]


def opened(directory: str, **changes: object) -> LogStore:
    return LogStore.open(directory, small(segment_bytes=4000, preallocate_bytes=0, **changes), background=False)


def test_everything_is_read_as_it_was_written(directory: str) -> None:
    store = opened(directory)
    assert drain(store.reader(filters("#")), (0, 0)) == expected()
    store.close()
    for shard in (0, 1):
        assert verify_directory(RealDisk(), f"{directory}/shard-{shard}").damage == ()


def test_some_topics_are_read_by_the_index_of_a_sealed_segment(directory: str) -> None:
    store = opened(directory)
    wanted = [row for row in expected() if row[3].startswith(b"site/1/")]
    assert sorted(drain(store.reader(filters("site/1/#")), (0, 0))) == sorted(wanted)


def test_a_segment_of_version_1_goes_on_with_version_2_and_both_are_merged(directory: str) -> None:
    store = opened(directory, merge_below=50)
    for n in range(40):
        append(store, [(b"site/%d/line/9" % (n % 4), 0x02, b"", b"new %d" % n)], 1_800_000_000_000_000 + n)
        settle(store)
    found = drain(store.reader(filters("#")), (0, 0))
    assert sorted(row for row in found if not row[6].startswith(b"new ")) == sorted(expected())
    assert sorted(row[6] for row in found if row[6].startswith(b"new ")) == sorted(b"new %d" % n for n in range(40))
    merged = sum(log.statistics().merges for log in store.shards)
    assert merged
    store.close()
    assert sorted(drain(opened(directory).reader(filters("#")), (0, 0))) == sorted(found)
