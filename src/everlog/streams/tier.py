"""What a state shard has in a bucket, as its owner of an epoch opens it: packs, their manifest, a copy of the journal.

```
FOLDER/manifest   which packs count (a journal of its own, fenced by the shard's epoch)
FOLDER/packs      files of streams
FOLDER/journal    the journal, or a copy of one that is elsewhere
```
`prepare` brings the shard's local directory to where it can begin: one that is too old for the journal, or empty, is
made anew from the manifest, with no file in it.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from everlog.base import StorageError
from everlog.streams.catalogue import Catalogue
from everlog.streams.pack_index import PackIndex, row_of_facts, time_of_row
from everlog.streams.ports import Archive, Journal, SharedJournal
from everlog.streams.shard_settings import ARCHIVE_US
from everlog.tiering import Bucket, BucketPacks, JournalArchive, PackManifest, Packs

UPLOADS, FETCHES = 2, 8  # at a time, of all shards of a process
_RESTORE = "restore the shard from its bucket: everlog persist restore"


class TierThreads:
    """The threads that wait for the bucket, for all shards of a process; they start when they are first needed."""

    def __init__(self) -> None:
        self._uploads = ThreadPoolExecutor(UPLOADS, "everlog-upload")
        self._fetches = ThreadPoolExecutor(FETCHES, "everlog-fetch")

    def upload(self, work: Callable[[], None]) -> None:
        """Do something that takes as long as an upload."""
        self._uploads.submit(work)

    def fetch(self, work: Callable[[], None]) -> None:
        """Do something that somebody waits for."""
        self._fetches.submit(work)

    def close(self) -> None:
        """Finish what was begun, and end."""
        self._fetches.shutdown(cancel_futures=True)
        self._uploads.shutdown(cancel_futures=True)


class Tier:
    """The bucket's part of one shard at one epoch; `open` makes it, on any thread, before the shard is made."""

    def __init__(self, bucket: Bucket, folder: str, journal: Journal, upload: "Run", fetch: "Run") -> None:
        self.bucket = bucket
        self.folder = f"{folder}/packs"
        self.journal = journal
        self.manifest = PackManifest(bucket, f"{folder}/manifest", journal.epoch)
        self.packs = BucketPacks(bucket)
        self.upload = upload
        self.fetch = fetch
        self._copy: JournalArchive | None = None

    @classmethod
    def open(
        cls,
        bucket: Bucket,
        folder: str,
        journal: Journal,
        upload: "Run",
        fetch: "Run",
        *,
        is_copied: bool,
        archive_us: int = ARCHIVE_US,
    ) -> "Tier":
        """Take the manifest over; `is_copied` says that the journal is not in the bucket itself and is copied there."""
        tier = cls(bucket, folder, journal, upload, fetch)
        tier.manifest.open()
        if is_copied:
            tier._copy = JournalArchive(journal, bucket, f"{folder}/journal", period_s=archive_us / 1e6)
        return tier

    def prepare(self, directory: str) -> None:
        """Bring the shard's directory to where it can begin."""
        os.makedirs(directory, exist_ok=True)
        catalogue = Catalogue(f"{directory}/catalogue.db")
        try:
            self._prepare(catalogue, directory)
            catalogue.sync()
        finally:
            catalogue.close()

    @property
    def archive(self) -> Archive:
        """How far the journal is in the bucket."""
        return self._copy or CommittedArchive(self.journal)

    def trim(self, packed: int, kept: int) -> None:
        """Allow that the journal go below `packed`, and what is in the bucket of it below `kept`."""
        if self._copy is not None:
            self._copy.trim(kept)
        if isinstance(self.journal, SharedJournal):
            self.journal.allow_trim(packed if self._copy is not None else kept)

    def close(self) -> None:
        """Let go of everything."""
        if self._copy is not None:
            self._copy.close()

    def _prepare(self, catalogue: Catalogue, directory: str) -> None:
        index = PackIndex(catalogue)
        is_new = catalogue.whole == 0 and not catalogue.count()
        if is_new or catalogue.whole < self.journal.start:
            self._begin_anew(catalogue, index, directory)
            return
        for position, told in self.manifest.read(index.manifest):
            index.take(position, told, catalogue.time_us)
        self._check(index.below)

    def _begin_anew(self, catalogue: Catalogue, index: PackIndex, directory: str) -> None:
        """Make the catalogue from the manifest; files come when they are asked for."""
        packs = Packs()
        for _, told in self.manifest.read(0):
            packs.take(told)
        self._check(packs.below)
        if packs.below < self.journal.start:
            raise StorageError(
                f"packs have what is below {packs.below}, and the journal begins at {self.journal.start}",
                hint="what is between is lost here: restore the shard from a backup",
            )
        rows = [row_of_facts(file.facts) for _, file in packs.files.values()]
        shutil.rmtree(f"{directory}/files", ignore_errors=True)
        index.begin_anew()
        catalogue.begin_anew([], 0, 0)
        for position, told in self.manifest.read(0):
            index.take(position, told, catalogue.time_us)
        time_us = max((time_of_row(row) for row in rows), default=0)
        catalogue.begin_anew(rows, packs.below, time_us)
        index.let_all_go()

    def _check(self, below: int) -> None:
        if below > self.journal.committed:
            raise StorageError(
                f"packs have what is below {below}, and the journal ends at {self.journal.committed}", hint=_RESTORE
            )


class CommittedArchive:
    """The archive of a journal that is in the bucket itself: what is committed is archived."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def end(self) -> int:
        """Everything below this position is in the bucket."""
        return self._journal.committed

    def want(self, end: int, done: Callable[[int], None]) -> None:
        """Tell at once: nobody asks before it is committed."""
        done(self._journal.committed)


Run = Callable[[Callable[[], None]], None]
