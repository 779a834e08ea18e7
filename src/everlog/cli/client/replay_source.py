"""Where `everlog replay` reads from: a broker, which it asks for a replay, or a data directory."""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everlog.base import Unavailable
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import Target
from everlog.cli.client.log_entry import Entry, entries
from everlog.cli.client.replay_extent import POSITION, TIME, Extent, entry_of, exact_time
from everlog.mqtt import Message, Properties, Subscription
from everlog.store import Begin, LogStore, Positions, locate, parse_begin, unkept_notes
from everlog.topics import Filter, parse_filter

LIVE_TOPIC = b"$replay/live"
BUFFERED = 20_000  # messages that wait to be shown; beyond it nothing is read from the broker
STEP_RECORDS, STEP_BYTES = 4096, 1 << 20


class Source(Protocol):
    """History in portions; `extent` and `notes` are known once it is open."""

    extent: Extent
    notes: list[str]  # what there is to say of that history

    async def open(self) -> None: ...

    def portions(self) -> AsyncIterator[list[Entry]]: ...

    async def close(self) -> None: ...


class BrokerSource:
    """A subscription that begins in the past and is given up when history is over."""

    extent: Extent
    notes: list[str]

    def __init__(self, target: Target, filters: Sequence[str], begin: str, to: Begin | None, qos: int) -> None:
        self._target = target
        self._subscriptions = tuple(Subscription(text, qos, retain_as_published=True) for text in filters)
        self._begin, self._to = begin, to
        self._client = AsyncClient(target.connect, self._take)
        self._waiting: deque[Entry] = deque()
        self._is_over = self._is_paused = False

    async def open(self) -> None:
        """Connect and subscribe."""
        await self._client.open(self._target.host, self._target.port, self._target.tls)
        pairs = (("everlog-from", self._begin), (POSITION, "yes"), ("everlog-live", "yes"))
        reasons = await self._client.subscribe(self._subscriptions, Properties(user_properties=pairs))
        said = self._client.answered
        refused = [one.filter for one, reason in zip(self._subscriptions, reasons, strict=True) if reason.is_error]
        if refused:
            words = said.reason_string or ", ".join({reason.words for reason in reasons if reason.is_error})
            raise Unavailable(f"{', '.join(refused)}: {words}")
        self.notes = [said.reason_string] if said.reason_string else []
        found = dict(said.user_properties)
        if "everlog-begin" not in found:
            raise Unavailable("the broker has no history", hint="it must be an Everlog that keeps the topics")
        begins, ends = (
            [offset for _, offset in parse_begin(found[key], 0).offsets] for key in ("everlog-begin", "everlog-end")
        )
        self.extent = Extent.of(begins, ends, self._to)

    def _take(self, messages: list[Message]) -> int:
        for message in messages:
            if message.topic == LIVE_TOPIC:
                self._is_over = True
            elif (entry := entry_of(message)) is not None:
                self._waiting.append(entry)
        if len(self._waiting) > BUFFERED and not self._is_paused:
            self._is_paused = True
            self._client.pause()
        return len(messages)

    async def portions(self) -> AsyncIterator[list[Entry]]:
        """Yield what has arrived, as it arrives, until history is over."""
        while self._waiting or not self._is_over:
            await self._client.wait_until(lambda: bool(self._waiting) or self._is_over)
            portion = list(self._waiting)
            self._waiting.clear()
            yield portion
            if self._is_paused:
                self._is_paused = False
                self._client.resume()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


@dataclass(slots=True)
class StoreSource:
    """The log of a data directory, read beside its broker or without one; shards are merged by time."""

    directory: str
    filters: Sequence[str]
    begin: Begin
    to: Begin | None
    extent: Extent = field(init=False)
    notes: list[str] = field(init=False)
    _store: LogStore | None = None
    _begins: Positions = ()

    async def open(self) -> None:
        """Open it for reading."""
        self._store = store = LogStore.open(self.directory, writable=False)
        starts = tuple(log.start for log in store.shards)
        ends = store.committed()
        begins = locate(self.begin, starts, ends, store.positions_at)
        self._begins = tuple(map(max, zip(begins, starts, strict=True)))
        self.extent = Extent.of(self._begins, ends, self.to)
        self.notes = unkept_notes(self.directory, self.filters)

    async def portions(self) -> AsyncIterator[list[Entry]]:
        """Yield everything in the order of time."""
        filters = tuple(map(parse_filter, self.filters))
        shards = [self._shard(number, filters) for number in range(len(self._begins))]
        portion: list[Entry] = []
        for entry in heapq.merge(*shards, key=lambda entry: entry.time_us):
            portion.append(entry)
            if len(portion) == STEP_RECORDS:
                yield portion
                portion = []
                await asyncio.sleep(0)
        yield portion

    def _shard(self, number: int, filters: tuple[Filter, ...]) -> Iterator[Entry]:
        assert self._store is not None
        reader = self._store.reader(filters)
        at = self._begins[number]
        while at < self.extent.ends[number]:
            result = reader.read_shard(number, at, STEP_RECORDS, STEP_BYTES)
            yield from map(_described, entries(result.batches))
            if result.positions[0] <= at:
                return
            at = result.positions[0]

    async def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()


def _described(entry: Entry) -> Entry:
    """Add the position and the time to a message, as the broker would."""
    pairs = ((POSITION, f"{entry.shard}:{entry.offset}"), (TIME, exact_time(entry.time_us)))
    return entry._replace(message=entry.message.with_user_properties(pairs))
