"""Single rows fetched from a sealed segment's file into a compact batch, each verified by itself.

The segment may be a mapped file: of each row only its own words of the columns and its own bytes are touched. A batch
is believed when its header agrees with the batch index and with its own size; a row when its topic is the one that it
was looked up by and its check, which covers time, flags, properties and payload, is right. What does not agree gives
None, and the caller reads the segment the plain way, which tells damage from a bad row list. Any thread may ask; the
interpreter is free while rows are fetched.
"""

from itertools import accumulate

import cython

from everlog.base import StorageError, UsageError

if not cython.compiled:
    from everlog.base.interning import TopicTable
    from everlog.base.memory import blank, check_of, copy, filled, get32, get64, pointer, put32, put64, u32s, u64s
    from everlog.base.records import Layout, Records, marked, padded
    from everlog.store.mapped import address, ahead, faulted, unguard

_MAGIC = 0x424C5645
_VERSION = 1
_HEADER_BYTES = 64
_WITH_PROPERTIES = 0x01
_WITH_OFFSETS = 0x02
_ROW_BYTES = 25  # in the batch that is made, but for properties and payload
_AHEAD = 16  # rows: how far ahead payloads are asked for

_NOTE_WORDS = 8  # payload at and size, properties at and size, time, offset, check, flags
_PLACE_WORDS = 8  # of the batch at hand: first_time, times, topics, flags, property ends, payload ends, checks, properties


class RowTaker:
    """A segment's file in a buffer, with the columns of its batch index."""

    def __init__(
        self, log: object, offsets: memoryview, positions: memoryview, sizes: memoryview, counts: memoryview
    ) -> None:
        self.log = memoryview(log)  # type: ignore[arg-type]
        self.size = len(self.log)
        self.batches = len(counts)
        if self.size < _HEADER_BYTES or self.batches == 0:
            raise StorageError("there is nothing to take rows from")
        self.raw = address(self.log)
        starts = list(accumulate(counts, initial=0))
        self.rows = starts[self.batches]
        if self.rows > 0xFFFFFFFF:
            raise StorageError(f"{self.rows} rows are too many for row lists")
        self.columns = (
            bytearray(memoryview(offsets).cast("B")),
            bytearray(memoryview(positions).cast("B")),
            bytearray(memoryview(sizes).cast("B")),
            bytearray(memoryview(counts).cast("B")),
            bytearray(b"".join([row.to_bytes(4, "little") for row in starts])),
        )
        self.offset_of = u64s(self.columns[0])
        self.position_of = u64s(self.columns[1])
        self.size_of = u32s(self.columns[2])
        self.count_of = u32s(self.columns[3])
        self.start_of = u32s(self.columns[4])

    def start_row(self, batch: int) -> int:
        """The number of a batch's first row; for the number of batches, the number of rows."""
        if not 0 <= batch <= self.batches:
            raise UsageError(f"no batch {batch} among {self.batches}")
        return self.start_of[batch]

    def offset(self, row: int) -> int:
        """The offset of a row."""
        if not 0 <= row < self.rows:
            raise UsageError(f"no row {row} among {self.rows}")
        batch = self._batch_of(row)
        return self.offset_of[batch] + row - self.start_of[batch]

    def take(
        self, found: bytearray, first: int, stop: int, ids: bytearray, table: TopicTable, max_bytes: int
    ) -> Records | None:
        """Rows `first` to before `stop` of what `RowFinder.find` found, fewer at `max_bytes` but one at least.

        The topic ids of the batch are places among `ids`, whose names `table` holds. It ends early, too, where one
        batch can't reach: 71 minutes behind its first record.
        """
        if not 0 <= first < stop <= len(found) // 8:
            raise UsageError(f"no rows {first} to {stop} among the {len(found) // 8} that were found")
        rows = u64s(found)
        chosen = u32s(ids)
        if rows[stop - 1] >> 32 >= self.rows:
            raise UsageError(f"no row {rows[stop - 1] >> 32} among {self.rows}")
        notes = bytearray(8 * _NOTE_WORDS * (stop - first))
        note = u64s(notes)
        places = bytearray(8 * _PLACE_WORDS + 24)
        place = u64s(places)
        with cython.nogil:
            count = self._locate(rows, first, stop, chosen, len_u32(ids), max_bytes, place, note)
            unguard()
        if count <= 0:
            return None
        return self._assemble(rows, first, count, note, place, table)
