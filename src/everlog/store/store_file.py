"""The file `store` at the top of a data directory: which store this is, and how many shards it has.

The layout is in `docs/formats/row-postings.md`. Neither ever changes. A file of version 1 does not say which store it
is; a store that finds one writes down what its salts tell.
"""

import os
import struct
from contextlib import suppress
from dataclasses import dataclass

import crc32c

from everlog.base import StorageError, UsageError
from everlog.commitlog import Disk, origin_in
from everlog.store.sharding import MAX_SHARDS

_MAGIC = b"EVST"
_VERSION = 2
_UNNAMED = 1  # the version without an identity
_ABOUT = struct.Struct("<4sII")  # magic, version, shards; in version 2 the identity follows, and a CRC-32C in both
_IDENTITY = struct.Struct("<Q")
_CHECK = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class StoreFile:
    """What the file says; an `identity` of 0 is not known."""

    shards: int
    identity: int


def find_store_file(disk: Disk, directory: str, wanted: int | None, writable: bool) -> StoreFile:
    """Return what a store's file says; make a store with the wanted number of shards if there is none."""
    found = read_store_file(disk, directory)
    if found is None:
        if not writable:
            raise UsageError(f"{directory} holds no store")
        return _create(disk, directory, 1 if wanted is None else wanted)
    if wanted is not None and wanted != found.shards:
        raise UsageError(
            f"{directory} has {found.shards} shards, not {wanted}",
            hint="the number of shards can't change: a topic stays in its shard",
        )
    return found


def read_store_file(disk: Disk, directory: str) -> StoreFile | None:
    """Return what the file says, or None if there is none; raise StorageError if it can't be trusted."""
    path = f"{directory}/store"
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    data = file.read_at(0, _ABOUT.size + _IDENTITY.size + _CHECK.size)
    file.close()
    if len(data) < _ABOUT.size + _CHECK.size or crc32c.crc32c(data[:-4]) != _CHECK.unpack(data[-4:])[0]:
        raise StorageError(f"{path} at byte 0: the file fails its check", hint="run: everlog verify DATA_DIR")
    magic, version, shards = _ABOUT.unpack_from(data)
    if magic != _MAGIC or version not in (_UNNAMED, _VERSION):
        raise StorageError(f"{path}: store version {version} is not known", hint="open it with a newer Everlog")
    return StoreFile(shards, 0 if version == _UNNAMED else _IDENTITY.unpack_from(data, _ABOUT.size)[0])


def store_identity(disk: Disk, directory: str) -> int:
    """Return which store a directory holds, 0 if its file does not tell."""
    try:
        found = read_store_file(disk, directory)
    except StorageError:
        return 0
    return 0 if found is None else found.identity


def write_store_file(disk: Disk, directory: str, content: StoreFile) -> None:
    """Replace the file whole and durably."""
    about = _ABOUT.pack(_MAGIC, _VERSION, content.shards) + _IDENTITY.pack(content.identity)
    path = f"{directory}/store"
    temporary = path + ".tmp"
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    file = disk.create(temporary)
    file.commit_at(0, [about + _CHECK.pack(crc32c.crc32c(about))])
    file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def _create(disk: Disk, directory: str, shards: int) -> StoreFile:
    """Make a store, or the lost file of one whose segments say which it is."""
    if not 1 <= shards <= MAX_SHARDS:
        raise UsageError(f"a store has 1 to {MAX_SHARDS} shards, not {shards}")
    disk.make_directory(directory)
    identity = origin_in(disk, f"{directory}/shard-0").store
    while not identity:
        identity = int.from_bytes(os.urandom(8), "little")
    made = StoreFile(shards, identity)
    write_store_file(disk, directory, made)
    return made
