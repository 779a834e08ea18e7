"""Messages under way that the log can't give back: kept in memory until they are acknowledged.

They are retained messages to a durable session, which must be sent again if its connection breaks, and what a shared
group gave to one member, which goes to another if the first is lost. Bounded by the session's window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everlog.base import pack_position
from everlog.sessions.pieces import Piece, compact
from everlog.sessions.window import Window

_IDS = 65_535
_FEW = 32


@dataclass(slots=True)
class _Stretch:
    """Rows that went out with ids one after the other."""

    first_id: int
    piece: Piece
    shard: int


class Unlogged:
    """What went out, newest last; what is acknowledged is let go of now and then."""

    __slots__ = ("_limit", "_stretches")

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._limit = _FEW

    def __len__(self) -> int:
        return len(self._stretches)

    def add(self, first_id: int, rows: Piece, shard: int, window: Window) -> None:
        """Rows that were sent with the ids from `first_id` on, an id each."""
        self._stretches.append(_Stretch(first_id, compact(rows), shard))
        if len(self._stretches) > self._limit:
            self._stretches = [one for one in self._stretches if _is_under_way(one, window)]
            self._limit = max(_FEW, 2 * len(self._stretches))

    def find(self, packet_id: int, position: int) -> Piece | None:
        """The message that went out with an id, if it stood at this position."""
        for one in reversed(self._stretches):
            piece = one.piece
            place = piece.start + (packet_id - one.first_id) % _IDS
            if place < piece.stop:
                found = Piece(piece.records, piece.rows, place, place + 1, piece.delivery)
                if pack_position(one.shard, found.records.offset(found.row())) == position:
                    return found
        return None


def _is_under_way(one: _Stretch, window: Window) -> bool:
    return any(window.state((one.first_id - 1 + k) % _IDS + 1) for k in range(one.piece.stop - one.piece.start))


def with_ids(piece: Piece, start: int, stop: int, lengths: bytearray) -> Piece:
    """Those of the rows just written that were given a packet id; `lengths` is the writer's scratch column."""
    rows = bytearray(b"".join(row.to_bytes(4, "little") for row in _numbered(piece, start, stop, lengths)))
    return Piece(piece.records, rows, 0, len(rows) // 4, piece.delivery)


def _numbered(piece: Piece, start: int, stop: int, lengths: bytearray) -> Iterator[int]:
    written = memoryview(lengths).cast("I")
    for k in range(stop - start):
        place = start + k
        row = place if piece.rows is None else int.from_bytes(piece.rows[4 * place : 4 * place + 4], "little")
        if written[2 * k] and piece.records.row(row)[3] & 0x06:
            yield row
