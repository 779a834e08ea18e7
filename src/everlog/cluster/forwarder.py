"""The way of a broker's messages to the owners of their shards, wherever these are.

Every message that this incarnation appends or forwards to a shard has a number there. What is forwarded is kept until
its owner has confirmed it, which is after the commit. An owner announces itself to everyone it has a link with, and
says how much of the receiver's messages it has; whoever hears that sends on from there. So what was under way when an
owner was lost reaches the next one, and is appended once. While nobody owns a shard its messages are held.

Owned by the event loop's thread. Invariant: acks are released by `Router.forwarded`, with numbers that are committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from logging import ERROR, getLogger

from everlog.base import (
    NOT_KEPT,
    EverlogError,
    MessageColumns,
    PublisherColumn,
    PublisherName,
    RecordBuilder,
    Records,
    StorageError,
    TopicTable,
)
from everlog.broker import Router
from everlog.broker import event as report
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.forwarded_rows import columns_of, publishers_of, read_batch
from everlog.cluster.intake import Intake
from everlog.cluster.ports import LinkKind, ShardLinks
from everlog.cluster.retained_view import retain_routed
from everlog.cluster.shard_frames import decode_owned, decode_publish, encode_publish
from everlog.cluster.unconfirmed import BATCH_BYTES, NumberedBatch, Unconfirmed
from everlog.commitlog import ShardLog

_log = getLogger("everlog.cluster")


class ClusterForwarder:
    """Sends to owners, and is told by the keeper which shards come and go. `use` comes before anything else."""

    def __init__(self, log: ClusterLog, links: ShardLinks, incarnation: int) -> None:
        shards = len(log.cluster_shards)
        self.incarnation = incarnation
        self.numbers = [0] * shards
        self.confirmed = [0] * shards
        self._left = [0] * shards  # up to which numbers `send` has seen to it
        self.on_lost: Callable[[EverlogError], None] = lambda error: None  # this incarnation is over
        self._log = log
        self._links = links
        self._waiting = [Unconfirmed() for _ in range(shards)]
        self._marks: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]  # offset, number: appended here
        self._appended = [0] * shards  # the last number that was appended here, of shards that were let go of
        self._leaving: dict[int, tuple[int, asyncio.Future[None]]] = {}  # shards to let go of -> at which offset
        self._shared = RecordBuilder(checked=False)  # what nothing keeps
        self._router: Router
        self._intake: Intake

    def use(self, router: Router) -> None:
        """Begin on the running event loop: nothing is owned yet."""
        self._router = router
        self._intake = Intake(self._log, self._links, router, self._refused_by_us)
        for shard in range(len(self.numbers)):
            router.elsewhere[shard] = 1
        loop = asyncio.get_running_loop()
        for one in self._log.cluster_shards:
            one.log.on_lost = partial(_tell, loop, self._fenced)
        self._links.hear(LinkKind.UNKEPT, self._heard_unkept)
        self._links.hear(LinkKind.OWNED, self._heard_owned)
        self._links.hear(LinkKind.CONFIRM, self._heard_confirm)
        self._links.hear(LinkKind.REFUSE, self._heard_refuse)
        self._links.watch(self._link_changed)

    # What the router asks

    def forward(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray,
        wanted: int,
        publisher: PublisherName | PublisherColumn | None,
    ) -> int:
        """Take the messages of a shard, which leave with the next `send`, and keep them; return how many there are."""
        taken = self._waiting[wanted].take(columns, start, stop, now_us, table, routes, wanted, publisher)
        self.numbers[wanted] += taken
        return taken

    def share(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None,
    ) -> None:
        """Take messages that nothing keeps, which are sent to all brokers that are not slow."""
        if self._links.living:
            self._shared.append(columns, start, stop, now_us, table, routes, NOT_KEPT)
            if self._shared.size > BATCH_BYTES:
                self._send_shared()

    def pending_bytes(self, shard: int) -> int:
        """Return how many bytes wait for the owner of a shard to confirm them."""
        return self._waiting[shard].size_bytes

    def unconfirmed(self, shard: int) -> int:
        """Return how many messages of this broker for a shard are not known to be committed."""
        return max(0, self.numbers[shard] - self.confirmed[shard])

    def send(self) -> None:
        """Let what was forwarded leave, and note how far what was appended here goes."""
        if self._shared.count:
            self._send_shared()
        if self._left == self.numbers:
            return
        for shard, number in enumerate(self.numbers):
            if number == self._left[shard]:
                continue
            self._left[shard] = number
            waiting = self._waiting[shard]
            if self._router.elsewhere[shard]:
                if waiting.allowed < number:
                    waiting.allow()
                    self._send(shard)
            elif waiting.last < number:
                waiting.last = number
                self._marks[shard].append((self._log.shards[shard].end, number))

    def committed(self) -> None:
        """Confirm what shards of this broker have committed, to those who sent it and to those who wait here."""
        for shard, marks in enumerate(self._marks):
            if not marks:
                continue
            end, reached = self._log.shards[shard].committed, 0
            while marks and marks[0][0] <= end:
                reached = marks.popleft()[1]
            if reached:
                self._confirm(shard, reached)
        self._intake.committed()
        for shard, (end, left) in list(self._leaving.items()):
            if self._log.shards[shard].committed >= end and not left.done():
                left.set_result(None)

    def retain(self, records: Records, first: int) -> None:
        """Retain the messages of a routed batch that ask for it, from a row on."""
        retain_routed(self._router.retained, records, first)

    # What the keeper tells

    def owned(self, shard: int) -> None:
        """Append to a shard from now on, after what was forwarded to it and is not in it."""
        found = self._log.cluster_shards[shard].last_number(self.incarnation)
        if found < self.confirmed[shard]:
            raise StorageError(
                f"shard {shard} has message {found} of this broker, and {self.confirmed[shard]} was confirmed",
                hint="commits were lost: look at the database's standbys",
            )
        self._append_held(shard, found)
        self._confirm(shard, found)
        self._intake.own(shard)

    async def let_go(self, shard: int) -> None:
        """Append to a shard no more; return when all that was appended is committed."""
        waiting, log = self._waiting[shard], self._log.shards[shard]
        self._intake.let_go(shard)
        self._router.elsewhere[shard] = 1
        waiting.owner, waiting.last, waiting.allowed = 0, self.numbers[shard], self.numbers[shard]
        self._appended[shard] = self.numbers[shard]
        end = log.end
        self._marks[shard].append((end, self.numbers[shard]))
        self._router.ask_turn()
        if log.committed < end:
            left = asyncio.get_running_loop().create_future()
            self._leaving[shard] = end, left
            try:
                await left
            finally:
                del self._leaving[shard]
        else:
            self.committed()

    def kept(self, shard: int) -> None:
        """Append to a shard again: it could not be let go of."""
        self._append_held(shard, self._appended[shard])
        self._intake.own(shard)

    def _append_held(self, shard: int, above: int) -> None:
        """Append what was held for a shard above a number, as the owner, and let new messages follow it."""
        waiting, log = self._waiting[shard], self._log.shards[shard]
        for batch in waiting.take_all(above):
            records = read_batch(batch.body)
            skipped = max(0, above + 1 - batch.first)
            log.append(
                columns_of(records),
                skipped,
                records.count,
                self._router.now_us(),
                records.table,
                publisher=publishers_of(records),
            )
        waiting.owner, waiting.last = 0, self.numbers[shard]
        self._router.elsewhere[shard] = 0
        self._marks[shard].append((log.end, self.numbers[shard]))
        self._router.ask_turn()

    # What other brokers say

    def _heard_owned(self, owner: int, appended: int, body: bytes) -> None:
        frame = decode_owned(body, len(self.numbers))
        waiting = self._waiting[frame.shard]
        if not self._router.elsewhere[frame.shard] or frame.epoch < waiting.epoch:
            return
        if appended < self.confirmed[frame.shard]:
            report(_log, "commits_lost", ERROR, shard=frame.shard, owner=owner, confirmed=self.confirmed[frame.shard])
            return
        waiting.go_on(owner, frame.epoch, appended)
        self._confirm(frame.shard, frame.more)
        self._send(frame.shard)

    def _heard_confirm(self, owner: int, number: int, body: bytes) -> None:
        frame = decode_publish(body, len(self.numbers))
        self._confirm(frame.shard, number)
        self._send(frame.shard)

    def _heard_refuse(self, owner: int, number: int, body: bytes) -> None:
        frame = decode_publish(body, len(self.numbers))
        text = body[frame.start :].decode(errors="replace")
        self.on_lost(StorageError(text or "another broker takes nothing more from this one", hint="join again"))

    def _link_changed(self, incarnation: int, is_there: bool) -> None:
        if is_there:
            self._intake.announce_to(incarnation)
            return
        for waiting in self._waiting:
            if waiting.owner == incarnation:
                waiting.owner = 0  # until somebody says that it owns the shard

    def _send_shared(self) -> None:
        body = bytes(self._shared.take(0).to_bytes())
        self._shared.start_segment()
        self._links.offer(LinkKind.UNKEPT, 0, body)

    def _heard_unkept(self, sender: int, number: int, body: bytes) -> None:
        records = read_batch(body)
        self._router.take_shared(columns_of(records), records.count, records.table)

    def _send(self, shard: int) -> None:
        waiting = self._waiting[shard]
        for batch in waiting.to_send():
            self._send_batch(shard, waiting, batch)

    def _send_batch(self, shard: int, waiting: Unconfirmed, batch: NumberedBatch) -> None:
        head = encode_publish(shard, waiting.epoch)
        self._links.send(waiting.owner, LinkKind.PUBLISH, batch.first, head, batch.body)

    def _confirm(self, shard: int, number: int) -> None:
        if number > self.confirmed[shard]:
            self.confirmed[shard] = number
            self._waiting[shard].confirm(number)
            self._router.forwarded(shard, number)

    def _refused_by_us(self, origin: int, shard: int, error: EverlogError) -> None:
        """Tell another broker that nothing more is taken from it: the others have given it up."""
        self._links.send(origin, LinkKind.REFUSE, 0, encode_publish(shard, 0) + error.message.encode())

    def _fenced(self, error: EverlogError) -> None:
        for _, left in self._leaving.values():
            if not left.done():
                left.set_exception(error)
        self.on_lost(error)


def _tell(
    loop: asyncio.AbstractEventLoop, call: Callable[[EverlogError], None], log: ShardLog, error: EverlogError
) -> None:
    """Make a call on the event loop's thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, error)
