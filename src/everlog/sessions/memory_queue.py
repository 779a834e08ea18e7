"""Messages that are in no log and wait in memory for a slow client, within a limit in bytes."""

from collections import deque
from collections.abc import Callable, Iterable

from everlog.sessions.outgoing_rows import OutgoingRows


class MemoryQueue:
    """The queue of one session; beyond `max_bytes` the oldest QoS 0 messages go, and with none it is over its quota."""

    __slots__ = ("_waiting", "is_over_quota", "max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.is_over_quota = False
        self._waiting: deque[OutgoingRows] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> OutgoingRows:
        """The rows that have waited longest."""
        return self._waiting[0]

    def add(self, out: OutgoingRows) -> int:
        """Let rows wait; return how many messages, of these or older ones, were dropped for it."""
        dropped = 0
        kept = out.held()
        if kept.at_most_once and kept.size_bytes > self.max_bytes:  # larger than the queue: its newest rows stay
            count = kept.stop - kept.start
            newest = count * self.max_bytes // (2 * kept.size_bytes)
            dropped = count - newest
            if newest == 0:
                return dropped
            kept = OutgoingRows(kept.records, kept.rows, kept.stop - newest, kept.stop, kept.merged).held()
        self._waiting.append(kept)
        self.size_bytes += kept.size_bytes
        while self.size_bytes > self.max_bytes:
            dropped += self._drop()
        return dropped

    def remove_first(self) -> None:
        """Forget the first rows: they were sent."""
        self.size_bytes -= self._waiting.popleft().size_bytes

    def take_shared(self, group: tuple[str, str] | None = None) -> list[OutgoingRows]:
        """Remove and return what a shared group, or any, has given to the session."""
        shared: list[OutgoingRows] = []
        others: list[OutgoingRows] = []
        for out in self._waiting:
            is_shared = out.merged.group is not None and group in (None, out.merged.group)
            (shared if is_shared else others).append(out)
        if shared:
            self._put(others)
        return shared

    def withhold(self, allows: Callable[[bytes], bool]) -> int:
        """Remove the messages of topics that are not allowed; return how many."""
        before = sum(out.stop - out.start for out in self._waiting)
        kept = [left for out in self._waiting if (left := out.only(allows)) is not None]
        self._put(kept)
        return before - sum(out.stop - out.start for out in kept)

    def _put(self, waiting: Iterable[OutgoingRows]) -> None:
        self._waiting = deque(waiting)
        self.size_bytes = sum(out.size_bytes for out in self._waiting)

    def clear(self) -> int:
        """Forget everything; return how many messages that were."""
        count = sum(out.stop - out.start for out in self._waiting)
        self._waiting.clear()
        self.size_bytes = 0
        return count

    def _drop(self) -> int:
        for place, out in enumerate(self._waiting):
            if out.at_most_once:
                del self._waiting[place]
                break
        else:
            out = self._waiting.popleft()
            self.is_over_quota = True
        self.size_bytes -= out.size_bytes
        return out.stop - out.start
