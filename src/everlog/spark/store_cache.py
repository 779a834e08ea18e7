"""A cache of stores that are open for reading, shared by the tasks that a worker runs one after the other.

A store is opened again when its directory holds another one. Not thread-safe: a worker has one thread.
"""

import os
from collections import OrderedDict

from everlog.base import Unavailable
from everlog.commitlog import ScannedDisk
from everlog.store import LogStore

KEPT_STORES = 4  # beyond it the least recently used is closed

_opened: "OrderedDict[str, tuple[tuple[int, int, int], LogStore]]" = OrderedDict()


def open_store(path: str, shard: int, at_least: int) -> LogStore:
    """Return the store in a data directory, in which a shard is committed at least up to an offset."""
    store = _open(path)
    if shard >= len(store.shards):
        raise Unavailable(f"{path} has no shard {shard}")
    if store.shards[shard].committed < at_least:
        store.refresh()
    return store


def open_fresh(path: str) -> LogStore:
    """Return the store in a data directory with all that is committed now."""
    store = _open(path)
    store.refresh()
    return store


def _open(path: str) -> LogStore:
    about = _about(path)
    held = _opened.get(path)
    if held is not None and held[0] != about:
        _opened.pop(path)[1].close()
        held = None
    if held is None:
        held = _opened[path] = (about, LogStore.open(path, writable=False, disk=ScannedDisk()))
        while len(_opened) > KEPT_STORES:
            _opened.popitem(last=False)[1][1].close()
    _opened.move_to_end(path)
    return held[1]


def _about(path: str) -> tuple[int, int, int]:
    """Return what tells a store from another one that takes its place."""
    try:
        found = os.stat(f"{path}/store")
    except FileNotFoundError:
        raise Unavailable(
            f"{path} holds no store any more", hint="every worker must see the data directory at the same path"
        ) from None
    return found.st_dev, found.st_ino, found.st_mtime_ns
