"""Complete segments of an owned shard go to the bucket; then the tail's tables that held them are emptied.

`step` is called now and then by a thread that may wait; commits never wait for it, only for a tail that is full.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.ports import TABLES
from everlog.cluster.rows import ListedSegment
from everlog.cluster.segment_list import SegmentList, is_segment_name, segment_folder
from everlog.cluster.shard_target import ShardTarget
from everlog.commitlog import HEADER_BYTES, RetentionPlan, SegmentView, ShardLog, plan_retention, read_segment
from everlog.tiering import Bucket, bucket_clock, plan_scrub

CLAIMED_S = 24 * 3600.0  # after which nobody stores anything under a claimed name any more


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much of a cluster's history stays: None for no limit."""

    age_s: float | None = None
    shard_bytes: int | None = None  # of a shard's segments in the bucket


class _Facts(NamedTuple):
    """A listed segment as retention sees it; it is 0 o'clock now."""

    base_offset: int
    end_offset: int
    last_time: int
    size_bytes: int


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

    @property
    def listed_to(self) -> int | None:
        """Where the segments in the bucket end, once that is known."""
        return self._listed

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
        mapped = view.mapped()  # not copied: of a segment as large as this, each copy is new pages of memory
        data = memoryview(view.read_at(0, view.size_bytes)) if mapped is None else mapped
        header, batches = read_segment(data, f"the segment at offset {view.base_offset}")
        if not batches or batches[0][0] not in (self._listed, self._segments.behind_gap(self._listed)):
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

    def retain(self, limits: RetentionLimits, keep_from: int | None) -> RetentionPlan:
        """Drop the segments that are too old or too many, and return what was dropped.

        How old a segment is says the database's clock: since it was listed. What ends behind `keep_from` stays.
        """
        facts = [_Facts(one.base, one.end, -round(age_s * 1e6), one.size) for one, age_s in self._segments.with_ages()]
        age_us = None if limits.age_s is None else round(limits.age_s * 1e6)
        plan = plan_retention(facts, 0, limits.shard_bytes, age_us, keep_from=keep_from)
        if plan.remove:
            self.drop(plan.start)
        return plan

    def scrub(self) -> list[str]:
        """Delete objects of the shard that are not in the list, once they are a day old; return their names.

        An owner that was replaced may store one at any time. The bucket is looked at first: a name is in the list
        before anything is stored under it.
        """
        folder = segment_folder(self._target.shard)
        found = [one for one in self._bucket.find(folder) if is_segment_name(one.name)]
        doomed = plan_scrub(found, self._segments.names(), bucket_clock(self._bucket, folder)) if found else []
        for name in doomed:
            self._bucket.delete(name)
        return doomed

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
