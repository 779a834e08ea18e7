"""The open batch: gathers appended messages and decides which segment each batch belongs to.

Owned by the log and used under its lock. A batch's place is decided when it is closed, because the topic ids in it are
its segment's own. Invariants: the closed batches and the open one after them have the offsets up to `end`; `take`
returns no batch that begins at or above `asked`, and the open one is split there, so that what is appended after a
commit was asked for waits for the next.
"""

from typing import TypeAlias

import cython

from everlog.base import Unavailable, with_all_names
from everlog.commitlog.log_settings import LogSettings

if not cython.compiled:
    from everlog.base import (
        BlockPool,
        MessageColumns,
        PublisherColumn,
        PublisherName,
        RecordBuilder,
        Records,
        TopicTable,
    )
    from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES

SPAN_US = 0xFFFFFFFF  # a batch's times are 32-bit distances from its first
_FOREVER = 1 << 62
_BLOCK_BATCHES = 2  # of full size, that a block has room for
_SPARE_BLOCKS = 4  # beside those of the tail: for what is gathered and what is being written
_LEAST_PART = 16  # a batch of this part of its full size, or more, is made in a block of the pool
_WHOLE_PART = 4  # and one of this part is closed when a commit is asked for, so that nothing need be split off later

Placed: TypeAlias = tuple["Records", int]  # a closed batch, and the base offset of the segment it goes into


