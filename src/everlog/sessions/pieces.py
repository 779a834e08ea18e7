"""Rows of a batch on their way to a session, and how they are delivered."""

import builtins
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everlog.base import Records, gather

if TYPE_CHECKING:
    from everlog.sessions.session import Session, Subscribed

_QOS_0_FLAGS = bytes(flags for flags in range(256) if not flags & 0x06)


@dataclass(eq=False, slots=True)
class Delivery:
    """How messages of some topics go to one session: the sum of its subscriptions that match them.

    With `no_local` what the session published itself goes by `own`, or nowhere. `group` is the shared group that
    chose the session, if one did. `since` is the offset in each shard that it begins at, if not from the start; where
    the subscriptions begin at different places they are `parts`, and below `until` only some of them count.
    """

    session: "Session"
    qos: int
    identifiers: bytes = b""
    retain_as_published: bool = False
    no_local: bool = False
    since: tuple[int, ...] = ()
    position: bool = False  # messages carry their position and time
    until: tuple[int, ...] = ()
    parts: "tuple[Subscribed, ...]" = ()
    own: "Delivery | None" = None
    group: object | None = None


@dataclass(slots=True)
class Piece:
    """Rows of a batch on their way to a session."""

    records: Records
    rows: bytearray | None
    start: int
    stop: int
    delivery: Delivery
    bytes: int = 0
    at_most_once: bool = False  # all of it goes out at QoS 0; known of what is held back

    def row(self) -> int:
        """The first row that is left."""
        if self.rows is None:
            return self.start
        return int.from_bytes(self.rows[4 * self.start : 4 * self.start + 4], "little")

    def skip_below(self, offset: int) -> None:
        """Leave out the rows below an offset."""
        numbers = self.row_numbers()
        self.start += bisect_left(range(len(numbers)), offset, key=lambda k: self.records.offset(numbers[k]))

    def row_numbers(self) -> Sequence[int]:
        """Every row that is left."""
        if self.rows is None:
            return range(self.start, self.stop)
        return memoryview(self.rows).cast("I")[self.start : self.stop].tolist()

    def flags(self) -> "builtins.bytes":
        """The flags of its rows."""
        at = self.records.start + self.records.layout.flags
        column = self.records.data[at : at + self.records.count]
        if self.rows is None:
            return builtins.bytes(column[self.start : self.stop])
        return builtins.bytes(column[row] for row in self.row_numbers())


def row_at(records: Records, offset: int) -> int:
    """The row of an offset in the batch that has it."""
    if not records.with_offsets:
        return offset - records.base_offset
    return bisect_left(range(records.count), offset, key=records.offset)


def is_within(offset: int, stretches: list[tuple[int, int]]) -> bool:
    """Whether an offset is in one of these stretches, which rise."""
    place = bisect_right(stretches, (offset, 1 << 63))
    return place > 0 and offset < stretches[place - 1][1]


def compact(piece: Piece) -> Piece:
    """The same rows, in a batch of their own when they are few, so that a slow client does not hold large batches."""
    records, count = piece.records, piece.stop - piece.start
    if 2 * count < records.count:
        if piece.rows is None:
            rows = bytearray(b"".join(i.to_bytes(4, "little") for i in range(piece.start, piece.stop)))
        else:
            rows = piece.rows[4 * piece.start : 4 * piece.stop]
        records = gather([(records, rows)], True)
        return Piece(records, None, 0, count, piece.delivery, records.size)
    return Piece(records, piece.rows, piece.start, piece.stop, piece.delivery, records.size)


def held(piece: Piece) -> Piece:
    """A piece to keep for later, which knows whether it may be dropped."""
    small = compact(piece)
    small.at_most_once = small.delivery.qos == 0 or not small.flags().translate(None, _QOS_0_FLAGS)
    return small
