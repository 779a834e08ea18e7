"""The owner's side of forwarded messages: appended once, in order, and confirmed when they are committed.

Owned by the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from everlog.base import EverlogError
from everlog.broker import Router
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.forwarded_rows import columns_of, publishers_of, read_batch
from everlog.cluster.origins import Closed, Gap
from everlog.cluster.ports import LinkKind, ShardLinks
from everlog.cluster.rows import TailRow
from everlog.cluster.shard_frames import decode_offer, decode_publish, encode_offer, encode_owned, encode_publish

GATHER_S = 0.008  # the longest that a batch waits to be offered with others
UNGATHERED_BYTES_S = 4 << 20  # that are offered without such a wait, a second

Refuse = Callable[[int, int, EverlogError], None]  # of an origin, in a shard, why


class Intake:
    """Takes what others forward to the shards that this broker owns."""

    def __init__(self, log: ClusterLog, links: ShardLinks, router: Router, refuse: Refuse) -> None:
        shards = len(log.cluster_shards)
        self._log = log
        self._links = links
        self._router = router
        self._refuse = refuse
        self._epochs = [0] * shards  # of the shards that messages are taken for
        self._last_epochs = [0] * shards  # at which they were owned last
        self._confirmed: list[dict[int, int]] = [{} for _ in range(shards)]  # by origin, since the shard is owned
        self._marks: list[deque[tuple[int, int, int]]] = [deque() for _ in range(shards)]  # offset, origin, number
        self._written: deque[tuple[int, TailRow]] = deque()  # committed and not offered yet
        self._offer_at = 0.0  # before then what is committed waits, to be offered with what follows
        self._gathers = False  # it will be
        for one in log.cluster_shards:
            one.on_batches = self._wrote
        links.hear(LinkKind.PUBLISH, self._heard_publish)
        links.hear(LinkKind.OFFER, self._heard_offer)
        links.rest(log.take_offered)

    def own(self, shard: int) -> None:
        """Take messages for a shard from now on, and say so to everyone."""
        epoch = self._log.cluster_shards[shard].epoch
        if epoch != self._last_epochs[shard]:
            self._confirmed[shard] = {}
            self._marks[shard].clear()
        self._epochs[shard] = self._last_epochs[shard] = epoch
        for incarnation in list(self._links.living):
            self._announce(shard, incarnation)

    def let_go(self, shard: int) -> None:
        """Take no more messages for a shard; what was taken is confirmed when it is committed."""
        self._epochs[shard] = 0

    def announce_to(self, incarnation: int) -> None:
        """Say which shards are owned here to a broker that there is a link with now."""
        for shard, epoch in enumerate(self._epochs):
            if epoch:
                self._announce(shard, incarnation)

    def _announce(self, shard: int, incarnation: int) -> None:
        try:
            appended = self._log.cluster_shards[shard].last_number(incarnation)
        except EverlogError:
            return  # the shard has just been lost
        committed = self._confirmed[shard].get(incarnation, appended)
        body = encode_owned(shard, self._epochs[shard], committed)
        self._links.send(incarnation, LinkKind.OWNED, appended, body)

    def _heard_publish(self, origin: int, first: int, body: bytes) -> None:
        frame = decode_publish(body, len(self._epochs))
        shard = self._log.cluster_shards[frame.shard]
        if not frame.epoch or frame.epoch != self._epochs[frame.shard]:
            return  # it is sent again, to whoever says next that it owns the shard
        records = read_batch(body, frame.start)
        try:
            self._confirmed[frame.shard].setdefault(origin, shard.last_number(origin))
            last = shard.append_from(
                origin,
                first,
                columns_of(records),
                0,
                records.count,
                self._router.now_us(),
                records.table,
                publishers_of(records),
            )
        except Closed as error:
            self._refuse(origin, frame.shard, error)
            return
        except Gap:
            self._announce(frame.shard, origin)  # from where it is to be sent again
            return
        except EverlogError:
            return  # the shard has just been lost: whoever owns it next is sent this
        self._marks[frame.shard].append((shard.log.end, origin, last))
        self._router.ask_turn()

    def committed(self) -> None:
        """Confirm what is committed, and offer it to all."""
        if self._written and not self._gathers:
            self._offer_soon()
        if not any(self._marks):
            return
        for shard, marks in enumerate(self._marks):
            if not marks:
                continue
            end = self._log.shards[shard].committed
            reached: dict[int, int] = {}
            while marks and marks[0][0] <= end:
                _, origin, number = marks.popleft()
                reached[origin] = number
            for origin, number in reached.items():
                self._confirmed[shard][origin] = number
                self._links.send(origin, LinkKind.CONFIRM, number, encode_publish(shard, 0))

    # Committed batches

    def _wrote(self, shard: int, rows: Sequence[TailRow]) -> None:
        """Have batches offered that were committed just now, as soon as the loop looks; called by the thread that has
        committed them."""
        if self._links.living:
            self._written.extend([(shard, row) for row in rows])

    def _offer_soon(self) -> None:
        """Offer batches at once, unless many bytes were just now: then together with those that follow shortly."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._offer_at:
            self._offer()
        else:
            self._gathers = True
            loop.call_at(self._offer_at, self._offer)

    def _offer(self) -> None:
        """Send batches to all that are not slow: the others read them from the tail."""
        self._gathers = False
        size = 0
        while self._written:
            shard, row = self._written.popleft()
            size += len(row.body)
            self._links.offer(LinkKind.OFFER, row.base, encode_offer(shard, row.epoch, row.segment), row.body)
        pause_s = min(GATHER_S, size / UNGATHERED_BYTES_S)
        self._offer_at = asyncio.get_running_loop().time() + pause_s

    def _heard_offer(self, owner: int, base: int, body: bytes) -> None:
        frame = decode_offer(body, len(self._epochs))
        self._log.offer(frame.shard, frame.epoch, frame.more, base, body, frame.start)
