"""The port of the cold tier: history that the log no longer has, or need not keep.

Declared here and implemented by the lake table. Every call blocks on disk or network, so a broker makes it in a thread;
a store may be called by several threads at once.
"""

from collections.abc import Sequence
from typing import Protocol

from everlog.store.read_result import ReadResult
from everlog.topics import Filter


class ColdStore(Protocol):
    """Kept messages of a shard from `start` to before `end`, by topic filter and offset."""

    def refresh(self) -> None:
        """Take in what was added or dropped since; between two calls, reads see one unchanging state."""

    def start(self, shard: int) -> int:
        """Return the first offset that the cold tier has, or its end if it has none."""

    def end(self, shard: int) -> int:
        """Return the first offset that is not in the cold tier yet: the log must have it and all after it."""

    def position_at(self, shard: int, time_us: int) -> int:
        """Return the offset of the first record that is not older than a time, or the end."""

    def read(
        self, shard: int, offset: int, filters: Sequence[Filter] | None, max_records: int, max_bytes: int
    ) -> ReadResult:
        """Return records from an offset on that match any of the filters (None: all), by rising offset.

        The result has one position: where to read on. It is `caught_up` if that is `end`; what lies below `start`
        is in `lost`. About `max_bytes` are returned, at least one record if there is one.
        """

    def close(self) -> None:
        """Let go of files and memory; once is enough."""
