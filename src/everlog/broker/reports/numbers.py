"""The numbers of a broker at one moment, for both `$SYS` topics and metrics."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from everlog.broker.connection import Connections
from everlog.broker.delivery import Router
from everlog.broker.expiry_clock import NEVER_DUE_US
from everlog.broker.groups import GroupRegistry, GroupState
from everlog.broker.metrics import Metrics
from everlog.broker.registry import Registry
from everlog.broker.reports.memory_use import peak_bytes, resident_bytes
from everlog.broker.reports.survey import Survey, Surveyor
from everlog.broker.reports.unread_loss import RetentionState, UnreadLoss
from everlog.store import FreeSpace, ShardStatistics

MOST_GROUPS = 100  # shared groups reported by name, those with the largest lag


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers; counts are since the start, and `survey` is a little older, since it takes more than one turn."""

    uptime_s: float = 0.0
    connected: int = 0
    pending: int = 0  # peers that have sent no CONNECT yet
    sessions: int = 0
    live_subscriptions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    retained_damaged: int = 0  # found at the start and set aside
    topics: int = 0
    received: int = 0
    kept: int = 0
    lost: int = 0
    read_s: float = 0.0  # CPU of reading the log for those who are behind
    stored: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    held_bytes: int = 0
    copies_bytes: int = 0
    audiences_bytes: int = 0
    audience_resets: int = 0
    sessions_bytes: int = 0
    cold_bytes: int = 0
    cold_waits: int = 0
    groups_bytes: int = 0
    groups_shortened: int = 0
    spills: int = 0
    spilled: int = 0  # sessions and groups that read the log because of that
    spilled_bytes: int = 0  # of the log, from the slowest of them on
    groups: int = 0
    durable_groups: int = 0
    group_redelivered: int = 0
    group_timeouts: int = 0
    group_lost: int = 0
    largest_groups: tuple[GroupState, ...] = ()  # by lag
    shards: tuple[ShardStatistics, ...] = ()
    failed: tuple[bool, ...] = ()  # for each shard, whether it can't be written
    disk_free_bytes: int = 0
    disk_reserve_bytes: int = 0  # at this free space no more messages are kept
    disk_full: bool = False
    survey: Survey = field(default_factory=Survey)
    counters: Metrics = field(default_factory=Metrics)
    retention: RetentionState = field(default_factory=RetentionState)
    next_loss_s: float | None = None  # until the next segment is old enough to be deleted
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    stored_bytes: int = 0  # of the log
    clock_doubted: bool = False  # the wall clock has jumped, and nothing expires


class Reports:
    """The source of one broker's numbers."""

    def __init__(
        self,
        router: Router,
        registry: Registry,
        groups: GroupRegistry,
        connections: Connections,
        space: FreeSpace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.unread_loss = UnreadLoss(registry, groups, router.catchup, len(router.log.shards))
        self._router = router
        self._registry = registry
        self._groups = groups
        self._connections = connections
        self._space = space or FreeSpace("", 0)
        self._surveyor = Surveyor(registry, connections.metrics, router.log, clock)
        self.since = 0.0  # when the broker started, by the clock of connections

    async def take(self) -> Numbers:
        """Count everything, letting others run meanwhile."""
        return self.count(await self._surveyor.take())

    def count(self, survey: Survey) -> Numbers:
        """Return all present numbers, with this survey."""
        router, connections, log = self._router, self._connections, self._router.log
        states = self._groups.states()
        retention, shards = self.unread_loss.state, tuple(log.statistics())
        next_us = retention.next_us
        return Numbers(
            uptime_s=connections.traffic.time() - self.since,
            connected=len(self._registry.clients),
            pending=len(connections.gate.pending),
            sessions=len(self._registry),
            live_subscriptions=router.audiences.filters,
            retained=len(router.retained),
            retained_bytes=router.retained.size_bytes,
            retained_damaged=len(router.retained.saving.damaged),
            topics=router.table.count,
            received=router.messages_in - router.own.count,
            kept=router.messages_kept,
            lost=router.catchup.lost,
            read_s=router.catchup.read_s,
            stored=sum(shard.committed - shard.start for shard in log.shards),
            bytes_in=connections.traffic.bytes_in,
            bytes_out=connections.traffic.bytes_out,
            held_bytes=router.pending.waiting_bytes,
            copies_bytes=self._registry.copies.total_bytes,
            audiences_bytes=router.audiences.size_bytes,
            audience_resets=router.audiences.resets,
            sessions_bytes=self._registry.held_bytes,
            cold_bytes=0 if router.catchup.cold is None else router.catchup.cold.held_bytes,
            cold_waits=0 if router.catchup.cold is None else router.catchup.cold.waits,
            groups_bytes=self._groups.size_bytes,
            groups_shortened=self._groups.shortened,
            spills=router.spills.count,
            spilled=len(router.spills),
            spilled_bytes=router.spills.held_bytes,
            groups=len(states),
            durable_groups=len(self._groups),
            group_redelivered=self._groups.counters.redelivered,
            group_timeouts=self._groups.counters.timeouts,
            group_lost=self._groups.counters.lost,
            largest_groups=tuple(sorted(states, key=lambda one: -one.lag)[:MOST_GROUPS]),
            shards=shards,
            stored_bytes=sum(shard.segment_bytes for shard in shards),
            memory_bytes=(memory_bytes := resident_bytes()),
            memory_peak_bytes=max(memory_bytes, peak_bytes()),
            failed=tuple(shard.failure is not None or shard.trouble is not None for shard in log.shards),
            disk_free_bytes=self._space.free_bytes,
            disk_reserve_bytes=self._space.reserve_bytes,
            disk_full=self._space.is_low,
            survey=survey,
            counters=replace(connections.metrics),
            retention=replace(retention),
            next_loss_s=None if next_us is None else max(0, next_us - router.now_us()) / 1_000_000,
            clock_doubted=router.due_us() == NEVER_DUE_US,
        )
