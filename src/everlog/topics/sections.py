"""A bounded cache of the sections that queries load of topic indexes, shared by any number of indexes."""

from collections import OrderedDict
from threading import Lock
from typing import Any

from everlog.base import UsageError

# A cached section is charged this much more than its bytes, for the objects that hold it (measured: 1.2 kB).
OVERHEAD_BYTES = 1_200


class SectionCache:
    """Sections by (owner, position); the least recently used are dropped when their bytes pass the limit.

    A section larger than the limit is used once and not kept. Safe to use from several threads.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise UsageError("a section cache can't have a negative limit")
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._sections: OrderedDict[tuple[int, int], tuple[int, Any]] = OrderedDict()
        self._lock = Lock()
        self._owners = 0

    def __len__(self) -> int:
        return len(self._sections)

    def new_owner(self) -> int:
        """Return a number that keeps one index's sections apart from another's."""
        with self._lock:
            self._owners += 1
            return self._owners

    def get(self, owner: int, position: int) -> Any:
        """Return the section, or None."""
        with self._lock:
            held = self._sections.get((owner, position))
            if held is None:
                return None
            self._sections.move_to_end((owner, position))
            return held[1]

    def put(self, owner: int, position: int, section: Any, size_bytes: int) -> None:
        """Keep a section that was loaded and checked."""
        size_bytes += OVERHEAD_BYTES
        if size_bytes > self.limit_bytes:
            return
        with self._lock:
            replaced = self._sections.pop((owner, position), None)
            self.held_bytes += size_bytes - (replaced[0] if replaced else 0)
            self._sections[owner, position] = (size_bytes, section)
            while self.held_bytes > self.limit_bytes:
                _, (freed, _) = self._sections.popitem(last=False)
                self.held_bytes -= freed

    def drop(self, owner: int) -> None:
        """Drop everything that one index loaded."""
        with self._lock:
            for place in [place for place in self._sections if place[0] == owner]:
                self.held_bytes -= self._sections.pop(place)[0]
