"""Copies in memory of messages under way that can't be read from the log again, until they are acknowledged.

These are retained messages to a durable session, which are sent again if its connection breaks, and messages that a
shared group gave to a member, which go to another if that one is lost. Bounded by the session's window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everlog.base import pack_position, row_column
from everlog.sessions.outgoing_rows import OutgoingRows
from everlog.sessions.window import Window

_IDS = 65_535
_FEW = 32


@dataclass(slots=True)
class _Stretch:
    """Rows that were sent with consecutive packet ids."""

    first_id: int
    out: OutgoingRows
    shard: int


class InflightCopies:
    """The rows that were sent, newest last; acknowledged ones are removed now and then."""

    __slots__ = ("_limit", "_stretches")

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._limit = _FEW

    def __len__(self) -> int:
        return len(self._stretches)

    def add(self, first_id: int, rows: OutgoingRows, shard: int, window: Window) -> None:
        """Keep rows that were sent with the ids from `first_id` on, one each."""
        self._stretches.append(_Stretch(first_id, rows.compact(), shard))
        if len(self._stretches) > self._limit:
            self._stretches = [one for one in self._stretches if _is_under_way(one, window)]
            self._limit = max(_FEW, 2 * len(self._stretches))

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
