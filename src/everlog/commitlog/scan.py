"""Scans a segment's batches without an index: after a crash, beside a writer, and to make a side file again.

Invariant: what is accepted is whole, stands where the log put it and has the offsets that follow. A bad batch is
damage once a good one is found after it; without one it is the tail, and the caller decides what to do with it.
"""

from everlog.base import HEADER_BYTES as BATCH_HEADER_BYTES
from everlog.base import Records, StorageError, TopicTable, lost_publisher
from everlog.commitlog.batch_index import GrowingIndex
from everlog.commitlog.damage import Damage
from everlog.commitlog.ports import File
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES, Frame, find_frame, read_frame

WINDOW_BYTES = 4 << 20
BATCH_MAGIC = b"EVLB"


def new_table() -> TopicTable:
    """Return an empty topic table for a segment, whose own size is the limit."""
    return TopicTable(0, 1 << 30, 1 << 31)


class Scan:
    """A scan of one segment, which goes on where it stopped when the segment has grown."""

    def __init__(self, file: File, path: str, salt: int, base_offset: int) -> None:
        self.file = file
        self.path = path
        self.salt = salt
        self.index = GrowingIndex()
        self.table = new_table()
        self.damage: list[Damage] = []
        self.position = HEADER_BYTES  # the end of the last accepted batch
        self.offset = base_offset  # the offset after it
        self.last_time = 0
        self.torn_at: int | None = None  # the first bad place that was never synced, for all that is known
        self._missing: set[int] = set()  # topic ids whose names were in a batch that is lost
        self._suspects: list[Damage] = []
        self._named: list[Records] = []  # suspects whose names are whole
        self._window = b""
        self._window_at = 0

    def resume(
        self,
        index: GrowingIndex,
        names: list[bytes],
        publishers: list[bytes] | None,
        position: int,
        offset: int,
        last_time: int,
    ) -> None:
        """Begin after what a side file covers."""
        self.index = index
        for name in names:
            self.table.intern(name)
        if publishers is not None:
            self.table.publishers = new_table()
            for name in publishers:
                self.table.publishers.intern(name)
        self.position, self.offset, self.last_time = position, offset, last_time

    def run(self, limit: int, *, complete: bool) -> None:
        """Scan up to a position; if all below it was committed (`complete`), a bad end is damage too."""
        at = self.position
        while at < limit:
            at = self._step(at, limit)
        self._window = b""
        if complete and self.position < limit:
            self._suspects = self._suspects or [Damage(self.path, self.position, "no batch begins here")]
            end = max(self.offset, *(suspect.to_offset for suspect in self._suspects))
            self._confirm(end)
            self.position, self.offset = limit, end
        self._suspects, self._named = [], []

    def _step(self, at: int, limit: int) -> int:
        """Take in what stands at a position, and return where to look next."""
        head = self._bytes(at, FRAME_BYTES, limit)
        frame = read_frame(head, 0, at, self.salt)
        if frame is None:
            return self._unframed(at, limit)
        data = self._bytes(at + FRAME_BYTES, frame.size, limit)
        records = self._opened(data, frame.base_offset)
        if len(data) == frame.size and records is not None and records.count == frame.records and records.verify():
            if frame.base_offset < self.offset:
                self._suspect(at, "a batch has offsets that an earlier one has", self.offset)
            else:
                self._accept(records, at, frame.after_sync)
            return frame.end
        if records is not None and records.verify_columns():
            self._named.append(records)
        self._suspect(at, "a batch fails its check", frame.base_offset + frame.records)
        return frame.end

    def _unframed(self, at: int, limit: int) -> int:
        """Go on where no frame stands: the batch after it may be whole, or else the next frame is looked for."""
        head = self._bytes(at + FRAME_BYTES, BATCH_HEADER_BYTES, limit)
        size = int.from_bytes(head[8:12], "little") if head[:4] == BATCH_MAGIC else 0
        records = self._opened(self._bytes(at + FRAME_BYTES, size, limit), self.offset)
        if records is not None and not self._suspects and records.verify():
            self.torn_at = at if self.torn_at is None else self.torn_at
            self._accept(records, at, False)
            self.damage.append(Damage(self.path, at, "the frame of a batch fails its check; the batch is whole"))
            return self.position
        frame = self._find(at + 8, limit)
        self._suspect(at, "no batch begins here", frame.base_offset if frame else self.offset)
        return frame.position if frame else limit

    def _opened(self, data: bytes, base_offset: int) -> Records | None:
        try:
            records = Records(data, 0, self.table)
        except StorageError:
            return None
        return records if records.base_offset == base_offset and not records.with_offsets else None

    def _find(self, start: int, limit: int) -> Frame | None:
        """Find the next frame that can be the log's, in windows that overlap by a frame."""
        at = start
        while at < limit:
            window = self.file.read_at(at, min(WINDOW_BYTES, limit - at))
            frame = find_frame(window, 0, at, self.salt)
            while frame is not None and frame.base_offset < self.offset:
                frame = find_frame(window, frame.position - at + 8, at, self.salt)
            if frame is not None or len(window) < WINDOW_BYTES:
                return frame
            at += WINDOW_BYTES - FRAME_BYTES
        return None

    def _suspect(self, at: int, what: str, end_offset: int) -> None:
        self._suspects.append(Damage(self.path, at, what, 0, end_offset))

    def _confirm(self, next_offset: int) -> None:
        """Call what was suspect damage, since a good batch that begins at this offset follows it."""
        offset = self.offset
        for suspect in self._suspects:
            end = max(offset, min(suspect.to_offset, next_offset))
            self.damage.append(Damage(suspect.path, suspect.position, suspect.what, offset, end))
            offset = end
        if offset < next_offset and self._suspects:
            last = self.damage.pop()
            self.damage.append(Damage(last.path, last.position, last.what, last.from_offset, next_offset))
        for records in self._named:
            self._learn(records)
        self._suspects, self._named = [], []

    def _accept(self, records: Records, at: int, after_sync: bool) -> None:
        if after_sync:
            self.torn_at = None  # what is bad before it has gone bad
        elif self._suspects and self.torn_at is None:
            self.torn_at = self.position
        self._confirm(records.base_offset)
        self._learn(records)
        if self._missing and not self._missing.isdisjoint(topic_ids(records)):
            what = "the names of a batch's topics were in a batch that is damaged"
            end = records.base_offset + records.count
            self.damage.append(Damage(self.path, at, what, records.base_offset, end))
        else:
            self.index.add(records, at + FRAME_BYTES)
        self.position = at + FRAME_BYTES + records.size
        self.offset = records.base_offset + records.count
        self.last_time = records.last_time

    def _learn(self, records: Records) -> None:
        """Take in the names that a batch carries; those of ids that it skips were in a lost batch."""
        for topic in range(self.table.count, records.first_new_topic):
            self._missing.add(topic)
            self.table.intern(b"\0lost/%d" % topic)  # no topic has this name: MQTT forbids U+0000
        if records.first_new_topic == self.table.count:
            for name in records.new_names():
                self.table.intern(name)
        if records.layout.publishers:
            self._learn_publishers(records)

    def _learn_publishers(self, records: Records) -> None:
        """Take in the publishers that a batch names; nothing depends on those whose names are lost."""
        if self.table.publishers is None:
            self.table.publishers = new_table()
        publishers = self.table.publishers
        for number in range(publishers.count, records.layout.first_publisher):
            publishers.intern(lost_publisher(number))
        if records.layout.first_publisher == publishers.count:
            for name in records.new_publishers():
                publishers.intern(name)

    def _bytes(self, at: int, size: int, limit: int) -> bytes:
        """Return a range of the file up to the limit, read in windows."""
        size = max(0, min(size, limit - at))
        start = at - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self.file.read_at(at, max(size, min(WINDOW_BYTES, limit - at)))
            self._window_at, start = at, 0
        return self._window[start : start + size]


def topic_ids(records: Records) -> memoryview:
    """Return a batch's column of topic ids."""
    start = records.start + records.layout.topics
    return memoryview(records.data)[start : start + 4 * records.count].cast("I")


def flags_of(records: Records) -> bytes:
    """Return a batch's column of flags."""
    start = records.start + records.layout.flags
    return bytes(memoryview(records.data)[start : start + records.count])
