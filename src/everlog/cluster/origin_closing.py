"""Which QoS 2 messages of a dead broker have arrived: the owners of their shards take nothing more from it, and say.

A packet id was stored with the shard and the number of its message, before that was sent. It counts if the number is
not above the last one that the owner has of that broker; the owner stores it, so that every later answer is the same.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from everlog.base import Unavailable
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.ports import LinkKind, Peers
from everlog.sessions import StoredSession, unpack_unsure, without_unproven

COMMIT_S = 5.0  # for what was taken from the broker so far


class OriginClosing:
    """Closes dead incarnations, here and at other brokers; used on the event loop's thread."""

    def __init__(self, log: ClusterLog, peers: Peers) -> None:
        self._log = log
        self._peers = peers
        self._finals: dict[tuple[int, int], int] = {}  # origin, shard -> number; as final as their names say
        self._thread = ThreadPoolExecutor(1, "everlog-origins")
        peers.answer(LinkKind.CLOSE_ORIGIN, self._asked)

    async def prove(self, found: StoredSession, origin: int) -> StoredSession:
        """Return a session without the QoS 2 ids whose messages have not arrived, and never will."""
        shards = {shard for shard, _, _ in unpack_unsure(found.cursor.unsure)}
        finals = {shard: await self._final(origin, shard) for shard in sorted(shards)}
        return without_unproven(found, finals)

    async def _final(self, origin: int, shard: int) -> int:
        known = self._finals.get((origin, shard))
        if known is not None:
            return known
        final = await (self._close(origin, shard) if self._owns(shard) else self._ask(origin, shard))
        self._finals[origin, shard] = final
        return final

    def _owns(self, shard: int) -> bool:
        return self._log.cluster_shards[shard].epoch != 0

    async def _ask(self, origin: int, shard: int) -> int:
        """Ask everyone: the owner answers, and nobody else can."""
        body = msgspec.msgpack.encode((origin, shard))
        for incarnation in sorted(self._peers.living):
            try:
                answer = await self._peers.ask(incarnation, LinkKind.CLOSE_ORIGIN, body)
            except Unavailable:
                continue
            return msgspec.msgpack.decode(answer, type=int)
        raise Unavailable(f"no broker that can be reached owns shard {shard}")

    async def _close(self, origin: int, shard: int) -> int:
        close = self._log.cluster_shards[shard].close_origin
        return await asyncio.get_running_loop().run_in_executor(self._thread, close, origin, COMMIT_S)

    async def _asked(self, asker: int, body: bytes) -> bytes:
        origin, shard = msgspec.msgpack.decode(body, type=tuple[int, int])
        return msgspec.msgpack.encode(await self._close(origin, shard))

    def stop(self) -> None:
        """Answer no more."""
        self._thread.shutdown(wait=False)
