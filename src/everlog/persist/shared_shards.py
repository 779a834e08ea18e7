"""The state shards of storage that several servers share, with their views on this server's own disk.

An epoch that was claimed is used for one opening; after it, or if that fails, the shard has to be claimed anew. The
view (SQLite files, `DIR/<store>/shard-N`) is derived from the journal and holds nothing but committed records: what an
earlier epoch of this server left there is a good beginning, and what can't be read is made anew. Where there is a
bucket, the storage itself or one beside PostgreSQL, streams go there (`everlog.streams.Tier`), and the journal is
trimmed.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from everlog.base import Fenced, StorageError, UsageError
from everlog.persist.ports import Begin, Failed, Post
from everlog.persist.shared_storage import SharedStorage, thing_of
from everlog.streams import Clock, Shard, ShardSettings, StateShard, Tier, TierThreads
from everlog.tiering import Bucket, GroupJournal


class SharedShards:
    """Opens shards at the epochs that were claimed for them; see `ShardOpener`."""

    def __init__(
        self,
        storage: SharedStorage,
        directory: str,
        clock: Clock,
        settings: ShardSettings | None = None,
        bucket: Bucket | None = None,
    ) -> None:
        if storage.bucket is not None and bucket is not None:
            raise UsageError("the storage is a bucket already", hint="leave persist.bucket out")
        self._storage = storage
        self._bucket = storage.bucket or bucket
        self._bucket_threads = TierThreads()
        self._directory = os.path.join(directory, storage.record.store)
        self._clock = clock
        self._settings = (settings or ShardSettings()).shared_by(storage.record.shards)
        self._threads = ThreadPoolExecutor(1, "everlog-persist-files")
        self._claimed: dict[int, int] = {}  # epochs that are not used yet
        self._journals: dict[int, GroupJournal] = {}
        self.shards = storage.record.shards

    def claimed(self, shard: int, epoch: int) -> None:
        """Note the epoch at which a shard may be opened, once."""
        self._claimed[shard] = epoch

    def open(self, shard: int) -> Begin:
        """Take the journal over, and make the view."""
        epoch = self._claimed.pop(shard, None)
        if epoch is None:
            raise Fenced(f"shard {shard} is not claimed", hint="it is claimed anew by itself")
        journal = self._storage.open_journal(shard, epoch)

        def begin(post: Post, failed: Failed) -> Shard:
            tier = None
            try:
                tier = self._open_tier(shard, journal)
                made = self._open_view(shard, journal, tier, post, failed)
            except BaseException:
                if tier is not None:
                    tier.close()
                journal.close()
                raise
            self._journals[shard] = journal
            return made

        return begin

    def stuck_s(self, now_s: float) -> float:
        """Return for how long the slowest commit that is under way has been."""
        return max((journal.writing_s(now_s) for journal in list(self._journals.values())), default=0.0)

    def forget(self, shard: int) -> None:
        """Forget a shard that was closed."""
        self._claimed.pop(shard, None)
        self._journals.pop(shard, None)

    def close(self) -> None:
        """End the threads that worked for the shards; after they are closed."""
        self._threads.shutdown()
        self._bucket_threads.close()

    def _open_tier(self, shard: int, journal: GroupJournal) -> Tier | None:
        if self._bucket is None:
            return None
        return Tier.open(
            self._bucket,
            thing_of(shard),
            journal,
            self._bucket_threads.upload,
            self._bucket_threads.fetch,
            is_copied=self._storage.bucket is None,
            archive_us=self._settings.archive_us,
        )

    def _open_view(
        self, shard: int, journal: GroupJournal, tier: Tier | None, post: Post, failed: Failed
    ) -> StateShard:
        """Return the shard with its view as of the journal's end: what is on the disk, and the journal from there."""
        place = os.path.join(self._directory, thing_of(shard))

        def make() -> StateShard:
            os.makedirs(os.path.join(place, "files"), exist_ok=True)
            if tier is not None:
                tier.prepare(place)
            return StateShard(
                journal,
                place,
                self._clock,
                post=post,
                run=self._run,
                settings=self._settings,
                tier=tier,
                on_failure=failed,
            )

        try:
            return make()
        except StorageError:
            if (journal.start > 0 and tier is None) or not os.path.isdir(place):
                raise
            shutil.rmtree(place)
            return make()

    def _run(self, call: Callable[[], None]) -> None:
        self._threads.submit(call)
