"""Copies in memory of messages under way that can't be read from the log again, until they are acknowledged.

These are retained messages to a durable session, which are sent again if its connection breaks, and messages that a
shared group gave to a member, which go to another if that one is lost. The window bounds how many of them a session
has, and `CopiesTotal` the memory of all sessions together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from everlog.base import pack_position, row_column
from everlog.sessions.outgoing_rows import OutgoingRows
from everlog.sessions.window import Window

_IDS = 65_535
_FEW = 32
_FEW_BYTES = 64 << 10
_STRETCH_BYTES = 450  # of the objects of one stretch, besides the bytes of its batch


class CopiesTotal:
    """The memory of the copies of all sessions; beyond `max_bytes`, `on_over` is called with each one more."""

    __slots__ = ("holders", "max_bytes", "on_over", "total_bytes")

    def __init__(self, max_bytes: int = 1 << 62) -> None:
        self.max_bytes = max_bytes
        self.total_bytes = 0
        self.holders: dict[object, InflightCopies] = {}  # by their sessions
        self.on_over: Callable[[], None] = lambda: None

    def largest(self) -> object:
        """Return the session that has most; there must be one."""
        return max(self.holders, key=lambda holder: self.holders[holder].size_bytes)


@dataclass(slots=True)
class _Stretch:
    """Rows that were sent with consecutive packet ids."""

    first_id: int
    out: OutgoingRows
    shard: int


class InflightCopies:
    """The rows that were sent, newest last; acknowledged ones are removed now and then, and when all are."""

    __slots__ = ("_limit", "_limit_bytes", "_owner", "_stretches", "_total", "size_bytes")

    def __init__(self, owner: object, total: CopiesTotal) -> None:
        self.size_bytes = 0
        self._owner = owner
        self._total = total
        self._stretches: list[_Stretch] = []
        self._limit = _FEW
        self._limit_bytes = _FEW_BYTES
        total.holders[owner] = self

    def __len__(self) -> int:
        return len(self._stretches)

    def add(self, first_id: int, rows: OutgoingRows, shard: int, window: Window) -> None:
        """Keep rows that were sent with the ids from `first_id` on, one each."""
        kept = rows.compact()
        self._stretches.append(_Stretch(first_id, kept, shard))
        self._count(_STRETCH_BYTES + kept.size_bytes)
        if len(self._stretches) > self._limit or self.size_bytes > self._limit_bytes:
            self._stretches = [one for one in self._stretches if _is_under_way(one, window)]
            self._count(sum(_STRETCH_BYTES + one.out.size_bytes for one in self._stretches) - self.size_bytes)
            self._limit = max(_FEW, 2 * len(self._stretches))
            self._limit_bytes = max(_FEW_BYTES, 2 * self.size_bytes)
        if self._total.total_bytes > self._total.max_bytes:
            self._total.on_over()

    def drop(self) -> None:
        """Forget all of it, for good."""
        self._stretches = []
        self._count(-self.size_bytes)
        self._total.holders.pop(self._owner, None)

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._total.total_bytes += size_bytes

    def find(self, packet_id: int, position: int) -> OutgoingRows | None:
        """Return the message that was sent with an id, if it has this position."""
        for one in reversed(self._stretches):
            out = one.out
            place = out.start + (packet_id - one.first_id) % _IDS
            if place < out.stop:
                found = OutgoingRows(out.records, out.rows, place, place + 1, out.merged)
                if pack_position(one.shard, found.offset()) == position:
                    return found
        return None

    def find_all(self, wanted: Iterable[tuple[int, int]]) -> Iterator[OutgoingRows]:
        """Yield those of these messages (packet id and position) that there are copies of, in the order of sending."""
        positions = dict(wanted)
        for one in self._stretches:
            out = one.out
            for place in range(out.start, out.stop):
                position = positions.get((one.first_id - 1 + place - out.start) % _IDS + 1, -1)
                if position < 0:
                    continue
                found = OutgoingRows(out.records, out.rows, place, place + 1, out.merged)
                if pack_position(one.shard, found.offset()) == position:
                    yield found


def _is_under_way(one: _Stretch, window: Window) -> bool:
    return any(window.state((one.first_id - 1 + k) % _IDS + 1) for k in range(one.out.stop - one.out.start))


def with_ids(out: OutgoingRows, start: int, stop: int, lengths: bytearray) -> OutgoingRows:
    """Return those of the rows just written that have a packet id; `lengths` is the writer's scratch column."""
    rows = row_column(_numbered(out, start, stop, lengths))
    return OutgoingRows(out.records, rows, 0, len(rows) // 4, out.merged)


def _numbered(out: OutgoingRows, start: int, stop: int, lengths: bytearray) -> Iterator[int]:
    written = memoryview(lengths).cast("I")
    for k in range(stop - start):
        place = start + k
        row = place if out.rows is None else int.from_bytes(out.rows[4 * place : 4 * place + 4], "little")
        if written[2 * k] and out.records.row(row)[3] & 0x06:
            yield row
