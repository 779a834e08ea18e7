"""Buckets of every kind, each with a way to open it once more, as another process would."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from everlog.tiering import Bucket, DirectoryBucket, MemoryBucket, ObjectStoreBucket

Opener = Callable[[], Bucket]


@contextmanager
def in_memory(tmp_path: Path) -> Iterator[Opener]:
    bucket = MemoryBucket()
    yield lambda: bucket


@contextmanager
def in_directory(tmp_path: Path) -> Iterator[Opener]:
    yield lambda: DirectoryBucket(tmp_path / "shared")


@contextmanager
def obstore_memory(tmp_path: Path) -> Iterator[Opener]:
    from obstore.store import MemoryStore

    store = MemoryStore()
    yield lambda: ObjectStoreBucket(store, "memory")


@contextmanager
def obstore_directory(tmp_path: Path) -> Iterator[Opener]:
    from obstore.store import LocalStore

    yield lambda: ObjectStoreBucket(LocalStore(tmp_path / "local", mkdir=True), "local")


BUCKETS: dict[str, Callable[[Path], AbstractContextManager[Opener]]] = {
    "memory": in_memory,
    "directory": in_directory,
    "obstore-memory": obstore_memory,
    "obstore-directory": obstore_directory,
}
