"""An owner of a state shard whose streams go to a bucket, with uploads and fetches that a test does one by one."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from everlog.base import Unavailable
from everlog.streams import ShardSettings, Tier
from everlog.tiering import Bucket, MemoryBucket, Packs, read_packs
from tests.state_shards import JournalDisk, MemoryJournal, Owner, TestClock

FOLDER = "shard-0"
QUICK = ShardSettings(
    apply_us=0, sync_us=1, keep_records=0, upload_us=1_000_000, history_us=0, most_files=0, unnamed_us=3600_000_000
)


class FlakyBucket:
    """A bucket in memory that loses requests and answers now and then, while it is flaky."""

    def __init__(self, random: Random) -> None:
        self.inner = MemoryBucket()
        self.is_flaky = False
        self._random = random

    def __getattr__(self, name: str) -> Any:
        act = getattr(self.inner, name)

        def call(*arguments: Any) -> Any:
            lost = self._random.random() if self.is_flaky else 1.0
            if lost < 0.1:
                raise Unavailable("the request was lost")
            answer = act(*arguments)
            if lost < 0.2:
                raise Unavailable("the answer was lost")
            return answer

        return call


class SharedMemoryJournal(MemoryJournal):
    """A journal that other owners open too: it keeps what is in no pack."""

    allowed = 0

    def allow_trim(self, below: int) -> None:
        self.allowed = max(self.allowed, below)

    def trim(self, below: int) -> None:
        super().trim(min(below, self.allowed))


class TieredOwner(Owner):
    """A shard with a bucket. With `manual`, work that waits for the bucket is done by `work`."""

    def __init__(
        self,
        directory: Path,
        bucket: Bucket | None = None,
        journal: Any = None,
        *,
        clock: TestClock | None = None,
        settings: ShardSettings = QUICK,
        is_manual: bool = False,
        is_copied: bool = False,
        is_commit_manual: bool = False,
    ) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self.waiting: list[Callable[[], None]] = []
        run = self.waiting.append if is_manual else lambda work: work()
        disk = journal if isinstance(journal, JournalDisk) else JournalDisk()
        if journal is None or isinstance(journal, JournalDisk):
            journal = SharedMemoryJournal(disk, manual=is_commit_manual)
        tier = Tier.open(self.bucket, FOLDER, journal, upload=run, fetch=run, is_copied=is_copied)
        tier.prepare(str(directory))
        super().__init__(directory, journal, clock=clock, settings=settings, tier=tier)
        self.disk = disk

    def work(self) -> None:
        """Do what waits for the bucket."""
        while self.waiting:
            self.waiting.pop(0)()
            self.run_posted()

    def round(self) -> None:
        """Let a round of packing go by, and its trims."""
        self.tick(2)
        self.work()
        self.tick(0.1)

    def packs(self) -> Packs:
        """Return what the manifest names."""
        return read_packs(self.bucket, f"{FOLDER}/manifest")

    def reopen_here(self) -> "TieredOwner":
        """Close the shard, and open it again on the same disk."""
        self.shard.close()
        return self.next_owner(is_zombie=True)

    def next_owner(self, directory: Path | None = None, *, is_zombie: bool = False, **more: Any) -> "TieredOwner":
        """Let another owner take the shard over, on a disk of its own if one is given; this one dies, or goes on."""
        if not is_zombie and not self.shard.is_closed:
            self.shard.abandon()
        more.setdefault("settings", self.shard.settings)
        return TieredOwner(directory or self.directory, self.bucket, self.disk, clock=self.clock, **more)