class OpenBatch:
    """The open batch and the closed ones that are not yet written."""

    def __init__(self, settings: LogSettings, end: int) -> None:
        self._span_us = SPAN_US
        self._batch_bytes = settings.batch_bytes
        self._whole_bytes = settings.batch_bytes // _WHOLE_PART
        self._pending_limit = settings.pending_bytes
        self._segment_bytes = settings.segment_bytes
        self._segment_us = _FOREVER if settings.segment_us is None else settings.segment_us
        size = _BLOCK_BATCHES * settings.batch_bytes
        self.pool = BlockPool(
            size, settings.tail_bytes // size + _SPARE_BLOCKS, settings.batch_bytes // _LEAST_PART, FRAME_BYTES
        )
        self._builder = RecordBuilder(True, self.pool)
        self._closed: list[Placed] = []
        self._closed_bytes = 0
        self.segment = end  # that the open batch goes into
        self._position = HEADER_BYTES
        self._segment_time = 0  # of the segment's first record, 0 before there is one
        self._full = False  # the segment is, so the next begins as soon as no batch is open
        self.in_flight_bytes = 0  # taken and not yet written
        self.end = end
        self.asked = end  # offsets below it are to be committed
        self._builder.place = self._position + FRAME_BYTES

    def continue_segment(
        self,
        segment: int,
        position: int,
        names: list[bytes],
        publishers: list[bytes] | None,
        first_time: int,
        last_time: int,
    ) -> None:
        """Go on in a segment; if it has no batches yet, only times must go on."""
        self._builder.continue_segment(names, last_time, publishers)
        self.segment, self._position, self._segment_time = segment, position, first_time
        self._builder.place = position + FRAME_BYTES

    @property
    def table(self) -> TopicTable:
        """The names of the topics of the segment that the open batch belongs to."""
        return self._builder.table

    def pending(self) -> int:
        """Return how many bytes were appended and are not yet written."""
        return self.in_flight_bytes + self._closed_bytes + self._builder.content_bytes()

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None,
        wanted: int,
        publisher: PublisherName | PublisherColumn | None,
    ) -> int:
        """Take in messages as `RecordBuilder.append` does."""
        builder = self._builder
        if self.pending() >= self._pending_limit:
            raise Unavailable(
                f"{self.pending()} bytes wait to be written", hint="the disk does not keep up; try again later"
            )
        if builder.count and (
            self._full or now_us > builder.first_time + self._span_us or not builder.has_room(columns, start, stop)
        ):
            self.close()
        taken = builder.append(columns, start, stop, now_us, table, routes, wanted, publisher)
        self.end += taken
        if builder.content_bytes() >= self._batch_bytes:
            self.close()
        return taken

    def first(self) -> int:
        """Return the offset of the first record that was not taken yet."""
        return self._closed[0][0].base_offset if self._closed else self.end - self._builder.count

    def is_plain(self) -> bool:
        """Return whether all that waits is in the open batch."""
        return not self._closed

    def ask(self, offset: int) -> None:
        """Ask that what was appended below an offset be committed."""
        if offset > self.asked:
            self.asked = offset if offset < self.end else self.end
            if self.asked == self.end and self._builder.content_bytes() >= self._whole_bytes:
                self.close()

    def close(self) -> int:
        """Close the open batch, as two if a commit was asked for up to its middle."""
        first = self.end - self._builder.count
        if first < self.asked < self.end:
            self._place(self.asked - first)
        if self._builder.count:
            self._place(self._builder.count)
        return 0

    def _place(self, rows: int) -> int:
        """Close the first rows of the open batch as a batch; if the segment is full then, the next begins."""
        builder = self._builder
        records = builder.take(self.end - builder.count, rows)
        self._closed.append((records, self.segment))
        self._closed_bytes += records.size
        if records.payload_bytes < self.pool.least_bytes:
            self.pool.made_small()
        self._position += FRAME_BYTES + records.size
        if self._segment_time == 0:
            self._segment_time = records.first_time
        if self._position >= self._segment_bytes or records.last_time >= self._segment_time + self._segment_us:
            self._full = True
        if self._full and builder.count == 0:  # what stays open has topic ids of this segment
            self.begin_segment()
        return 0

    def begin_segment(self) -> int:
        """Begin a new segment, unless the current one is still empty, and return its base offset."""
        if self.segment != self.end:
            self._builder.start_segment()
            self.segment, self._position, self._segment_time = self.end, HEADER_BYTES, 0
            self._builder.place = HEADER_BYTES + FRAME_BYTES
            self._full = False
        return self.segment

    def take(self) -> list[Placed]:
        """Take everything that was asked for; it is in flight until `written`."""
        first = self.end - self._builder.count
        if first < self.asked:
            self._place(self.asked - first)
        taken = self._closed
        if self.asked >= first:
            self._closed = []
            self.in_flight_bytes += self._closed_bytes
            self._closed_bytes = 0
            return taken
        count = 0
        for records, _ in taken:
            if records.base_offset >= self.asked:
                break
            count += 1
            self.in_flight_bytes += records.size
            self._closed_bytes -= records.size
        self._closed = taken[count:]
        return taken[:count]

    def move(self, group: list[Placed]) -> list[Placed]:
        """Let a taken group, and all that follows it in its segment, go into a new segment that begins with the group.

        The topic ids stay what they are, and the first batch names all of them. Only the thread that takes calls it.
        """
        first, old = group[0]
        base = first.base_offset
        if self.segment == old:
            self._builder.renew_table()
            table = self._builder.table
            self.segment, self._segment_time = base, first.first_time
        else:
            table = first.table.duplicate()
        for records, segment in group + self._closed:
            if segment == old:
                records.table = table
        leading = with_all_names(first)
        self.in_flight_bytes += leading.size - first.size
        moved = [(leading, base)]
        moved += [(records, base if segment == old else segment) for records, segment in group[1:]]
        self._closed = [(records, base if segment == old else segment) for records, segment in self._closed]
        if self.segment == base:
            self._position = HEADER_BYTES
            for records, segment in moved + self._closed:
                if segment == base:
                    self._position += FRAME_BYTES + records.size
            self._builder.place = self._position + FRAME_BYTES
        return moved

    def written(self, size: int) -> int:
        """Note that so many bytes in flight have been written; only the thread that takes calls it."""
        self.in_flight_bytes -= size
        return 0

    def drop(self, end: int) -> int:
        """Forget all that was appended and not committed; offsets go on at `end`, where the committed ones end."""
        if self._builder.count:
            self._builder.take(0)
            self._builder.start_segment()
        self._closed = []
        self._closed_bytes = self.in_flight_bytes = 0
        self.end = self.asked = end
        return 0

    def pass_by(self, end: int, size: int) -> int:
        """Note so many bytes in flight that others have appended, up to an offset; nothing waits here."""
        self.in_flight_bytes += size
        self.end = self.asked = end
        return 0
