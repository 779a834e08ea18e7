"""Opens a bucket by where it is, and finds out whether it keeps to what all else rests on."""

import uuid
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from everlog.base import StorageError, UsageError
from everlog.tiering.directory_bucket import DirectoryBucket
from everlog.tiering.memory_bucket import MemoryBucket
from everlog.tiering.object_store import open_object_store
from everlog.tiering.ports import Bucket


def open_bucket(place: str, options: Mapping[str, str] | None = None) -> Bucket:
    """Open a bucket: a directory (a path, `file:///path`), `memory:`, or the URL of an object store."""
    if not place:
        raise UsageError("a bucket needs a place", hint="a directory, or a URL such as s3://bucket/prefix")
    parts = urlsplit(place)
    if parts.scheme == "memory":
        return MemoryBucket()
    if parts.scheme in ("", "file"):
        return DirectoryBucket(unquote(parts.path) if parts.scheme else place)
    return open_object_store(place, options)


def check_bucket(bucket: Bucket) -> None:
    """Refuse a bucket that lets a second writer replace what was to be created once."""
    name = f"probe/{uuid.uuid4().hex}"
    first, second = uuid.uuid4().bytes, uuid.uuid4().bytes
    try:
        if bucket.create(name, first) is None and bucket.create(name, second) == first == bucket.get(name):
            return
    finally:
        bucket.delete(name)
    raise StorageError(
        "the bucket does not keep to conditional puts, so two writers could overwrite each other",
        hint="use a bucket that supports If-None-Match, or a shared directory",
    )
