"""The file `store`: it names the store, so that no shard of another is taken for its own."""

import shutil
import struct
from pathlib import Path

import crc32c
import pytest
from tests.stores import append, drain, filters, settle, small

from everlog.base import StorageError
from everlog.commitlog import RealDisk, origin_in
from everlog.store import LogStore, store_identity

VECTOR = Path(__file__).parents[2] / "vectors" / "store-v1"


def opened(directory: Path, shards: int | None = None, **options: bool) -> LogStore:
    options = {"background": False, **options}
    return LogStore.open(str(directory), small(segment_bytes=1000, preallocate_bytes=0), shards=shards, **options)


def made(directory: Path, shards: int = 2) -> str:
    """Make a store with something in each shard and return its identity."""
    store = opened(directory, shards)
    append(store, [(b"t/%d" % n, 0x02, b"", b"%d" % n) for n in range(40)], 5)
    settle(store)
    identity = store.identity
    store.close()
    return identity


def test_a_store_keeps_the_name_it_was_made_with(tmp_path: Path) -> None:
    identity = made(tmp_path / "a")
    assert identity == opened(tmp_path / "a", writable=False).identity == f"{int(identity, 16):016x}"
    assert made(tmp_path / "b") != identity
    assert store_identity(RealDisk(), str(tmp_path / "a")) == int(identity, 16)
    for shard in range(2):
        origin = origin_in(RealDisk(), str(tmp_path / "a" / f"shard-{shard}"))
        assert (origin.store, origin.shard, origin.epoch) == (int(identity, 16), shard, 0)


@pytest.mark.parametrize("writable", [True, False])
def test_shards_that_were_mixed_up_are_refused(tmp_path: Path, writable: bool) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b")
    shutil.move(tmp_path / "a" / "shard-0", tmp_path / "kept")
    shutil.copytree(tmp_path / "a" / "shard-1", tmp_path / "a" / "shard-0")
    with pytest.raises(StorageError, match=r"is a segment of shard 1 of store .*, and this is shard 0 of store"):
        opened(tmp_path / "a", writable=writable)
    shutil.rmtree(tmp_path / "a" / "shard-0")
    shutil.copytree(tmp_path / "b" / "shard-0", tmp_path / "a" / "shard-0")
    with pytest.raises(StorageError, match=r"is a segment of shard 0 of store .*, and this is shard 0 of store"):
        opened(tmp_path / "a", writable=writable)
    shutil.rmtree(tmp_path / "a" / "shard-0")
    shutil.move(tmp_path / "kept", tmp_path / "a" / "shard-0")
    assert len(drain(opened(tmp_path / "a", writable=writable).reader(filters("#")), (0, 0))) == 40


def test_a_store_from_before_it_was_named_keeps_the_identity_that_its_salts_tell(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(VECTOR / "data", tmp_path / "data"))
    identity = opened(directory, writable=False).identity
    assert store_identity(RealDisk(), str(directory)) == 0
    store = opened(directory)
    assert store.identity == identity
    append(store, [(b"t/%d" % n, 0x02, b"", bytes(200)) for n in range(40)], 1_800_000_000_000_000)
    settle(store)
    append(store, [(b"t/%d" % n, 0x02, b"", b"") for n in range(40)], 1_800_000_000_000_000)
    settle(store)
    store.close()
    assert store_identity(RealDisk(), str(directory)) == int(identity, 16)
    assert origin_in(RealDisk(), str(directory / "shard-1")).store == int(identity, 16)
    assert opened(directory).identity == identity


def test_a_lost_file_is_made_again_with_the_name_that_the_segments_tell(tmp_path: Path) -> None:
    identity = made(tmp_path, 1)
    (tmp_path / "store").unlink()
    store = opened(tmp_path)
    assert store.identity == identity
    assert len(drain(store.reader(filters("#")), (0,))) == 40


def test_a_file_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    about = struct.pack("<4sIIQ", b"EVST", 3, 2, 5)
    (tmp_path / "store").write_bytes(about + struct.pack("<I", crc32c.crc32c(about)))
    with pytest.raises(StorageError, match="store version 3 is not known"):
        opened(tmp_path)
