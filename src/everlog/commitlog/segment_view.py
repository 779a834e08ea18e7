"""The view that others have of a segment: facts, and ways to read it."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from everlog.base import Records, TopicTable, Unavailable
from everlog.commitlog.batch_index import BatchIndex
from everlog.commitlog.segment_reader import SegmentReader
from everlog.commitlog.side_file import SideSection

TOPICS = "topics"  # the side file's section that the indexer makes


@dataclass(slots=True)
class SegmentView:
    """A segment as it was when asked for. Once read from, it stays readable even if it is merged or removed."""

    base_offset: int
    end_offset: int
    first_time: int
    last_time: int
    size_bytes: int
    sealed: bool
    _open: Callable[[], SegmentReader]
    _reader: SegmentReader | None = None
    _batches: BatchIndex | None = field(default=None)

    def _opened(self) -> SegmentReader:
        if self._reader is None:
            try:
                self._reader = self._open()
            except FileNotFoundError as error:
                raise Unavailable(f"the segment at offset {self.base_offset} was removed by retention") from error
            if self.sealed:
                self.size_bytes = self._reader.file.size()  # it may have been merged since
        return self._reader

    def apart(self) -> "SegmentView":
        """Return a view of the same segment that is opened for itself, so that it is let go of for itself."""
        return replace(self, _reader=None, _batches=None)

    @property
    def memory_bytes(self) -> int:
        """About how much memory index and names take while the view is held."""
        return self._opened().memory_bytes

    @property
    def table(self) -> TopicTable:
        """The names of the segment's topic ids."""
        return self._opened().table

    def batches(self) -> BatchIndex:
        """Return the index of the batches that were committed when this was first called."""
        if self._batches is None:
            self._batches = self._opened().index.snapshot()
        return self._batches

    def read_at(self, position: int, length: int) -> bytes:
        """Return a raw range of the segment file, unchecked; shorter where the file ends."""
        return self._opened().file.read_at(position, length)

    def mapped(self) -> memoryview | None:
        """Return the committed bytes of the segment file, unchecked and mapped; None if files can't be mapped."""
        return self._opened().file.mapped(self.size_bytes)

    def read(self, first: int, last: int) -> list[Records]:
        """Return the batches of rows `first` to before `last`, verified; damaged ones are reported and left out."""
        return self._opened().read_rows(first, last) if first < last else []

    def side(self, section: str = TOPICS) -> SideSection | None:
        """Return a section of the side file; None if the segment is not sealed or it can't be trusted."""
        return self._opened().section(section)


def first_at(records: Records, time_us: int) -> int:
    """Return the first offset in a batch whose time is not before `time_us`."""
    start = records.start + records.layout.times
    deltas = memoryview(records.data)[start : start + 4 * records.count].cast("I")
    return records.base_offset + bisect_left(deltas, time_us - records.first_time)
