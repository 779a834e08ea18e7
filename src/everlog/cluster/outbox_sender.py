"""Wills from the outbox to the log: the owner of a shard appends those of its topics, once, and takes them off.

By its number in the outbox a will is appended once, whoever owned the shard before: the outbox is an origin of its own.
A will is taken off when its batch is committed. Owned by the event loop's thread; the database is asked on another.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from everlog.base import PublisherName, name_publisher
from everlog.broker import Registry
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.origins import OUTBOX_ORIGIN
from everlog.cluster.outbox import Outbox, OutboxRow
from everlog.mqtt import Publish, unpack_pairs
from everlog.sessions import unpack_will

_RETAIN = 0x01


class OutboxSender:
    """Empties the outbox of the shards that this broker owns."""

    def __init__(self, outbox: Outbox, log: ClusterLog, registry: Registry, thread: ThreadPoolExecutor) -> None:
        self._outbox = outbox
        self._log = log
        self._router = registry.router
        self._thread = thread
        self._ends: dict[int, tuple[int, int]] = {}  # shard -> epoch, and where the last will that was appended ends

    async def step(self) -> None:
        """Append what waits, and take off what is committed; it may wait for the database."""
        loop = asyncio.get_running_loop()
        owned = [shard.number for shard in self._log.cluster_shards if shard.epoch]
        if not owned:
            return
        waiting = await loop.run_in_executor(self._thread, self._outbox.waiting_in, owned)
        for shard, rows in waiting.items():
            done = self._append(shard, rows)
            if done:
                await loop.run_in_executor(self._thread, self._outbox.take_off, shard, done)

    def _append(self, number: int, rows: list[OutboxRow]) -> int:
        """Append wills that are not in the log; return up to which number those of before are committed."""
        shard = self._log.cluster_shards[number]
        epoch = shard.epoch
        if not epoch:
            return 0  # lost meanwhile
        before = shard.last_number(OUTBOX_ORIGIN)
        known, end = self._ends.get(number, (0, 0))
        is_committed = known != epoch or shard.log.committed >= end  # what a takeover has found is committed
        new = [row for row in rows if row.number > before]
        for row in new:
            self._append_one(number, row)
        if new:
            self._ends[number] = epoch, shard.log.end
            self._router.ask_turn()
        return before if is_committed else 0

    def _append_one(self, number: int, row: OutboxRow) -> None:
        will = unpack_will(row.will)
        assert will is not None
        will = unpack_pairs(will)
        properties = replace(will.properties, will_delay_interval=None)
        packet_id = 1 if will.qos else 0
        router = self._router
        run = router.own.run(Publish(will.topic, will.payload, will.qos, will.retain, False, packet_id, properties))
        if run is None:
            return  # as any message of the broker's own for which there is no room
        if run.any_flags & _RETAIN:
            for at in router.retain(run, None):
                run.columns.flags[at] &= ~_RETAIN
        named = PublisherName(name_publisher(row.client_id, row.user)) if router.names_publishers else None
        shard = self._log.cluster_shards[number]
        columns, now_us = run.columns, router.now_us()
        shard.append_from(OUTBOX_ORIGIN, row.number, columns, run.start, run.stop, now_us, router.table, named)
