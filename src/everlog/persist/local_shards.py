"""The state shards of one data directory, which one process has open at a time.

`DIR/persist.json` says how many shards there are, for ever; `DIR/shard-N` has the journal and the views of one. It is
made when the shard is first used. With a bucket, streams and journals go there too (`everlog.streams.Tier`), and
`persist.json` in the bucket says whose it is.
"""

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from everlog.base import StorageError, UsageError
from everlog.persist.ports import Begin, Failed, Post
from everlog.store import read_record, write_record
from everlog.streams import Clock, LocalJournal, Shard, ShardSettings, StateShard, Tier, TierThreads
from everlog.tiering import Bucket, check_bucket

FILE_NAME = "persist.json"
MOST_SHARDS = 254


class PersistRecord(Struct, frozen=True):
    """The contents of the file."""

    shards: int
    version: int = 1
    store: str = ""  # who it is, once there is a bucket


def shard_directories(directory: str) -> list[str]:
    """Return where the state shards of a data directory are, those that were never used included."""
    known = read_record(directory, FILE_NAME, PersistRecord, (1,), "restore it from a backup")
    if known is None:
        raise UsageError(f"{directory} has no streams", hint="give the directory of a persist server, or of a broker")
    return [os.path.join(directory, f"shard-{shard}") for shard in range(known.shards)]


class LocalShards:
    """Opens the shards of a directory; see `ShardOpener`."""

    def __init__(
        self,
        directory: str,
        clock: Clock,
        shards: int | None = None,
        settings: ShardSettings | None = None,
        bucket: Bucket | None = None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        self._bucket = bucket
        self._bucket_threads = TierThreads() if bucket is not None else None
        self._lock = threading.Lock()  # guards the first look at the bucket
        self._is_ours = False
        self.shards = self._agree(shards)
        self._settings = (settings or ShardSettings()).shared_by(self.shards)

    def open(self, shard: int) -> Begin:
        """Open the journal of a shard."""
        place = os.path.join(self._directory, f"shard-{shard}")
        os.makedirs(os.path.join(place, "files"), exist_ok=True)
        journal = LocalJournal.open(os.path.join(place, "journal"))
        try:
            tier = self._open_tier(shard, journal, place)
        except BaseException:
            journal.close()
            raise

        def begin(post: Post, failed: Failed) -> Shard:
            try:
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
            except BaseException:
                if tier is not None:
                    tier.close()
                journal.close()
                raise

        return begin

    def close(self) -> None:
        """End the threads that worked for the shards; after they are closed."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._bucket_threads is not None:
            self._bucket_threads.close()

    def _open_tier(self, shard: int, journal: LocalJournal, place: str) -> Tier | None:
        if self._bucket is None or self._bucket_threads is None:
            return None
        with self._lock:
            if not self._is_ours:
                check_bucket(self._bucket)
                self._claim(self._bucket)
                self._is_ours = True
        tier = Tier.open(
            self._bucket,
            f"shard-{shard}",
            journal,
            self._bucket_threads.upload,
            self._bucket_threads.fetch,
            is_copied=True,
            archive_us=self._settings.archive_us,
        )
        try:
            tier.prepare(place)
        except BaseException:
            tier.close()
            raise
        return tier

    def _claim(self, bucket: Bucket) -> None:
        """Make the bucket that of this directory; refuse one that is another's."""
        known = read_record(self._directory, FILE_NAME, PersistRecord, (1,), "restore it from a backup")
        assert known is not None
        if not known.store:
            known = replace(known, store=uuid.uuid4().hex)
            write_record(self._directory, FILE_NAME, known)
        found = bucket.create(FILE_NAME, json.encode(known))
        if found is None:
            return
        try:
            other = json.decode(found, type=PersistRecord)
        except DecodeError as error:
            raise StorageError(f"{FILE_NAME} in the bucket can't be read: {error}", hint="use another bucket") from None
        if other != known:
            raise UsageError(
                "the bucket is that of another directory",
                hint="use another bucket or prefix, or restore that directory: everlog persist restore",
            )

    def _run(self, call: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "everlog-persist-files")
        self._threads.submit(call)

    def _agree(self, wanted: int | None) -> int:
        """Return how many shards there are: what the file says, or, if there is none, what is wanted."""
        if wanted is not None and not 1 <= wanted <= MOST_SHARDS:
            raise UsageError(f"there are 1 to {MOST_SHARDS} state shards, not {wanted}")
        known = read_record(self._directory, FILE_NAME, PersistRecord, (1,), "restore it from a backup")
        if known is None:
            known = PersistRecord(wanted or 1)
            try:
                os.makedirs(self._directory, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{self._directory} can't be made: {error}", hint="choose another place") from error
            write_record(self._directory, FILE_NAME, known)
        elif wanted is not None and wanted != known.shards:
            raise UsageError(
                f"{self._directory} has {known.shards} state shards, not {wanted}",
                hint="their number is chosen when the directory is made",
            )
        return known.shards
