"""The state shards of one data directory, which one process has open at a time.

`DIR/persist.json` says how many shards there are, for ever; `DIR/shard-N` has the journal and the views of one. It is
made when the shard is first used.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from everlog.base import StorageError, UsageError
from everlog.persist.ports import Begin, Failed, Post
from everlog.store import read_record, write_record
from everlog.streams import Clock, LocalJournal, Shard, ShardSettings, StateShard

FILE_NAME = "persist.json"
MOST_SHARDS = 254


class PersistRecord(Struct, frozen=True):
    """The contents of the file."""

    shards: int
    version: int = 1


def shard_directories(directory: str) -> list[str]:
    """Return where the state shards of a data directory are, those that were never used included."""
    known = read_record(directory, FILE_NAME, PersistRecord, (1,), "restore it from a backup")
    if known is None:
        raise UsageError(f"{directory} has no streams", hint="give the directory of a persist server, or of a broker")
    return [os.path.join(directory, f"shard-{shard}") for shard in range(known.shards)]


class LocalShards:
    """Opens the shards of a directory; see `ShardOpener`."""

    def __init__(self, directory: str, clock: Clock, shards: int | None = None, settings: ShardSettings | None = None):
        self._directory = directory
        self._clock = clock
        self._settings = settings or ShardSettings()
        self._threads: ThreadPoolExecutor | None = None
        self.shards = self._agree(shards)

    def open(self, shard: int) -> Begin:
        """Open the journal of a shard."""
        place = os.path.join(self._directory, f"shard-{shard}")
        os.makedirs(os.path.join(place, "files"), exist_ok=True)
        journal = LocalJournal.open(os.path.join(place, "journal"))

        def begin(post: Post, failed: Failed) -> Shard:
            try:
                return StateShard(
                    journal,
                    place,
                    self._clock,
                    post=post,
                    run=self._run,
                    settings=self._settings,
                    on_failure=failed,
                )
            except BaseException:
                journal.close()
                raise

        return begin

    def close(self) -> None:
        """End the threads that worked for the shards; after they are closed."""
        if self._threads is not None:
            self._threads.shutdown()

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
