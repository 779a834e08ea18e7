"""A queue on a stream as its owner knows it: where its cursor is, who has what until when, what died."""

from dataclasses import dataclass, field
from typing import Any

from everlog.streams.effects import Acked, Died, DropQueue, Revived, SetQueue, Taken
from everlog.streams.values import QueueConfig

QUEUE_EFFECTS = (SetQueue, DropQueue, Taken, Acked, Died, Revived)


@dataclass(slots=True)
class TakenMessage:
    """A message that was handed out, or given back (ticket 0), and when it is due again."""

    ticket: int
    due_us: int
    deliveries: int


@dataclass(slots=True)
class QueueState:
    """A queue. Every seq below the cursor is in `taken`, in `dead`, or done with."""

    config: QueueConfig
    cursor: int
    acked: int = 0
    ticket: int = 0  # the last one given
    taken: dict[int, TakenMessage] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    revived: set[int] = field(default_factory=set)  # dead letters that are handed out again

    tickets: dict[int, int] = field(default_factory=dict)  # ticket -> seq, of those that are handed out

    def take(self, seq: int, ticket: int, due_us: int, deliveries: int) -> None:
        """Note that a message was handed out, or given back (ticket 0)."""
        self.leave(seq)
        self.taken[seq] = TakenMessage(ticket, due_us, deliveries)
        if ticket:
            self.tickets[ticket] = seq
            self.ticket = max(self.ticket, ticket)

    def leave(self, seq: int) -> None:
        """Note that a message is not handed out any more."""
        known = self.taken.pop(seq, None)
        if known is not None:
            self.tickets.pop(known.ticket, None)


def take_effect(queues: dict[str, QueueState], effect: Any) -> None:
    """Be as an effect on a queue says."""
    if isinstance(effect, SetQueue):
        known = queues.get(effect.queue)
        if known is None:
            queues[effect.queue] = QueueState(effect.config, effect.cursor)
        else:
            known.config = effect.config
        return
    if isinstance(effect, DropQueue):
        queues.pop(effect.queue, None)
        return
    queue = queues[effect.queue]
    if isinstance(effect, Taken):
        queue.cursor = effect.cursor
        for seq, ticket, due_us, deliveries in effect.messages:
            queue.take(seq, ticket, due_us, deliveries)
    elif isinstance(effect, Acked):
        queue.acked += len(effect.seqs)
        for seq in effect.seqs:
            queue.leave(seq)
            queue.revived.discard(seq)
    elif isinstance(effect, Died):
        for seq, _ in effect.messages:
            queue.leave(seq)
            queue.revived.discard(seq)
            queue.dead.add(seq)
    elif isinstance(effect, Revived):
        for seq in effect.seqs:
            queue.dead.discard(seq)
            if not effect.is_dropped:
                queue.revived.add(seq)
                queue.take(seq, 0, 0, 0)
