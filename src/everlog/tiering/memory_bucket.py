"""A bucket in memory, for tests and for processes that keep nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from everlog.tiering.ports import StoredObject


class MemoryBucket:
    """Objects in a dictionary; any thread may call."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one, whose content is returned."""
        with self._lock:
            there, _ = self._objects.setdefault(name, (bytes(data), time.time()))
        return None if there == data else there

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace an object."""
        with self._lock:
            self._objects[name] = (bytes(data), time.time())

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file."""
        self.put(name, Path(path).read_bytes())

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None."""
        with self._lock:
            found = self._objects.get(name)
        return None if found is None else found[0]

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return a part of an object, or None if there is none."""
        data = self.get(name)
        return None if data is None else data[start : start + size]

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a folder."""
        folder = prefix.rstrip("/") + "/" if prefix else ""
        with self._lock:
            found = sorted(self._objects.items())
        for name, (data, modified_s) in found:
            if name.startswith(folder):
                yield StoredObject(name, len(data), modified_s)

    def delete(self, name: str) -> None:
        """Delete an object."""
        with self._lock:
            self._objects.pop(name, None)
