"""Brings changed streams to the bucket: a round now and then packs all that changed since the last one.

A pack counts when the manifest names it; only then the index knows of it, the journal may go below it, and local files
may be evicted. A round runs on a thread that waits for the bucket. What fails is done again in the next one; a record
of the manifest of which nobody knows whether it is there is told again first. A stream that is large is packed less
often: the journal has what came since.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.streams.file_copy import copy_out
from everlog.streams.pack_index import Changed, PackIndex
from everlog.streams.stream_file import FileClosed, StreamFile
from everlog.streams.tier import Tier
from everlog.streams.values import Kind
from everlog.tiering import PACK_BYTES, AllPacks, PackRecord, PackWriter, StreamsRemoved, Told

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard

MEASURE_BYTES = 1 << 20  # a stream of so many bytes is packed in every round, one of n times as many in every n-th
LONGEST_US = 3600_000_000  # but not less often than this
MOST_BEHIND = 1_000_000  # records that the journal may keep for a stream that is packed less often
STEP = 2_000  # changed streams that are looked up at a time
SPARSE, MOST_REPACKED = 0.5, 500  # packs of which less is used are packed again, so many streams a round
TOLD_AGAIN = 100  # records after which the manifest may tell it all again
SCRUB_US = 3600_000_000  # how often packs are looked for that nothing names
_log = logging.getLogger("everlog.persist")


class PackRounds:
    """The rounds of one shard. `tick` is called on the shard's thread; the rest of it runs on another one."""

    def __init__(self, shard: "StateShard", tier: Tier, index: PackIndex) -> None:
        self._shard = shard
        self._tier = tier
        self._index = index
        self._is_under_way = False
        self._begun_us = shard.views.catalogue.time_us
        self._scrubbed_us = 0
        self._untold: Told | None = None  # a record that may be in the manifest, or not
        self._told = tier.manifest.end - tier.manifest.start  # records since it was told whole,
        self._told_bytes = self._all_bytes = 0  # their bytes, and those of all that was told last
        self._past: deque[tuple[int, int, int]] = deque()  # (time, what packs had, where the manifest told all)
        self._all_at = 0
        self.trouble: EverlogError | None = None  # why nothing reaches the bucket just now
        self._step = threading.Lock()  # held while a round uses what the shard closes
        self._is_closed = False
        self.rounds = self.uploads = self.upload_bytes = self.packed = 0  # so far

    def tick(self, now_us: int) -> None:
        """Begin a round if it is time to; the catalogue's rows are flushed."""
        if self._is_under_way or 0 <= now_us - self._begun_us < self._shard.settings.upload_us:
            return
        self._is_under_way = True
        self._begun_us = now_us
        end = self._shard.views.filed_below(self._shard.committed)
        due_us = self._shard.clock.due_us()
        self._tier.upload(lambda: self._run(end, now_us, due_us))

    def _run(self, end: int, now_us: int, due_us: int) -> None:
        try:
            self._round(end, now_us, due_us)
            self.trouble = None
        except Fenced as error:
            self._shard.post_failure(error)
        except EverlogError as error:
            if self.trouble is None and not self._is_closed:
                _log.warning("packs of %s can't be brought to the bucket: %s", self._tier.folder, error)
            self.trouble = error
        finally:
            self._shard.post(self._end)

    def close(self) -> None:
        """End the round that is under way as soon as it comes back from the bucket: it uses nothing of the shard."""
        with self._step:
            self._is_closed = True

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Use files and catalogue, which the shard does not close meanwhile."""
        with self._step:
            if self._is_closed:
                raise Unavailable("the shard is closed")
            yield

    def _end(self) -> None:
        self._is_under_way = False

    def _round(self, end: int, now_us: int, due_us: int) -> None:
        if self._untold is not None:
            self._tell(self._untold, now_us)
        below = self._pack(end, now_us)
        with self._using():
            gone = self._index.gone(STEP)
        if gone or below > self._index.below:
            self._tell(StreamsRemoved(gone, below), now_us)
        if self._told >= TOLD_AGAIN and self._told_bytes >= self._all_bytes:
            self._all_at = self._tier.manifest.end
            with self._using():
                everything = self._index.all()
            self._tell(everything, now_us)
        self._let_go(now_us)
        if due_us and abs(due_us - self._scrubbed_us) >= SCRUB_US:
            self._scrub(due_us)
            self._scrubbed_us = due_us
        self.rounds += 1

    # ---- packing ----

    def _pack(self, end: int, now_us: int) -> int:
        """Pack what changed, and return up to where packs have everything then."""
        below = end
        writer = self._writer()
        try:
            for one in self._changed():
                if self._is_early(one, end, now_us) or not self._add(writer, one):
                    below = min(below, max(one.position, self._index.below))
                if writer.size >= PACK_BYTES:
                    self._name(writer.upload(), now_us)
                    writer.close()
                    writer = self._writer()
            self._add_sparse(writer)
            if len(writer):
                self._name(replace(writer.upload(), below=below), now_us)
        finally:
            writer.close()
        return below

    def _writer(self) -> PackWriter:
        return PackWriter(self._tier.bucket, self._tier.folder, self._shard.epoch, self._shard.scratch)

    def _changed(self) -> Iterator[Changed]:
        after = self._index.below - 1
        while True:
            with self._using():
                found = self._index.changed(after, STEP)
            if not found:
                return
            yield from found
            after = found[-1].last

    def _is_early(self, one: Changed, end: int, now_us: int) -> bool:
        """Return whether a stream is too large to be packed in every round, and was packed a short while ago."""
        if one.position < 0 or end - one.position > MOST_BEHIND:
            return False
        pause_us = min(self._shard.settings.upload_us * (one.size // MEASURE_BYTES), LONGEST_US)
        return 0 <= now_us - one.packed_us < pause_us

    def _add(self, writer: PackWriter, one: Changed) -> bool:
        """Add a copy of a stream's file, and return whether there was one that has all that its row tells."""
        path = f"{self._shard.scratch}/pack-{os.path.basename(self._shard.views.files.path(one.name))}"
        for _ in range(3):  # it may be closed just now
            try:
                found = self._copy(one, path)
            except FileClosed:
                continue
            if found is None:
                return False
            if found:
                writer.add_bytes(one.name, found, one.last + 1, one.facts)
            else:
                writer.add(one.name, path, one.last + 1, one.facts)
                os.unlink(path)
            self.packed += 1
            return True
        return False

    def _copy(self, one: Changed, path: str) -> bytes | None:
        """Return a copy of a stream's file, b"" if it is at the path, or None if there is none that counts."""
        files = self._shard.views.files
        with self._using(), files.lend(one.name) as opened:
            file = opened
            if file is None:
                if not os.path.exists(files.path(one.name)):
                    return None
                file = StreamFile(files.path(one.name), one.name, one.born, Kind(one.row[1]), create=False)
            try:
                if file.is_stale or file.born != one.born or file.applied < one.last:
                    return None
                data = copy_out(file, path)
                return b"" if data is None else data
            finally:
                if opened is None:
                    file.close()

    def _add_sparse(self, writer: PackWriter) -> None:
        """Add what is left of packs that are mostly out of use, so that those can go."""
        with self._using():
            found = self._index.sparse(SPARSE, MOST_REPACKED)
        for name, place, facts in found:
            if writer.size >= PACK_BYTES:
                return
            try:
                pieces = self._tier.packs.stored(place.pack, place.offset, place.length)
                writer.add_packed(name, pieces, place.position, facts)
            except StorageError as error:
                _log.error("%s can't be packed again: %s", name, error)

    # ---- naming ----

    def _name(self, record: PackRecord, now_us: int) -> None:
        self.uploads += 1
        self.upload_bytes += record.size
        self._tell(record, now_us)

    def _tell(self, told: Told, now_us: int) -> None:
        """Add a record to the manifest, then to the index; one that was told before is told again until it is known."""
        self._untold = told
        size = self._tier.manifest.tell(told)
        self._untold = None
        with self._using():
            self._index.take(self._tier.manifest.end - 1, told, now_us)
        self._told, self._told_bytes = self._told + 1, self._told_bytes + size
        if isinstance(told, AllPacks):
            self._told, self._told_bytes, self._all_bytes = 0, 0, size

    # ---- letting go ----

    def _let_go(self, now_us: int) -> None:
        """Let the journal go below what is in packs, and what the bucket keeps for restores some time later."""
        past = self._past
        past.append((now_us, self._index.below, self._all_at))
        while len(past) > 1 and past[1][0] <= now_us - self._shard.settings.history_us:
            past.popleft()
        is_old = past[0][0] <= now_us - self._shard.settings.history_us
        kept, all_at = past[0][1:] if is_old else (0, 0)
        if all_at > self._tier.manifest.start:
            self._tier.manifest.begin_at(all_at)
        self._tier.trim(self._index.below, kept)

    def _scrub(self, now_us: int) -> None:
        """Delete packs that nothing has named for a while: replaced ones, and those of owners that could not name them.

        An upload of an owner that was replaced may end at any time, so one that is seen first is left alone as long.
        """
        bucket, index = self._tier.bucket, self._index
        found = [one.name for one in bucket.find(self._tier.folder)]
        with self._using():
            named = index.packs()
            index.see_unnamed([name for name in found if name not in named], now_us)
            doomed = index.unnamed(now_us - self._shard.settings.unnamed_us)
        for pack in doomed:
            bucket.delete(pack)
        with self._using():
            index.forget_unnamed(doomed)
