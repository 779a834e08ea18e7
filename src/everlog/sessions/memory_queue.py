"""Messages that are in no log and wait in memory for a slow client, within a limit in bytes.

Beyond the limit the oldest QoS 0 messages go. What is owed at QoS 1 and 2 stays until the session is told to `shed`
it, since whoever looks after the session may have the rest kept in the log instead (`is_long`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from everlog.sessions.outgoing_rows import OutgoingRows

Entry: TypeAlias = tuple[OutgoingRows, tuple[int, ...]]  # rows, and the offsets they come after

_LONG = 4  # a queue is long when this part of its limit is owed at QoS 1 and 2


class MemoryQueue:
    """The queue of one session, oldest first; each entry may have to wait until the log is read up to some offsets."""

    __slots__ = ("_most_owed_bytes", "_waiting", "max_bytes", "owed_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.owed_bytes = 0  # of that, what must not be dropped
        self._most_owed_bytes = max_bytes
        self._waiting: deque[Entry] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> OutgoingRows:
        """The rows that have waited longest."""
        return self._waiting[0][0]

    @property
    def after(self) -> tuple[int, ...]:
        """The offset in each shard that must be reached before the first rows are due; empty if they are."""
        return self._waiting[0][1] if self._waiting else ()

    def is_due(self, lag: Mapping[int, int]) -> bool:
        """Return whether the first rows are next for a session that reads on at these offsets."""
        if not self._waiting:
            return False
        return all(lag.get(shard, offset) >= offset for shard, offset in enumerate(self._waiting[0][1]))

    @property
    def is_long(self) -> bool:
        """Whether so much is owed that the rest should be kept in the log."""
        return self.owed_bytes > self.max_bytes // _LONG

    def add(self, out: OutgoingRows, after: tuple[int, ...] = ()) -> int:
        """Let rows wait; return how many QoS 0 messages, of these or older ones, were dropped for it."""
        dropped = 0
        kept = out.held()
        if kept.at_most_once and kept.size_bytes > self.max_bytes:  # larger than the queue: its newest rows stay
            count = kept.stop - kept.start
            newest = count * self.max_bytes // (2 * kept.size_bytes)
            dropped = count - newest
            if newest == 0:
                return dropped
            kept = OutgoingRows(kept.records, kept.rows, kept.stop - newest, kept.stop, kept.merged).held()
        self._waiting.append((kept, after))
        self._count(kept, 1)
        while self.size_bytes > self.max_bytes and self.size_bytes > self.owed_bytes:
            dropped += self._drop_at_most_once()
        return dropped

    def remove_first(self) -> None:
        """Forget the first rows: they were sent."""
        self._count(self._waiting.popleft()[0], -1)

    def spilled(self) -> None:
        """Allow for what is owed now and as much again, since little will follow."""
        self._most_owed_bytes = max(self.max_bytes, 2 * self.owed_bytes)

    def shed(self) -> int:
        """Drop the oldest of what is owed beyond the limit; return how many messages that were."""
        dropped = 0
        while self.owed_bytes > self._most_owed_bytes:
            out, _ = self._waiting.popleft()
            self._count(out, -1)
            dropped += out.stop - out.start
        return dropped

    def take_shared(self, group: tuple[str, str] | None = None) -> list[OutgoingRows]:
        """Remove and return what a shared group, or any, has given to the session."""
        shared: list[OutgoingRows] = []
        others: list[Entry] = []
        for out, after in self._waiting:
            if out.merged.group is not None and group in (None, out.merged.group):
                shared.append(out)
            else:
                others.append((out, after))
        if shared:
            self._put(others)
        return shared

    def withhold(self, allows: Callable[[bytes], bool]) -> int:
        """Remove the messages of topics that are not allowed; return how many."""
        before = sum(out.stop - out.start for out, _ in self._waiting)
        self._put([(left, after) for out, after in self._waiting if (left := out.only(allows)) is not None])
        return before - sum(out.stop - out.start for out, _ in self._waiting)

    def _put(self, waiting: Iterable[Entry]) -> None:
        self._waiting = deque(waiting)
        self.size_bytes = self.owed_bytes = 0
        for out, _ in self._waiting:
            self._count(out, 1)

    def clear(self) -> int:
        """Forget everything; return how many messages that were."""
        count = sum(out.stop - out.start for out, _ in self._waiting)
        self._waiting.clear()
        self.size_bytes = self.owed_bytes = 0
        return count

    def _count(self, out: OutgoingRows, sign: int) -> None:
        self.size_bytes += sign * out.size_bytes
        if not out.at_most_once:
            self.owed_bytes += sign * out.size_bytes

    def _drop_at_most_once(self) -> int:
        """Drop the oldest rows that all go out at QoS 0."""
        place, out = next((place, out) for place, (out, _) in enumerate(self._waiting) if out.at_most_once)
        del self._waiting[place]
        self._count(out, -1)
        return out.stop - out.start
