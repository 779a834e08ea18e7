"""Complete segments of an owned shard go to the bucket; then the tail's tables that held them are emptied.

`step` is called now and then by a thread that may wait; commits never wait for it, only for a tail that is full.
"""

import threading
from collections.abc import Iterator

import crc32c

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.ports import TABLES
from everlog.cluster.rows import ListedSegment
from everlog.cluster.segment_list import SegmentList
from everlog.cluster.shard_target import ShardTarget
from everlog.commitlog import HEADER_BYTES, SegmentView, ShardLog, read_segment
from everlog.tiering import Bucket

CLAIMED_S = 24 * 3600.0  # after which nobody stores anything under a claimed name any more


class Uploads:
    """The bucket's side of an owned shard."""

    def __init__(
        self, log: ShardLog, target: ShardTarget, segments: SegmentList, bucket: Bucket, settings: ClusterSettings
    ) -> None:
        self._log = log
        self._target = target
        self._segments = segments
        self._bucket = bucket
        self._settings = settings
        self._listed: int | None = None  # where the listed segments end
        self.trouble: EverlogError | None = None  # why nothing reaches the bucket just now
        self._stepping = threading.Lock()
        self._is_closed = False

    def step(self) -> None:
        """Store what is complete and empty what may be; what fails is tried again at the next step."""
        with self._stepping:
            if self._is_closed:
                return
            try:
                for view in self._complete():
                    self._store(view)
                self._empty()
                self.trouble = None
            except Fenced:
                pass  # the next commit finds out too, and says so
            except EverlogError as error:
                self.trouble = error
        self._close_if_done()

    def _complete(self) -> Iterator[SegmentView]:
        """Yield the segments that nothing more is written to and that are not listed."""
        if self._listed is None:
            self._listed = max((one.end for one in self._segments.read(0)), default=self._log.start)
        views = self._log.segments()
        for view, following in zip(views, [*views[1:], None], strict=False):
            if view.base_offset >= self._listed and (following is not None or self._is_of_another(view)):
                yield view

    def _is_of_another(self, view: SegmentView) -> bool:
        """Return whether an owner before has written the last segment: then the next record begins another."""
        return read_segment(view.read_at(0, HEADER_BYTES), "")[0].origin.epoch != self._target.epoch

    def _store(self, view: SegmentView) -> None:
        """Store one segment under a new name, then list it."""
        data = view.read_at(0, view.size_bytes)
        header, batches = read_segment(data, f"the segment at offset {view.base_offset}")
        if not batches or batches[0][0] != self._listed:
            raise StorageError(f"the segment at offset {view.base_offset} does not follow {self._listed}")
        end = batches[-1][0] + batches[-1][1]
        if end != view.end_offset:
            raise StorageError(f"the segment at offset {view.base_offset} is damaged", hint="restart the broker")
        name = self._segments.claim(view.base_offset, self._target.epoch)
        self._bucket.put(name, data)
        crc = crc32c.crc32c(data[HEADER_BYTES:])
        listed = ListedSegment(view.base_offset, end, header.origin.epoch, len(data), crc, name)
        self._segments.add(listed, self._target.epoch)
        self._listed = end

    def _empty(self) -> None:
        """Empty tables whose rows were listed a while ago, or at once if the tail fills."""
        full = self._target.full_tables()
        for place, (table, end) in enumerate(full):
            hurries = len(full) - place >= TABLES // 2
            if self._listed is None or end > self._listed:
                return
            try:
                if not self._segments.empty(table, self._target.epoch, 0.0 if hurries else self._settings.kept_s):
                    return
            except Unavailable as error:
                if isinstance(error, Fenced):
                    raise
                return  # somebody reads it
            self._target.emptied(table)

    def drop(self, below: int) -> None:
        """Let the history begin at the first segment that ends behind an offset."""
        self._segments.drop(below, self._target.epoch)

    def delete_dropped(self) -> int:
        """Delete objects that no reader can be in any more; return how many."""
        names = self._segments.forgotten(self._settings.pinned_s, CLAIMED_S)
        for name in names:
            self._bucket.delete(name)
            self._segments.forget(name, self._target.epoch)
        return len(names)

    def close(self) -> None:
        """Do no more steps; one that is under way is not waited for."""
        self._is_closed = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_closed and self._stepping.acquire(blocking=False):
            try:
                self._segments.close()
            finally:
                self._stepping.release()
