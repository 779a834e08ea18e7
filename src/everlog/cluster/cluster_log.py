"""The message log of a cluster, as one broker has it: what the broker asks of a log, over owned and followed shards.

Two threads of its own may wait for database and bucket: one takes in what others have committed, one stores complete
segments. The event loop never does.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from everlog.base import EverlogError
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.cluster_shard import ClusterShard
from everlog.cluster.commit_rounds import CommitRounds
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.history import end_query
from everlog.cluster.postgres_tail import PostgresTail
from everlog.cluster.schema import read_store
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits
from everlog.commitlog import Disk, RealDisk, RetentionPlan, Worker
from everlog.store import LogStore, Positions
from everlog.tiering import Bucket, Database

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

TEND_S = 1.0


class Repeated:
    """A thread that does something again and again, at once if it is woken."""

    def __init__(self, name: str, act: Callable[[], None], period_s: float) -> None:
        self._act = act
        self._period_s = period_s
        self._wakes: SimpleQueue[None] = SimpleQueue()  # cheaper than an event; at most a few are in it
        self._is_awake = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do it soon."""
        if not self._is_awake:
            self._is_awake = True
            self._wakes.put(None)

    def stop(self) -> None:
        """Do it no more."""
        self._is_stopping = True
        self._wakes.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            with suppress(Empty):
                self._wakes.get(timeout=self._period_s)
            self._is_awake = False  # before it is done: who wakes it later wants it again
            if not self._is_stopping:
                self._act()


