"""Reads one shard for one set of filters: by row postings, of a side file or in memory, else batch by batch.

What is wanted of the current segment is kept between steps. Owned by one reader; not for two threads at once.
"""

from everlog.base import GONE, Records, StorageError, gather, select
from everlog.commitlog import ShardLog
from everlog.store.open_selection import OpenSelection
from everlog.store.read_result import Found, Lost, ReadResult
from everlog.store.recent_batches import RecentBatches
from everlog.store.sealed_segment import SealedSegment, SealedSegments
from everlog.store.selection import Selection
from everlog.store.topic_mask import SharedPostings, TopicMask, TopicMasks
from everlog.store.unsealed_segment import UnsealedSegment, UnsealedSegments
from everlog.topics import Filter

CHUNK_BYTES = 1 << 20  # read from the log at once, less for a small step
SMALL_CHUNK_BYTES = 64 << 10
SCAN_BYTES = 32 << 20  # read in one step at most; a step that found nothing so far ends there and says where
COMPACT = 2  # if fewer than one row in so many of a batch is wanted, the wanted ones are copied into a new batch


class ShardReader:
    """The reader of one shard; without `filters` it reads everything. What it finds may say who has published it, and
    does if `publishers` are asked for and known."""

    def __init__(
        self,
        number: int,
        log: ShardLog,
        sealed: SealedSegments,
        filters: tuple[Filter, ...] | None,
        shared: SharedPostings,
        recent: RecentBatches,
        unsealed: UnsealedSegments,
        publishers: bool = False,
    ) -> None:
        self._number = number
        self._publishers = publishers
        self._log = log
        self._sealed = sealed
        self._filters = filters
        self._shared = shared
        self._masks = TopicMasks(filters or (), shared)
        self._selection: Selection | None = None
        self._unsealed = unsealed
        self._open_selection: OpenSelection | None = None
        self._scanning: UnsealedSegment | None = None  # where passed over records are counted
        self._recent = recent
        self._stopped_in = 0  # the base offset of the batch that the last step ended in or before

    def release(self) -> None:
        """Let go of what was kept between steps."""
        self._masks.clear()
        self._selection = None
        self._open_selection = None

    def read(self, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        """Return wanted records from an offset on, at most so many, and about so many bytes: at most one batch more."""
        step = _Step(self._number, offset, max_records, max_bytes)
        committed = self._log.committed
        start = self._log.start
        if offset < start:
            step.lose(min(start, committed))
        while step.offset < committed and step.has_room:
            selection = self._select(step.offset)
            if selection is not None and selection.choice.is_empty:
                step.offset = selection.segment.end_offset
            elif selection is not None and selection.choice.ids is not None:
                self._fetch(step, selection)
            elif selection is None and self._fetch_open(step, committed):
                continue
            elif not self._scan(step, committed, selection):
                break
        return ReadResult(step.batches, (step.offset,), step.offset >= committed, tuple(step.lost))

    def share(self, offset: int) -> float:
        """Estimate which part of the segment at an offset is wanted; 1 if no index tells."""
        selection = self._select(offset)
        if selection is None or not (selection.choice.is_empty or selection.choice.ids is not None):
            return 1.0
        return selection.choice.total / max(1, selection.segment.finder.rows)

    def _select(self, offset: int) -> Selection | None:
        """Return what is wanted of the sealed segment at an offset; None to read it batch by batch."""
        if self._filters is None:
            return None
        kept = self._selection
        if kept is not None and kept.segment.view.base_offset <= offset < kept.segment.end_offset:
            return kept
        segment = self._sealed.holding(offset)
        if segment is None:
            self._selection = None
            return None
        try:
            self._selection = Selection(segment, self._filters, self._publishers)
        except StorageError:
            self._distrust(segment)
            return None
        if self._selection.choice.mask is not None:
            self._masks.keep(TopicMask(segment.table, self._selection.choice.mask))
        return self._selection

    def _distrust(self, segment: SealedSegment) -> None:
        self._sealed.distrust(segment)
        self._selection = None

    def _fetch(self, step: "_Step", selection: Selection) -> None:
        """Add rows by the postings of a sealed segment, a batch at a time."""
        records, behind = selection.take(step.offset, step.room, step.room_bytes)
        if not selection.fits:
            self._distrust(selection.segment)
            return
        step.offset = behind
        if records is not None:
            step.add(records, None, 0, records.count)

    def _fetch_open(self, step: "_Step", committed: int) -> bool:
        """Add rows by postings in memory, a batch at a time; False if there are none, or too many rows are wanted."""
        self._scanning = None
        selection = self._open_selection_at(step.offset)
        if selection is None or not selection.is_sparse():
            return False
        segment = selection.segment
        if not segment.cover(self._log, step.offset, committed, self._unsealed.has_room):
            self._scanning = segment if segment.is_usable else None
            return False
        if not selection.is_sparse():  # now that there are postings to tell
            return False
        records, step.offset, touched = selection.take(step.offset, step.room, step.room_bytes)
        step.scanned += touched
        if records is not None:
            step.add(records, None, 0, records.count)
        return segment.is_usable

    def _open_selection_at(self, offset: int) -> OpenSelection | None:
        """Return the selection of the segment without an index that holds an offset; None to read all of it."""
        if self._filters is None:
            return None
        kept = self._open_selection
        if kept is None or not kept.segment.is_kept or not kept.segment.holds(offset):
            span = self._sealed.without_index(offset)
            segment = None if span is None else self._unsealed.at(self._number, *span)
            if segment is None or not segment.holds(offset):
                self._open_selection = None
                return None
            kept = self._open_selection = OpenSelection(
                segment, self._filters, self._shared, self._log, self._recent, self._number, self._publishers
            )
        return kept

    def _scan(self, step: "_Step", committed: int, selection: Selection | None) -> bool:
        """Add whole batches from the log, without unwanted rows; return False if the step should end."""
        batches = self._batches(step)
        if not batches:
            step.lose(committed)  # nothing readable is left below what is committed
            return False
        whole = self._filters is None or (selection is not None and selection.choice.is_all)
        for records in batches:
            if records.base_offset > step.offset:
                step.lose(records.base_offset)
            step.scanned += records.size
            self._sift(step, records, whole)
            if not step.has_room or step.offset < records.end_offset:
                self._recent.put(self._number, batches, step.offset)
                self._stopped_in = records.base_offset if step.offset < records.end_offset else step.offset
                break
            if selection is not None and step.offset >= selection.segment.end_offset:
                break
        return step.scanned < SCAN_BYTES

    def _batches(self, step: "_Step") -> list[Records]:
        """Return verified batches from the one that holds the step's offset on."""
        held = self._recent.get(self._number, self._stopped_in, step.offset)
        if held:
            return held
        several = min(CHUNK_BYTES, max(SMALL_CHUNK_BYTES, step.room_bytes), SMALL_CHUNK_BYTES + 1024 * step.room)
        return self._log.read(step.offset, several)

    def _sift(self, step: "_Step", records: Records, whole: bool) -> None:
        """Add the wanted rows of a batch from the step's offset on."""
        first = max(0, step.offset - records.base_offset)
        if whole and records.table.lookup(GONE) >= 0:
            whole = False
            mask = self._masks.all_there(records.table)
        elif not whole:
            mask = self._masks.of(records.table)
            whole = mask.everything
        if whole:
            stop = min(records.count, first + step.room)
            step.add(records, None, first, stop)
            step.offset = records.base_offset + stop
            return
        rows = select(records, mask.topics, first)
        found = len(rows) // 4
        if self._scanning is not None and self._scanning.holds(records.base_offset):
            self._scanning.passed_over(records.base_offset + first, records.count - first - found)
        step.offset = records.end_offset
        if found > step.room:
            del rows[4 * step.room :]
            found = step.room
            step.offset = records.base_offset + int.from_bytes(rows[-4:], "little") + 1
        if found * COMPACT > records.count:
            step.add(records, rows, 0, found)
        elif found:
            compact = gather([(records, rows)], True)
            step.add(compact, None, 0, compact.count)


class _Step:
    """The progress of one read of a shard: where it is, what it found, how much room is left."""

    def __init__(self, shard: int, offset: int, max_records: int, max_bytes: int) -> None:
        self.shard = shard
        self.offset = offset
        self.room = max_records
        self.room_bytes = max_bytes
        self.scanned = 0
        self.batches: list[Found] = []
        self.lost: list[Lost] = []

    @property
    def has_room(self) -> bool:
        """Whether more may be found in this step."""
        return self.room > 0 and self.room_bytes > 0 and self.scanned < SCAN_BYTES

    def add(self, records: Records, rows: bytearray | None, start: int, stop: int) -> None:
        """Add records that were found."""
        self.batches.append(Found(self.shard, records, rows, start, stop))
        self.room -= stop - start
        self.room_bytes -= records.size

    def lose(self, to_offset: int) -> None:
        """Note that the offsets from here to there can't be read."""
        if to_offset > self.offset:
            self.lost.append(Lost(self.shard, self.offset, to_offset))
            self.offset = to_offset
