"""The retention of a cluster as one broker does it: what it owns is dropped in the cluster, its copy follows.

All brokers have a copy of the whole history, so a limit that is a part of the disk is one of the cluster's history: the
disk of a shard's owner decides. Retained messages that no table has yet hold their segments back.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from logging import WARNING

from msgspec.structs import replace

from everlog.app.retention_loop import RetentionLoop, RetentionOptions
from everlog.app.settings import Settings, disk_bytes
from everlog.base import EverlogError
from everlog.broker import Broker, event
from everlog.cluster import ClusterDatabase, ClusterLog, ClusterRetention, RetentionLimits
from everlog.tiering import Bucket

EVERY_S = 10.0
_log = logging.getLogger("everlog.retention")


def cluster_limits_of(settings: Settings, shards: int) -> RetentionLimits:
    """Return how much of a cluster's history stays, by the settings of one of its brokers."""
    log = settings.log
    if isinstance(log.retention_bytes, float):
        size = int(log.retention_bytes * disk_bytes(log.data)) // shards or None  # no limit on a disk without a size
    else:
        size = log.retention_bytes
    return RetentionLimits(log.retention_age, size)


def with_shards(settings: Settings, shards: int) -> Settings:
    """Return settings that say how many shards there are: the cluster does, and `log.shards` does not count."""
    return replace(settings, log=replace(settings.log, shards=shards))


def look_every_s(limits: RetentionLimits) -> float:
    """Return how often to look for what is too old or too much."""
    return EVERY_S if limits.age_s is None else min(EVERY_S, max(0.5, limits.age_s / 10))


class ClusterUpkeep:
    """Keeps the cluster's history within its limits, and removes from the copy what the cluster no longer has."""

    def __init__(
        self,
        log: ClusterLog,
        database: ClusterDatabase,
        bucket: Bucket,
        limits: RetentionLimits,
        stored_retained: Callable[[], Sequence[int]],
    ) -> None:
        """Take in `stored_retained`, which says as of which offsets the tables have retained messages, and may wait."""
        self.retention = ClusterRetention(log, database, bucket, limits, stored_retained)
        self._log = log
        self._every_s = look_every_s(limits)
        self._told = ""

    async def run(self, broker: Broker, data: str, now_us: Callable[[], int]) -> None:
        """Look again and again, and tell which sessions have lost something by it."""
        copy = RetentionLoop(self._log, broker.reports.unread_loss, RetentionOptions(data), now_us)
        try:
            while True:
                await asyncio.sleep(self._every_s)
                await asyncio.to_thread(self.retention.step)
                self._tell(self.retention.trouble)
                try:
                    await copy.once()
                except EverlogError as error:  # the next look may succeed
                    event(_log, "retention_failed", WARNING, reason=error)
        finally:
            self.retention.close()

    def _tell(self, trouble: EverlogError | None) -> None:
        text = "" if trouble is None else str(trouble)
        if text and text != self._told:
            event(_log, "retention_failed", WARNING, reason=text)
        self._told = text
