"""A feed of changes: the state, then "caught up", then every change once, in order, as long as it is followed.

Every event names the stream's position before it. What does not fit to the position that was reached is not guessed:
the feed is resumed from there, and the server tells what was missed, or that the state has to be taken anew.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from everlog.bus import Assembly, BadFrame, Delivery, FrameKind, Subscription, decode_frame, feed_subject, up_subject
from everlog.client.errors import NotServed, PersistError, TimedOut
from everlog.client.large_values import is_changed, whole_value
from everlog.client.requester import Requester, SeriesLost
from everlog.streams import (
    CaughtUp,
    Change,
    Entries,
    ErrorCode,
    FeedBootstrap,
    FeedEvent,
    FeedEvents,
    FeedReset,
    FeedResume,
    KeysDeleted,
    KeySet,
    Kind,
    Messages,
    MessageSet,
)

HEARTBEAT_S = 20.0  # after so long without an event the server is asked whether one got lost
_AGAIN_S = 0.2  # before a resume that failed is tried again
_MOST_EVENTS = 100_000  # that wait to be taken; beyond it they are dropped, and the feed is resumed

Item: TypeAlias = Change | CaughtUp | FeedReset
Position: TypeAlias = tuple[int, int]  # epoch, position


class Chain:
    """Where a feed has got to, and whether an event is the next one."""

    def __init__(self, at: Position | None = None) -> None:
        self.at = at

    def reached(self, epoch: int, position: int) -> None:
        """Note that everything up to a position is known."""
        self.at = (epoch, position)

    def follows(self, event: FeedEvent) -> bool | None:
        """Return whether an event is the next (and take it), is known (None), or does not follow (False)."""
        assert self.at is not None
        epoch, position = self.at
        if event.epoch < epoch or (event.epoch == epoch and event.position <= position):
            return None
        if event.epoch == epoch and event.previous == position:
            self.at = (epoch, event.position)
            return True
        return False


class Watch:
    """A feed of one stream or key-value store; iterate over it, once. `position` can be kept to resume from."""

    def __init__(
        self,
        requester: Requester,
        name: str,
        prefix: str = "",
        after: Position | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        kind: Kind | None = None,
    ) -> None:
        self._requester = requester
        self._name = name
        self._kind = kind
        self._prefix = prefix
        self._chain = Chain(after)
        self._heartbeat_s = heartbeat_s
        self._events: list[FeedEvent] = []
        self._news = asyncio.Event()
        self._is_in_doubt = True  # the feed has to be taken up (again)
        self._state_is_partial = False
        self._has_begun = False
        self._assembly = Assembly()
        self._decode: Callable[[bytes], list[FeedEvent]] = msgspec.msgpack.Decoder(list[FeedEvent]).decode
        self.resumes = 0  # how often something was missed, or might have been

    @property
    def position(self) -> Position | None:
        """The (epoch, position) up to which everything was handed out; None before the first "caught up"."""
        return self._chain.at

    async def __aiter__(self) -> AsyncIterator[Item]:
        shard = self._requester.shard_of(self._name)
        bus = self._requester.bus
        unwatch, end = bus.watch(self._bus_changed), self._requester.at_close(self._doubt)
        subscriptions: list[Subscription] = []
        try:
            subscriptions.append(await bus.subscribe(feed_subject(shard, self._name), self._take))
            subscriptions.append(await bus.subscribe(up_subject(shard), lambda _: self._doubt()))
            while True:
                async with aclosing(self._take_up() if self._is_in_doubt else self._live()) as items:
                    async for item in items:
                        yield await self._with_value(item)
        finally:
            unwatch()
            end()
            for subscription in subscriptions:
                subscription.cancel()

    async def _live(self) -> AsyncGenerator[Item, None]:
        """Yield what comes, until something is missing or nothing came for a while."""
        while not self._is_in_doubt:
            if not self._events:
                self._news.clear()
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await self._news.wait()
                except TimeoutError:
                    self._doubt()
            events, self._events = self._events, []
            for number, event in enumerate(events):
                follows = self._chain.follows(event)
                if follows is False:
                    self._events = events[number:] + self._events
                    self._doubt()
                    break
                if follows:
                    for change in self._picked(event.changes):
                        yield change

    async def _take_up(self) -> AsyncGenerator[Item, None]:
        """Yield the state and "caught up", or what was missed; again, if the server is lost meanwhile."""
        while True:
            self._is_in_doubt = False
            try:
                async with aclosing(self._ask()) as items:
                    async for item in items:
                        yield item
                return
            except (SeriesLost, TimedOut, NotServed):
                if self._state_is_partial:  # a part of a state is worth nothing
                    self._state_is_partial = False
                    self._begin_anew()
                    yield FeedReset("interrupted")
                await asyncio.sleep(_AGAIN_S)
            except PersistError as error:
                if error.code is not ErrorCode.RESET:
                    raise
                self._begin_anew()
                yield FeedReset(error.message)

    def _begin_anew(self) -> None:
        """Forget what was reached: the state comes once more, and "caught up" after it, however little it is."""
        self._chain.at = None
        self._has_begun = False

    async def _ask(self) -> AsyncGenerator[Item, None]:
        """Yield what the server tells of the state, or of what was missed."""
        at = self._chain.at
        request: FeedBootstrap | FeedResume = FeedBootstrap(self._name, self._prefix, kind=self._kind)
        if at is not None:
            request = FeedResume(self._name, *at, self._prefix, kind=self._kind)
            self.resumes += 1
        async with aclosing(self._requester.series(request)) as replies:
            async for reply in replies:
                result = reply.result
                if isinstance(result, FeedReset):
                    self._state_is_partial = True
                    yield result
                elif isinstance(result, Messages | Entries):
                    self._state_is_partial = True
                    for change in _set(result):
                        yield change
                elif isinstance(result, FeedEvents):
                    for event in result.events:
                        self._chain.reached(event.epoch, event.position)
                        for change in self._picked(event.changes):
                            yield change
                elif isinstance(result, CaughtUp):
                    is_news, self._state_is_partial = self._state_is_partial or not self._has_begun, False
                    self._chain.reached(reply.epoch, result.position)
                    self._has_begun = True
                    if is_news:
                        yield result

    async def _with_value(self, item: Item) -> Item:
        """Return a change with its value, which large ones come without; without, if that is already another one."""
        try:
            if isinstance(item, MessageSet) and item.message.is_cut:
                value = await whole_value(self._requester, self._name, item.message)
                return MessageSet(replace(item.message, value=value, is_cut=False))
            if isinstance(item, KeySet) and item.entry.is_cut:
                value = await whole_value(self._requester, self._name, item.entry)
                return KeySet(replace(item.entry, value=value, is_cut=False))
        except PersistError as error:
            if not is_changed(error):
                raise
        return item

    def _picked(self, changes: list[Change]) -> list[Change]:
        """Return the changes that are about the keys that are asked for."""
        if not self._prefix:
            return changes
        picked: list[Change] = []
        for change in changes:
            if isinstance(change, KeysDeleted):
                if keys := [key for key in change.keys if key.startswith(self._prefix)]:
                    picked.append(replace(change, keys=keys))
            elif not isinstance(change, KeySet) or change.entry.key.startswith(self._prefix):
                picked.append(change)
        return picked

    def _take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(BadFrame, msgspec.DecodeError):
                frame = decode_frame(delivery.payload)
                if frame.kind is FrameKind.PART:
                    whole = self._assembly.add(delivery.subject, frame, 0.0)
                    if whole is None:
                        continue
                    frame = decode_frame(whole)
                if frame.kind is FrameKind.EVENTS:
                    self._events += self._decode(frame.body)
        if len(self._events) > _MOST_EVENTS:
            self._events.clear()
            self._doubt()
        self._news.set()

    def _bus_changed(self, is_open: bool) -> None:
        if is_open:
            self._doubt()

    def _doubt(self) -> None:
        self._is_in_doubt = True
        self._news.set()


def _set(state: Messages | Entries) -> list[Change]:
    if isinstance(state, Messages):
        return [MessageSet(message) for message in state.messages]
    return [KeySet(entry) for entry in state.entries]
