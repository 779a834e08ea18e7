"""Buckets of every kind, each with a way to open it once more, as another process would."""

import atexit
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path

from everlog.tiering import Bucket, DirectoryBucket, MemoryBucket, ObjectStoreBucket, open_bucket
from tests.s3_server import BUCKET, serve

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


_servers = ExitStack()  # one for all tests of a run
atexit.register(_servers.close)


@cache
def s3_options() -> dict[str, str]:
    """Start an S3 server and return the options that reach it."""
    return _servers.enter_context(serve("careful"))


@contextmanager
def in_s3(tmp_path: Path) -> Iterator[Opener]:
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    yield lambda: open_bucket(place, s3_options())


BUCKETS: dict[str, Callable[[Path], AbstractContextManager[Opener]]] = {
    "memory": in_memory,
    "directory": in_directory,
    "obstore-memory": obstore_memory,
    "obstore-directory": obstore_directory,
    "s3": in_s3,
}