class ClusterLog(LogStore):
    """All shards of a cluster. One thread appends; any may read with a reader of its own."""

    def __init__(
        self,
        shards: list[ClusterShard],
        settings: ClusterSettings,
        commits: TailCommits,
        committing: Worker,
        connection: Database | None = None,
    ) -> None:
        super().__init__([shard.log for shard in shards])
        self.cluster_shards = shards
        self._commits = commits
        self._committing = committing
        self._connection = connection  # by which all shards of others are followed
        ends = [f"(select {shard.number} as shard, ({end_query(shard.number)}) as stop)" for shard in shards]
        self._ends = " union all ".join(ends).encode()
        self._offered: set[int] = set()  # shards with batches that are to be taken in
        self._poll_s = settings.poll_s
        self._poll_at = 0.0
        self.tail_limit_bytes = settings.tail_bytes
        self.ends: dict[int, int] = {}  # of shards, as the database said at the last look
        self._seen = [(0, 0)] * len(shards)  # where each ended here and in the database, at the last look
        self.starts = [0] * len(shards)  # below these offsets the cluster has nothing any more, as far as is known
        self.follow_trouble: EverlogError | None = None  # why other brokers' shards can't be followed just now
        self._follower = Repeated("everlog-follow", self._follow, settings.poll_s)
        self._keeper = Repeated("everlog-upload", self.tend, TEND_S)
        commits.filled = self._keeper.wake

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
            connection = database.connect()
            opened.callback(connection.close)
            commits = TailCommits(PostgresTail(database))
            opened.callback(commits.close)
            rounds = CommitRounds(commits)
            committing = Worker("everlog-commit", rounds.step, rounds.gave_up, rounds.rest_s)
            commits.wake = committing.wake
            opened.callback(committing.stop)
            shards = []
            for number in range(store.shards):
                place = f"{directory}/shard-{number}"
                shard = ClusterShard.open(
                    number,
                    place,
                    store.identity,
                    database,
                    bucket,
                    disk,
                    settings,
                    connection=connection,
                    commits=commits,
                )
                opened.callback(shard.close)
                rounds.add(shard.log, partial(_target_of, shard))
                shards.append(shard)
            opened.pop_all()
        return cls(shards, settings, commits, committing, connection)

    def own(self, epochs: Mapping[int, int], incarnation: int) -> None:
        """Own shards from now on at epochs that were claimed, as an incarnation; it may wait for the database."""
        for number, epoch in epochs.items():
            self.cluster_shards[number].own(epoch, incarnation)

    def release(self, numbers: list[int]) -> None:
        """Own shards no more, and follow them; what was not committed is dropped."""
        for number in numbers:
            self.cluster_shards[number].stop()
        for number in numbers:
            self.cluster_shards[number].release()

    def stuck_s(self, now: float) -> float:
        """Return for how long the oldest commit has waited for the database, by the monotonic clock."""
        since = [shard.waits_since for shard in self.cluster_shards]
        return max((now - one for one in since if one is not None), default=0.0)

    def offer(self, shard: int, epoch: int, segment: int, base: int, body: bytes, start: int = 0) -> None:
        """Hold a batch that the owner of a shard says it has committed; it begins behind `start` bytes of something."""
        self.cluster_shards[shard].offer(epoch, segment, base, body, start)
        self._offered.add(shard)

    def take_offered(self) -> None:
        """Take in what was offered since the last call; what must wait is left to the thread that follows."""
        while self._offered:
            if self.cluster_shards[self._offered.pop()].take_offered():
                self._follower.wake()

    def begin_use(self, left_behind: Callable[[EverlogError], object]) -> None:
        """Leave nothing out from now on: if what is missing here is kept no more, tell, from any thread.

        A broker that goes on behind such a gap would lack retained messages, and sessions would not be told of it.
        """
        for shard in self.cluster_shards:
            shard.on_left_behind = left_behind

    def catch_up(self) -> None:
        """Take in what others have committed so far; it may wait for database and bucket."""
        for shard in self.cluster_shards:
            shard.catch_up()

    def tend(self) -> None:
        """Store complete segments of owned shards, and empty what is superfluous in their tails."""
        for shard in self.cluster_shards:
            shard.tend()

    @property
    def limits_retention(self) -> bool:
        """Whether something may go: the cluster decides, and the copy follows."""
        return True

    def plan_retention(self, now_us: int, keep_from: Positions | None = None) -> list[RetentionPlan]:
        """Return for each shard what of the copy the cluster no longer has."""
        return [log.plan_trim(below) for log, below in zip(self.shards, self._trims(keep_from), strict=True)]

    def run_retention(self, now_us: int, keep_from: Positions | None = None) -> None:
        """Remove from the copy what the cluster no longer has."""
        for log, sealed, below in zip(self.shards, self._sealed, self._trims(keep_from), strict=True):
            log.trim(below)
            sealed.trim()

    def _trims(self, keep_from: Positions | None) -> list[int]:
        return self.starts if keep_from is None else [*map(min, self.starts, keep_from)]

    def _follow(self) -> None:
        trouble = None
        behind = [shard for shard in self.cluster_shards if shard.take_offered()]
        if self._connection is not None and time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + self._poll_s
            try:
                behind += self._poll(self._connection)
            except EverlogError as error:
                trouble = error
        for shard in dict.fromkeys(behind):
            try:
                here = shard.catch_up()
                self._seen[shard.number] = here, here
            except EverlogError as error:
                trouble = error
        self.follow_trouble = trouble

    def _poll(self, connection: Database) -> list[ClusterShard]:
        """Return the shards of others that are behind the database, asked for all at once.

        Of a shard whose batches come by the link, the last ones are on their way: it is behind only if it has not
        reached the end that it had at the last look.
        """

        def act(cursor: "Cursor") -> dict[int, int | None]:
            cursor.execute(self._ends)
            return dict(cursor.fetchall())

        self.ends = ends = {shard: end or 0 for shard, end in connection.call(act).items()}
        behind = []
        for shard in self.cluster_shards:
            here, end = shard.log.committed, ends.get(shard.number, 0)
            was_here, last_end = self._seen[shard.number]
            self._seen[shard.number] = here, end
            if not shard.epoch and here != end and not (was_here < here and last_end <= here < end):
                behind.append(shard)
        return behind

    def close(self) -> None:
        """Commit what was appended, and let go of everything."""
        self._follower.stop()
        self._keeper.stop()
        with ExitStack() as closing:
            if self._connection is not None:
                closing.callback(self._connection.close)
            closing.callback(self._commits.close)
            closing.callback(self._committing.stop)
            for sealed, shard in zip(self._sealed, self.cluster_shards, strict=True):
                closing.callback(shard.close)
                closing.callback(sealed.close)


def _target_of(shard: ClusterShard) -> ShardTarget | None:
    return shard.target
