"""The message log of a cluster, as one broker has it: what the broker asks of a log, over owned and followed shards.

Two threads of its own may wait for database and bucket: one takes in what others have committed, one stores complete
segments. The event loop never does.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from everlog.base import EverlogError
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.cluster_shard import ClusterShard
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.schema import read_store
from everlog.commitlog import Disk, RealDisk
from everlog.store import LogStore
from everlog.tiering import Bucket

TEND_S = 1.0


class Repeated:
    """A thread that does something again and again, at once if it is woken."""

    def __init__(self, name: str, act: Callable[[], None], period_s: float) -> None:
        self._act = act
        self._period_s = period_s
        self._wanted = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do it soon."""
        self._wanted.set()

    def stop(self) -> None:
        """Do it no more."""
        self._is_stopping = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wanted.wait(self._period_s)
            self._wanted.clear()
            if not self._is_stopping:
                self._act()


class ClusterLog(LogStore):
    """All shards of a cluster. One thread appends; any may read with a reader of its own."""

    def __init__(self, shards: list[ClusterShard], settings: ClusterSettings) -> None:
        super().__init__([shard.log for shard in shards])
        self.cluster_shards = shards
        self.follow_trouble: EverlogError | None = None  # why other brokers' shards can't be followed just now
        self._follower = Repeated("everlog-follow", self._follow, settings.poll_s)
        self._keeper = Repeated("everlog-upload", self.tend, TEND_S)

    @classmethod
    def join(
        cls,
        directory: str,
        database: ClusterDatabase,
        bucket: Bucket,
        settings: ClusterSettings | None = None,
        *,
        disk: Disk | None = None,
    ) -> "ClusterLog":
        """Open the local copy of a cluster's log, whose tables must be there, and follow it."""
        settings = settings or ClusterSettings()
        disk = disk if disk is not None else RealDisk()
        store = read_store(database)
        with ExitStack() as opened:
            shards = []
            for number in range(store.shards):
                place = f"{directory}/shard-{number}"
                shard = ClusterShard.open(number, place, store.identity, database, bucket, disk, settings)
                opened.callback(shard.close)
                shards.append(shard)
            opened.pop_all()
        return cls(shards, settings)

    def own(self, epochs: Mapping[int, int], incarnation: int) -> None:
        """Own shards from now on at epochs that were claimed, as an incarnation; it may wait for the database."""
        for number, epoch in epochs.items():
            self.cluster_shards[number].own(epoch, incarnation)

    def release(self, numbers: list[int]) -> None:
        """Own shards no more, and follow them; what was not committed is dropped."""
        for number in numbers:
            self.cluster_shards[number].release()

    def offer(self, shard: int, epoch: int, segment: int, base: int, body: bytes) -> None:
        """Take a batch that the owner of a shard says it has committed."""
        self.cluster_shards[shard].offer(epoch, segment, base, body)
        self._follower.wake()

    def catch_up(self) -> None:
        """Take in what others have committed so far; it may wait for database and bucket."""
        for shard in self.cluster_shards:
            shard.catch_up()

    def tend(self) -> None:
        """Store complete segments of owned shards, and empty what is superfluous in their tails."""
        for shard in self.cluster_shards:
            shard.tend()

    def _follow(self) -> None:
        trouble = None
        for shard in self.cluster_shards:
            try:
                shard.catch_up()
            except EverlogError as error:
                trouble = error
        self.follow_trouble = trouble

    def close(self) -> None:
        """Commit what was appended, and let go of everything."""
        self._follower.stop()
        self._keeper.stop()
        with ExitStack() as closing:
            for sealed, shard in zip(self._sealed, self.cluster_shards, strict=True):
                closing.callback(shard.close)
                closing.callback(sealed.close)
