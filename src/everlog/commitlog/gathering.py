"""Gathers appended messages into batches and decides which segment each batch belongs to.

Owned by the log and used under its lock. A batch's place is decided when it is closed, because the topic ids in it are
its segment's own. Invariant: the closed batches, and the open one behind them, have the offsets up to `end`.
"""

from typing import NamedTuple

from everlog.base import HEADER_BYTES as BATCH_HEADER_BYTES
from everlog.base import MessageColumns, RecordBuilder, Records, TopicTable, Unavailable
from everlog.commitlog.framing import FRAME_BYTES, HEADER_BYTES
from everlog.commitlog.settings import LogSettings

SPAN_US = 0xFFFFFFFF  # a batch's times are 32-bit distances from its first


class Placed(NamedTuple):
    """A closed batch and the segment it goes into. A tuple: one is made for each commit."""

    records: Records
    segment: int  # base offset


class Gathering:
    """The open batch and the closed ones that are not yet written."""

    def __init__(self, settings: LogSettings, end: int) -> None:
        self._settings = settings
        self._builder = RecordBuilder()
        self._closed: list[Placed] = []
        self._closed_bytes = 0
        self._segment = end
        self._position = HEADER_BYTES
        self._segment_time = 0  # of the segment's first record, 0 before there is one
        self.in_flight_bytes = 0  # taken and not yet written
        self.end = end

    def continue_segment(
        self, segment: int, position: int, names: list[bytes], first_time: int, last_time: int
    ) -> None:
        """Go on in a segment that has batches; with none, only times must go on."""
        self._builder.continue_segment(names, last_time)
        self._segment, self._position, self._segment_time = segment, position, first_time

    @property
    def table(self) -> TopicTable:
        """The names of the topics of the segment that the open batch belongs to."""
        return self._builder.table

    @property
    def pending_bytes(self) -> int:
        """How many bytes were appended and are not yet written."""
        return self.in_flight_bytes + self._closed_bytes + self._builder.size - BATCH_HEADER_BYTES

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None,
        wanted: int,
    ) -> int:
        """Take in messages as `RecordBuilder.append` does."""
        builder = self._builder
        if self.pending_bytes >= self._settings.pending_bytes:
            raise Unavailable(
                f"{self.pending_bytes} bytes wait to be written", hint="the disk does not keep up; try again later"
            )
        if builder.count and now_us - builder.first_time > SPAN_US:
            self.close()
        taken = builder.append(columns, start, stop, now_us, table, routes, wanted)
        self.end += taken
        if builder.size >= self._settings.batch_bytes:
            self.close()
        return taken

    def close(self) -> None:
        """Close the open batch and, when the segment is full with it, begin the next segment."""
        builder = self._builder
        if not builder.count:
            return
        records = builder.take(self.end - builder.count)
        self._closed.append(Placed(records, self._segment))
        self._closed_bytes += records.size
        self._position += FRAME_BYTES + records.size
        self._segment_time = self._segment_time or records.first_time
        age = self._settings.segment_us
        if self._position >= self._settings.segment_bytes or (
            age is not None and records.last_time - self._segment_time >= age
        ):
            self.begin_segment()

    def begin_segment(self) -> int:
        """What comes next goes into a new segment, unless the one at hand is still empty; its base offset."""
        if self._segment != self.end:
            self._builder.start_segment()
            self._segment, self._position, self._segment_time = self.end, HEADER_BYTES, 0
        return self._segment

    def take(self) -> list[Placed]:
        """Everything gathered, which is in flight until `written`."""
        self.close()
        taken, self._closed = self._closed, []
        self.in_flight_bytes += self._closed_bytes
        self._closed_bytes = 0
        return taken

    def written(self, size: int) -> None:
        """So many bytes in flight have been written."""
        self.in_flight_bytes -= size
