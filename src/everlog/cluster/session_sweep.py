"""Sessions and wills that nobody living holds: taken by the owner of their client id's shard when something is due.

A session is taken when it has expired or its will may be due, and after a while when a dead broker left it: till then
it waits for its client, wherever that comes back. What becomes of it is then up to the registry, as for any session
that is away. Wills leave by the outbox. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from everlog.base import EverlogError
from everlog.broker import Registry
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.outbox import Outbox
from everlog.cluster.outbox_sender import OutboxSender
from everlog.cluster.session_claims import SessionClaims
from everlog.ownership import Overruled
from everlog.store import shard_of

PERIOD_S = 1.0
PAGE = 1000  # client ids that are looked at together
_log = logging.getLogger("everlog.cluster")


class SessionSweep:
    """A task that looks again and again what is due."""

    def __init__(
        self,
        claims: SessionClaims,
        log: ClusterLog,
        registry: Registry,
        thread: ThreadPoolExecutor,
        sweep: Callable[[list[str]], None],
        overruled: Callable[[EverlogError], None],
    ) -> None:
        self._claims = claims
        self._log = log
        self._registry = registry
        self._thread = thread
        self._sweep = sweep
        self._overruled = overruled
        self._outbox = OutboxSender(Outbox(claims.database, claims.incarnation, claims.shards), log, registry, thread)

    async def run(self) -> None:
        """Do what is due until the task is cancelled; while the database can't be asked, it waits."""
        while True:
            try:
                await self._take_unattended()
                await self._outbox.step()
            except Overruled as error:
                self._overruled(error)
                return
            except EverlogError as error:
                _log.warning("sessions that nobody holds can't be looked at just now: %s", error)
            await asyncio.sleep(PERIOD_S)

    async def _take_unattended(self) -> None:
        shards = self._log.cluster_shards
        if not any(shard.epoch for shard in shards):
            return
        loop, last = asyncio.get_running_loop(), ""
        now_us = self._registry.router.due_us()
        while True:
            found = await loop.run_in_executor(self._thread, self._claims.unattended, now_us, last, PAGE)
            mine = [one for one in found if shards[shard_of(one.encode(), len(shards))].epoch]
            self._sweep(mine)
            if len(found) < PAGE:
                return
            last = found[-1]
