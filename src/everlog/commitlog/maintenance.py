"""Maintenance of segments beside the writer: sealing, retention, repair, and the checkpoint of a clean stop.

One piece of work at a time, under one lock; appends and commits never wait for it.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.collector import Collector
from everlog.commitlog.committer import Committer
from everlog.commitlog.log_settings import LogSettings
from everlog.commitlog.paths import TEMPORARY, segment_path, side_path
from everlog.commitlog.ports import Classes, Indexer
from everlog.commitlog.retention import RetentionPlan
from everlog.commitlog.sealer import Sealer
from everlog.commitlog.topic_retention import Thinned, Thinner

TRY_AGAIN_S = 10.0  # after a segment could not be sealed


class Maintenance:
    """The queue of complete segments to seal, and retention."""

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        settings: LogSettings,
        indexer: Indexer | None,
        classes: Classes | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._settings = settings
        self._lock = threading.Lock()
        self.sealer = Sealer(catalog, settings, indexer)
        self.thinner = Thinner(catalog, self.sealer, settings, classes) if classes is not None else None
        self._collector = Collector(catalog, self.sealer, settings)
        self.wake: Callable[[], None] = lambda: None
        self._clock = clock
        self._failed: dict[int, tuple[Segment, str]] = {}  # by base offset, what could not be sealed, and why
        self._again_at = 0.0
        self.removed = 0
        writing = committer.segment
        self._queue = deque(s for s in catalog.segments if not s.sealed and s is not writing)  # at most all segments

    def completed(self, segment: Segment) -> None:
        """Queue a segment that has a successor now."""
        self._queue.append(segment)
        self.wake()

    @property
    def seal_failures(self) -> list[str]:
        """Why segments are not sealed that should be; they are tried again."""
        return [why for _, why in self._failed.values()]

    def rest_s(self) -> float | None:
        """Return in how many seconds a step should be taken although nobody asks for it; None for never."""
        return max(0.0, self._again_at - self._clock()) if self._failed else None

    @property
    def waiting(self) -> int:
        """How many segments wait to be sealed."""
        return len(self._queue)

    def step(self) -> bool:
        """Seal one segment; return False if none waits."""
        with self._lock:
            segment = self._next()
            if segment is None or self._committer.failure is not None:
                return False
            try:
                self.sealer.seal(segment, again=segment.base_offset in self._failed)
                self._failed.pop(segment.base_offset, None)
                self._committer.remark()
            except OSError as error:
                self._not_sealed(segment, error)
            return True

    def _next(self) -> Segment | None:
        segments = self._catalog.segments
        if self._failed and self._clock() >= self._again_at:
            self._again_at = self._clock() + TRY_AGAIN_S
            self._queue.extend(segment for segment, _ in self._failed.values())
        while self._queue:
            segment = self._queue.popleft()
            if any(segment is one for one in segments):
                return segment
            self._failed.pop(segment.base_offset, None)
        for segment in segments:
            lost = segment.base_offset in self._catalog.damage.rebuild - self._failed.keys()
            if lost and segment.reader is None:
                return segment
        return None

    def _not_sealed(self, segment: Segment, error: OSError) -> None:
        """Leave a segment without a side file for now, which makes it slower to read and nothing worse."""
        why = f"{segment_path(self._catalog.directory, segment.base_offset)}: {error}"
        self._failed[segment.base_offset] = (segment, why)
        self._again_at = self._clock() + TRY_AGAIN_S
        for path in (segment_path, side_path):
            with contextlib.suppress(OSError):
                self._catalog.disk.unlink(path(self._catalog.directory, segment.base_offset) + TEMPORARY)

    def repair(self) -> int:
        """Make every missing or damaged side file again, and return how many."""
        before = self.sealer.sealed
        for segment in self._catalog.segments:
            if segment.reader is None:
                self._catalog.forget(segment.base_offset)
                reader = self._catalog.reader(segment)
                for name in reader.side.names if reader.side is not None else ():
                    reader.section(name)
        while self.step():
            pass
        return self.sealer.sealed - before

    def run_retention(self, now_us: int, plan: Callable[[], RetentionPlan]) -> RetentionPlan:
        """Remove the segments that a plan names, oldest first."""
        with self._lock:
            segments = self._catalog.segments
            age = self.age(segments[-1]) if segments else None
            if segments and age is not None and 0 < segments[-1].last_time < now_us - age:
                self._committer.roll()  # so that retention works on a quiet log too
            decided = plan()
            if decided.remove:
                self._remove(set(decided.remove))
            return decided

    def age(self, segment: Segment) -> int | None:
        """Return how old a segment may get, which is what its longest-lived topics demand; None for no limit."""
        return self._settings.retention_us if self.thinner is None else self.thinner.age(segment)

    def thin(self, now_us: int, below: int | None) -> list[Thinned]:
        """Empty what is too old in sealed segments that stay and that end at or before `below`."""
        with self._lock:
            if self.thinner is None or self._committer.failure is not None:
                return []
            thinner = self.thinner
            due = thinner.due(now_us, below)
            return self._rewrite([(segment, partial(thinner.thin, segment, classes)) for segment, classes in due])

    def collect(self, spilled: int, owed: int) -> list[Thinned]:
        """Empty what no setting keeps in sealed segments: what spills have left below `spilled`, and what was there for
        sessions and groups below `owed`; return which.

        The oldest segments below `owed` that are left with nothing go.
        """
        with self._lock:
            collector = self._collector
            if self._committer.failure is not None:
                return []
            due = collector.due(spilled, owed)
            done = self._rewrite([(one, partial(collector.empty, one, marks)) for one, marks in due])
            if hollow := collector.hollow(owed):
                self._remove(hollow)
            return done

    def _rewrite(self, due: list[tuple[Segment, Callable[[], Thinned | None]]]) -> list[Thinned]:
        """Have segments thinned, one by one; return those that were."""
        done = []
        for segment, thin in due:
            try:
                thinned = thin()
            except OSError as error:
                self._catalog.forget(segment.base_offset)
                self._not_sealed(segment, error)
                continue
            if thinned is not None:
                done.append(thinned)
                self._committer.remark()
        return done

    def _remove(self, bases: set[int]) -> None:
        catalog = self._catalog
        catalog.replace([segment for segment in catalog.segments if segment.base_offset not in bases])
        self._committer.remark()
        for base in sorted(bases):
            catalog.forget(base)
            catalog.damage.rebuild.discard(base)
            for path in (segment_path(catalog.directory, base), side_path(catalog.directory, base)):
                with contextlib.suppress(FileNotFoundError):
                    catalog.disk.unlink(path)
            self.removed += 1
            catalog.disk.sync_directory(catalog.directory)  # one by one, so that a crash leaves no gap
        self._committer.remark()

    def checkpoint(self) -> None:
        """Sync what was not and index the last segment at a clean stop, so that the next start reads little."""
        if self._committer.failure is not None:
            return
        with self._lock:
            self._committer.cut()
            for segment in self._catalog.segments:
                reader = segment.reader
                if reader is not None:
                    reader.file.sync()
                    self._index_last(segment)

    def _index_last(self, segment: Segment) -> None:
        reader = segment.reader
        if reader is not None and segment is self._committer.segment and len(reader.index):
            try:
                self.sealer.write_side(reader, 0)
            except OSError as error:
                self._not_sealed(segment, error)
