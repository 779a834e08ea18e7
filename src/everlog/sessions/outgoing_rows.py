"""Rows of a batch on their way to a session, and by which of its subscriptions they go."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cython

from everlog.base import gather, row_column

if not cython.compiled:
    from everlog.base import Records
    from everlog.sessions.merged_subscription import MergedSubscription

_QOS_0_FLAGS = bytes(flags for flags in range(256) if not flags & 0x06)


@dataclass(eq=False)
class OutgoingRows:
    """The rows from place `start` to `stop` of a batch; without `rows` a place is a row, else an index into them."""

    records: Records
    rows: bytearray | None
    start: int
    stop: int
    merged: MergedSubscription
    size_bytes: int = 0
    at_most_once: bool = False  # all of it goes out at QoS 0; known of what is held back

    def row(self) -> int:
        """Return the first row that is left."""
        if self.rows is None:
            return self.start
        return int.from_bytes(self.rows[4 * self.start : 4 * self.start + 4], "little")

    def offset(self) -> int:
        """Return the offset of the first row that is left."""
        return self.records.offset(self.row())

    def skip_below(self, offset: int) -> None:
        """Leave out the rows below an offset."""
        self.start += self._below(offset)

    def cut_at(self, offset: int) -> None:
        """Leave out the rows from an offset on."""
        if self.records.end_offset > offset:
            self.stop = self.start + self._below(offset)

    def _below(self, offset: int) -> int:
        return bisect_left(self.row_numbers(), offset, key=lambda row: self.records.offset(row))

    def row_numbers(self) -> Sequence[int]:
        """Return every row that is left."""
        if self.rows is None:
            return range(self.start, self.stop)
        return memoryview(self.rows).cast("I")[self.start : self.stop].tolist()

    def flags(self) -> bytes:
        """Return the flags of the rows that are left."""
        at = self.records.start + self.records.layout.flags
        column = self.records.data[at : at + self.records.count]
        if self.rows is None:
            return bytes(column[self.start : self.stop])
        return bytes(column[row] for row in self.row_numbers())

    def topics(self) -> list[bytes]:
        """Return the topic of every row that is left."""
        at = self.records.start + self.records.layout.topics
        ids = memoryview(self.records.data)[at : at + 4 * self.records.count].cast("I")
        return [self.records.table.name(ids[row]) for row in self.row_numbers()]

    def only(self, allows: Callable[[bytes], bool]) -> "OutgoingRows | None":
        """Return the rows to keep for later whose topics are allowed, or None if there are none."""
        rows = [row for row, topic in zip(self.row_numbers(), self.topics(), strict=True) if allows(topic)]
        if len(rows) == self.stop - self.start:
            return self
        return OutgoingRows(self.records, row_column(rows), 0, len(rows), self.merged).held() if rows else None

    def compact(self) -> "OutgoingRows":
        """Return the same rows, in a batch of their own if they are few, so that a slow client holds no large batch."""
        records = self.records
        if 2 * (self.stop - self.start) >= records.count:
            return OutgoingRows(records, self.rows, self.start, self.stop, self.merged, records.size)
        return self.alone()

    def alone(self) -> "OutgoingRows":
        """Return the same rows in a batch of their own."""
        records = gather([(self.records, row_column(self.row_numbers()))], True)
        return OutgoingRows(records, None, 0, records.count, self.merged, records.size)

    def held(self) -> "OutgoingRows":
        """Return the rows to keep for later, knowing whether they may be dropped."""
        small = self.compact()
        small.at_most_once = small.all_at_most_once()
        return small

    def all_at_most_once(self) -> bool:
        """Return whether all that is left goes out at QoS 0."""
        return self.merged.qos == 0 or not self.flags().translate(None, _QOS_0_FLAGS)


def row_at(records: Records, offset: int) -> int:
    """Return the row of an offset in the batch that has it."""
    if not records.with_offsets:
        return offset - records.base_offset
    return bisect_left(range(records.count), offset, key=records.offset)


def is_within(offset: int, stretches: list[tuple[int, int]]) -> bool:
    """Return whether an offset is in one of these stretches, which rise."""
    place = bisect_right(stretches, (offset, 1 << 63))
    return place > 0 and offset < stretches[place - 1][1]
