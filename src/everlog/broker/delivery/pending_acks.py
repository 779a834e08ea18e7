"""The gate that holds acks back until the log has committed their messages.

Each connection's acks wait in a queue of their own, in the order of its PUBLISHes [MQTT-4.6.0-2], and each shard wakes
those that wait for it. Invariant: acks leave by `PendingAcks.committed` alone, or at once when there is nothing to wait
for: no position, and nothing of the same connection before them.
"""

from collections import deque

import cython

if not cython.compiled:
    from everlog.broker.delivery.ports import Sink


class AckQueue:
    """The acks of one connection that wait, oldest first."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.first: PendingAck | None = None
        self.last: PendingAck | None = None


class PendingAck:
    """Acks of one run, `pubacks` of them PUBACKs, and how many shards have not committed their part of it."""

    def __init__(self, queue: AckQueue, acks: bytes, pubacks: int, missing: int) -> None:
        self.queue = queue
        self.acks = acks
        self.pubacks = pubacks
        self.missing = missing
        self.next: PendingAck | None = None


class PendingAcks:
    """All acks that wait; by shard, those that wait for it with the offset it must reach, which only rises."""

    def __init__(self, shards: int) -> None:
        self.waiting_bytes = 0
        self._by_shard: list[deque[tuple[int, PendingAck]]] = [deque() for _ in range(shards)]

    def wait(self, queue: AckQueue, acks: bytes, pubacks: int, positions: list[tuple[int, int]]) -> None:
        """Let acks leave when every shard has committed up to its offset in `positions`."""
        if not positions and queue.first is None:
            queue.sink.answer(acks, pubacks)
            return
        pending = PendingAck(queue, acks, pubacks, len(positions))
        if queue.first is None:
            queue.first = pending
        else:
            queue.last.next = pending  # type: ignore[union-attr]
        queue.last = pending
        self.waiting_bytes += len(acks)
        for shard, end in positions:
            self._by_shard[shard].append((end, pending))

    def committed(self, shard: int, end: int) -> None:
        """Release what waited for a shard to commit up to `end`, and for nothing else."""
        waiting = self._by_shard[shard]
        while waiting and waiting[0][0] <= end:
            pending: PendingAck = waiting.popleft()[1]
            pending.missing -= 1
            queue = pending.queue
            if pending.missing == 0 and queue.first is pending:
                self._release(queue)

    def fail(self, shard: int) -> list[Sink]:
        """Drop all that waits for a shard that can't be written any more; return whose acks will not come."""
        waiting = self._by_shard[shard]
        sinks: dict[int, Sink] = {}
        for _, pending in waiting:
            queue = pending.queue
            sinks[id(queue)] = queue.sink
            while queue.first is not None:
                self.waiting_bytes -= len(queue.first.acks)
                queue.first = queue.first.next
        waiting.clear()
        return list(sinks.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._by_shard)

    def _release(self, queue: AckQueue) -> int:
        """Send what is committed at the head of a queue."""
        while queue.first is not None and queue.first.missing == 0:
            pending = queue.first
            queue.first = pending.next
            self.waiting_bytes -= len(pending.acks)
            queue.sink.answer(pending.acks, pending.pubacks)
        return 0
