"""Finds the state shards of a directory or a bucket, to be read without any server."""

import os

import msgspec
from msgspec import Struct

from everlog.base import StorageError, UsageError
from everlog.persist.local_shards import FILE_NAME
from everlog.persist.shared_storage import thing_of
from everlog.streams import BucketPlace, LocalPlace, ShardPlace
from everlog.tiering import open_bucket


class _About(Struct):
    """What `persist.json` of a data directory or of a bucket has in common."""

    shards: int
    version: int = 1
    store: str = ""  # of storage that several servers share, and of a directory that has a bucket


def find_shards(path: str, bucket: str = "") -> list[ShardPlace]:
    """Return the state shards of a broker's or persist server's directory, of a shared directory, or of a bucket.

    `bucket` is where a server with a directory of its own has the files of streams that are not on its disk.
    """
    if path.startswith(("postgresql://", "postgres://")):
        raise UsageError(
            "streams whose journal is in PostgreSQL can't be read without their servers",
            hint="copy them with everlog.client, or give servers a bucket or a directory as --storage",
        )
    if "://" in path:
        data = open_bucket(path).get(FILE_NAME)
        place = path
    else:
        place = next((one for one in _candidates(path) if os.path.exists(os.path.join(one, FILE_NAME))), "")
        data = None
        if place:
            with open(os.path.join(place, FILE_NAME), "rb") as file:
                data = file.read()
    if data is None:
        raise UsageError(
            f"{path} has no streams", hint="give the data directory of a broker or of a persist server, or a bucket"
        )
    try:
        about = msgspec.json.decode(data, type=_About)
    except msgspec.DecodeError as error:
        raise StorageError(f"{FILE_NAME} in {path} can't be read: {error}", hint="restore it") from None
    if about.version != 1:
        raise StorageError(f"{FILE_NAME} in {path}: version {about.version} is not known", hint="use a newer Everlog")
    folders = [thing_of(shard) for shard in range(about.shards)]
    if "://" in path or (about.store and not any(_is_local(os.path.join(place, folder)) for folder in folders)):
        return [BucketPlace(place, folder) for folder in folders]
    return [LocalPlace(os.path.join(place, folder), bucket) for folder in folders]


def _is_local(directory: str) -> bool:
    """Return whether a shard has its journal in a log of its own here, and not in objects."""
    return os.path.exists(os.path.join(directory, "journal", "epoch.json"))


def _candidates(path: str) -> tuple[str, str]:
    """Return where the shards may be: a broker has them in a directory of its own."""
    whole = os.path.abspath(path)
    return whole, os.path.join(whole, "persist")
