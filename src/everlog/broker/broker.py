"""The broker: the floors brought together, started and stopped."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR, WARNING

from everlog.base import StorageError, TopicTable
from everlog.broker.auth import Security
from everlog.broker.connection import BUFFER_BYTES, Connections
from everlog.broker.delivery import ColdReader, Forwarder, History, Log, ReadRights, RetainedMessages, Router
from everlog.broker.events import event as report
from everlog.broker.groups import Dealers, FarGroups, GroupOptions, GroupRegistry
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.own_loop import OwnLoop
from everlog.broker.registry import Holding, Registry, ReplayRequests, Subscriptions, WriteBehind, restore_sessions
from everlog.broker.reports import Reports, SysTopics, watch_space
from everlog.broker.turns import Turns
from everlog.mqtt import Reason
from everlog.sessions import SessionTables
from everlog.store import ColdStore, FreeSpace, KeepRules
from everlog.topics import parse_filter

_CACHED_TOPICS = 1_000_000  # at least: more than one batch can name, since all of its topics are looked up together
_STOP_S = 10.0
_log = logging.getLogger("everlog.broker")


class Broker:
    """A running broker on one event loop. `start` and `stop` bracket its life."""

    def __init__(
        self,
        log: Log,
        limits: Limits | None = None,
        security: Security | None = None,
        *,
        keep: list[tuple[str, int]] | None = None,
        never: Sequence[str] = (),
        aged: Sequence[str] = (),
        publishers: bool = True,
        seed: int = 0,
        tables: SessionTables | None = None,
        cold: ColdStore | None = None,
        groups: GroupOptions | None = None,
        space: FreeSpace | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        due_us: Callable[[], int] | None = None,
        forwarder: Forwarder | None = None,
        holding: Holding | None = None,
        dealers: Dealers | None = None,
    ) -> None:
        self.log = log
        self.limits = limits = limits or Limits()
        self.metrics = Metrics()
        self.security = security or Security()
        self.space = space
        self.now_us = now_us
        self.holding = holding  # who serves which client id, if there are several brokers
        self._loop = OwnLoop()
        soon = self._loop.soon
        self._looks = False  # at what is committed, soon
        self._sweeper: asyncio.Task[None] | None = None
        table = TopicTable(seed, 2 * limits.topics, 2 * limits.topics_bytes + BUFFER_BYTES)
        retained = RetainedMessages(limits.retained_messages, limits.retained_bytes)
        bounds = (limits.unwritten_bytes, limits.audiences_bytes, limits.spill_bytes, due_us, forwarder)
        max_topics = max(limits.topics, _CACHED_TOPICS)
        self.router = Router(log, table, retained, self._loop.at_end, now_us, max_topics, *bounds)
        self.router.kept.configure(keep or (), never, aged)
        self.router.names_publishers = publishers
        self.router.absent_qos_0 = limits.absent_qos_0
        self.write_behind = None if tables is None else WriteBehind(tables, self.router.routed, retained.saving)
        changed = (lambda key: None) if self.write_behind is None else self.write_behind.mark_group
        options = groups or GroupOptions()
        self.groups = GroupRegistry(self.router, options, self.time, soon, changed, limits.groups_bytes)
        if dealers is not None and self.write_behind is not None:
            self.groups.far = FarGroups(self.groups, dealers, self.write_behind, soon)
        rights = ReadRights(self.security.may_receive, self.metrics) if self.security.has_rules else None
        self.router.use(self.groups, self.write_behind, rights)
        self.history = History(log, self.router.ends, cold)
        rules = KeepRules(filters=tuple(text for text, _ in keep or ()), never=tuple(never))
        replays = ReplayRequests(self.router, self.groups, self.history, self.security, self.metrics, rules)
        shared = (self.security, limits, self.metrics, self.write_behind)
        kept = tuple(parse_filter(text) for text, min_qos in keep or () if min_qos == 0)
        subscriptions = Subscriptions(self.router, self.groups, replays, *shared, kept)
        turns = Turns(soon)
        self.registry = Registry(self.router, self.groups, subscriptions, *shared, turns, holding)
        self.connections = Connections(self.router, self.registry, subscriptions, *shared, soon, turns, holding)
        self._loop.takes_to_end = self.connections.at_end
        self.reports = Reports(self.router, self.registry, self.groups, self.connections, space)

    def time(self) -> float:
        """Return the time of keep-alives and the like, which connections read too."""
        return float(self.connections.traffic.time())

    def sys_topics(self, interval_s: float) -> SysTopics:
        """Return what publishes the `$SYS` topics every so often."""
        return SysTopics(self.reports, self.router.send, interval_s)

    @property
    def closing(self) -> bool:
        """Whether the broker is about to end."""
        return self.connections.gate.is_closing

    def start(self) -> None:
        """Begin on the running event loop."""
        loop = self._loop.begin()
        self.connections.traffic.time = loop.time
        self.reports.since = loop.time()
        self.log.on_commit(self._announced)
        self.log.on_failure(lambda shard, error: self._loop.wake(partial(self._log_failed, shard, error)))
        self.log.on_trouble(lambda shard, error: self._loop.wake(partial(self._log_troubled, shard, error)))
        if self.space is not None:
            watch_space(self.space, self.router)
        if self.history.cold is not None:
            cold = ColdReader(self.history.cold, self.history, self._loop.wake, self.limits.cold_bytes)
            self.router.catchup.read_cold(cold)
        if self.write_behind is not None:
            restore_sessions(self.write_behind.tables, self.registry, self.groups, self.router)
            self.write_behind.start(loop, self.registry.changes, self.registry.sleep)
            if self.holding is not None:
                self.write_behind.on_refused = self.holding.refused
                self.write_behind.on_overruled = self.holding.overruled
                self.holding.start(self.registry)
            if self.groups.far is not None:
                self.groups.far.start()
            if self.limits.session_expiry_s == 0:
                self.registry.end_stored()
            self.registry.sweep(self.time())  # what became due while the broker was down
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, reason: int = Reason.SERVER_SHUTTING_DOWN) -> None:
        """Finish what is under way, tell every client, and end."""
        deadline = self.time() + _STOP_S
        self.connections.deafen()
        # The router commits, here too after the packet ids of QoS 2 messages are stored.
        await self._until(lambda: self.router.is_idle, deadline)
        if self.write_behind is not None:
            await self.write_behind.flush(deadline - self.time())  # so that no answer is held any more
        self.connections.close_all(reason, "server is shutting down")
        await self._until(lambda: self.connections.is_empty, deadline)
        await self._until(lambda: self.router.is_routed, deadline)  # wills, which leave the tables then
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self.groups.far is not None:
            self.groups.far.halt()
        for part in (self.write_behind, self.groups.far, self.holding):
            if part is not None:
                await part.stop()
        self.connections.close()
        if self.router.catchup.cold is not None:
            await asyncio.to_thread(self.router.catchup.cold.close)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition() and self.time() < deadline:  # noqa: ASYNC110 - only at the end, where it may poll
            await asyncio.sleep(0.005)

    def _announced(self, shard: int) -> None:
        """Look soon at what is committed; from any thread, for as many shards as come until then."""
        if not (self.router.committing or self._looks):
            self._looks = True
            self._loop.wake(self._committed)

    def _committed(self) -> None:
        self._looks = False  # first: what is committed from here on is another look
        self.router.committed()
        if self.router.behind or self.router.refuses:
            self.router.behind = self.router.is_behind()
        self.connections.committed()

    def _log_failed(self, shard: int, error: StorageError) -> None:
        report(_log, "log_failed", ERROR, shard=shard, reason=error)
        self.connections.close_outputs(self.router.failed(shard), "the log can't be written")
        for session in self.router.spills.failed():
            self.connections.cut_off(session, "the log can't be written")

    def _log_troubled(self, shard: int, error: StorageError | None) -> None:
        if error is None:
            report(_log, "log_written_again", WARNING, shard=shard)
        else:
            self.metrics.log_troubles += 1
            report(_log, "log_not_written", ERROR, shard=shard, reason=error)
        self._committed()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            now = self.time()
            if self.space is not None:
                watch_space(self.space, self.router)
            self.registry.sweep(now)
            self.groups.sweep(now)
            self.connections.sweep(now)
            self.router.catchup.retry()
            self.router.spills.sweep()
            self._committed()  # nobody is held back longer than this without need
