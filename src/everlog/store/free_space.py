"""The free space of the disk of a data directory, of several the fullest, and whether it is down to the reserve.

The reserve is for what must go on when messages are no longer taken: session tables, the end of segments, retention.
"""

import os
from collections.abc import Callable, Sequence

RESERVE_BYTES = 1 << 30  # or RESERVE_PART of the disk, if that is less
RESERVE_PART = 20
_ENOUGH_PART = 4  # of the reserve must be free above it before the disk counts as no longer low


def ask_system(directory: str) -> tuple[int, int]:
    """Return how many bytes of a directory's disk this user may still write, and how many the disk has."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class FreeSpace:
    """What `look` last found; `reserve_bytes` of None stands for the default, 0 for no reserve."""

    def __init__(
        self,
        directories: str | Sequence[str],
        reserve_bytes: int | None = None,
        ask: Callable[[str], tuple[int, int]] = ask_system,
    ) -> None:
        self.directories = (directories,) if isinstance(directories, str) else tuple(directories)
        self.directory = self.directories[0]  # on the fullest disk
        self.free_bytes = 0
        self.reserve_bytes = reserve_bytes or 0
        self.is_low = False
        self._wanted = reserve_bytes
        self._ask = ask

    def look(self) -> bool:
        """Ask the system; return whether the disk has become low, or is no longer."""
        try:
            found = [self._ask(directory) for directory in self.directories]
        except OSError:  # nothing is known, and the writes themselves will tell
            return False
        disks = [
            (free, self._reserve_of(total), name) for (free, total), name in zip(found, self.directories, strict=True)
        ]
        self.free_bytes, self.reserve_bytes, self.directory = min(disks, key=lambda one: one[0] - one[1])
        enough = self.reserve_bytes + (self.reserve_bytes // _ENOUGH_PART if self.is_low else 0)
        before, self.is_low = self.is_low, self.free_bytes < enough
        return before != self.is_low

    def _reserve_of(self, total: int) -> int:
        return min(RESERVE_BYTES, total // RESERVE_PART) if self._wanted is None else self._wanted
