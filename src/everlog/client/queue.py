"""A queue on a stream: each message goes to one taker, and again to another if it is not acknowledged."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

from msgspec.structs import replace

from everlog.bus import ADMINISTER, READ, WRITE, NotAllowed, Subscription, feed_subject
from everlog.client.large_values import part_bytes, whole_value
from everlog.client.named import MessageIds, Seconds, to_us
from everlog.client.requester import Requester
from everlog.streams import (
    DeadLetter,
    DeadLetters,
    Deliveries,
    Delivery,
    Lag,
    Level,
    QueueAck,
    QueueConfig,
    QueueConfigure,
    QueueDead,
    QueueLag,
    QueueNack,
    QueueRemove,
    QueueRevive,
    QueueTake,
)

_SHORTEST_S, _LONGEST_S = 0.02, 1.0  # between two looks at an empty queue, while nobody tells of new messages
_TOLD_S = 10.0  # and while somebody does, as what is told may get lost


class Queue:
    """A queue on a stream; `configure` makes it."""

    def __init__(self, requester: Requester, ids: MessageIds, stream: str, name: str, level: Level) -> None:
        self.stream = stream
        self.name = name
        self.level = level
        self._requester = requester
        self._ids = ids

    async def configure(self, *, start_seq: int | None = 0, **options: Any) -> None:
        """Make the queue, beginning at a seq (None: with what comes), or change its options: those of `QueueConfig`."""
        request = QueueConfigure(self.stream, self.name, QueueConfig(**options), start_seq, self.level)
        await self._requester.call(request, ADMINISTER)

    async def remove(self) -> None:
        """Remove the queue with its dead letters."""
        await self._requester.call(QueueRemove(self.stream, self.name, self.level), ADMINISTER)

    async def take(self, limit: int = 1) -> list[Delivery]:
        """Take messages; none if there is nothing now. Each has a ticket to ack or nack with."""
        size = part_bytes(self._requester)
        request = QueueTake(self.stream, self.name, limit, size, self._ids.next())
        result = (await self._requester.call(request, WRITE)).result
        assert isinstance(result, Deliveries)
        return [await self._whole(one) for one in result.deliveries]

    async def messages(self, limit: int = 16) -> AsyncGenerator[Delivery, None]:
        """Yield messages as they come, without end; ack or nack each.

        The stream's feed tells of new ones; who may not follow it looks again from time to time.
        """
        told = asyncio.Event()
        subscription = await self._listen(told)
        end = self._requester.at_close(told.set)
        wait_s = _SHORTEST_S
        try:
            while True:
                told.clear()
                taken = await self.take(limit)
                for one in taken:
                    yield one
                if taken:
                    wait_s = _SHORTEST_S
                    continue
                lag = await self.lag()  # from here on the server tells of changes
                until_s = lag.next_us / 1_000_000 - time.time() if lag.next_us > 0 else _TOLD_S
                is_told = subscription is not None and lag.next_us != 0 and not lag.pending
                await self._rest(told, max(_SHORTEST_S, min(_TOLD_S if is_told else wait_s, until_s)))
                wait_s = min(2 * wait_s, _LONGEST_S)
        finally:
            end()
            if subscription is not None:
                subscription.cancel()

    async def _listen(self, told: asyncio.Event) -> Subscription | None:
        """Have an event set when the stream changes; None if that is not allowed."""
        subject = feed_subject(self._requester.shard_of(self.stream), self.stream)
        try:
            return await self._requester.bus.subscribe(subject, lambda deliveries: told.set())
        except NotAllowed:
            return None

    async def _rest(self, told: asyncio.Event, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await told.wait()

    async def ack(self, *tickets: int) -> None:
        """Be done with messages."""
        await self._requester.call(QueueAck(self.stream, self.name, list(tickets), self.level), WRITE)

    async def nack(self, *tickets: int, delay: Seconds = None) -> None:
        """Give messages back, to be handed out again, after a delay if one is given."""
        request = QueueNack(self.stream, self.name, list(tickets), to_us(delay), self.level)
        await self._requester.call(request, WRITE)

    async def lag(self) -> Lag:
        """Return the queue's numbers: what waits, what is handed out, what is dead."""
        result = (await self._requester.call(QueueLag(self.stream, self.name), READ)).result
        assert isinstance(result, Lag)
        return result

    async def dead(self) -> AsyncIterator[DeadLetter]:
        """Yield the messages that were handed out too often."""
        after = 0
        while True:
            result = (await self._requester.call(QueueDead(self.stream, self.name, after), READ)).result
            assert isinstance(result, DeadLetters)
            for letter in result.letters:
                after = letter.message.seq
                yield letter
            if result.is_last:
                return

    async def revive(self, seqs: Iterable[int]) -> None:
        """Hand dead letters out again."""
        await self._requester.call(QueueRevive(self.stream, self.name, list(seqs), False, self.level), ADMINISTER)

    async def drop_dead(self, seqs: Iterable[int]) -> None:
        """Drop dead letters."""
        await self._requester.call(QueueRevive(self.stream, self.name, list(seqs), True, self.level), ADMINISTER)

    async def _whole(self, delivery: Delivery) -> Delivery:
        message = delivery.message
        if not message.is_cut:
            return delivery
        value = await whole_value(self._requester, self.stream, message)
        return replace(delivery, message=replace(message, value=value, is_cut=False))
