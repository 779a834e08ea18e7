"""Where `everlog replay` has messages from: a broker, which is asked for a replay, or a data directory."""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from everlog.base import Unavailable, UsageError
from everlog.cli.client import Client
from everlog.cli.dial import Call
from everlog.cli.entries import Entry, entries
from everlog.cli.message import Message
from everlog.cli.past import POSITION, TIME, Extent, entry_of, exact_time
from everlog.mqtt import Properties, Subscription
from everlog.store import Begin, LogStore, Positions, locate, parse_begin
from everlog.topics import Filter, parse_filter

LIVE_TOPIC = b"$replay/live"
BUFFERED = 20_000  # messages that wait to be shown; beyond, the broker is let wait
STEP_RECORDS, STEP_BYTES = 4096, 1 << 20


class Source(Protocol):
    """Gives the past in portions; `extent` is known once it is open."""

    extent: Extent

    async def open(self) -> None: ...

    def portions(self) -> AsyncIterator[list[Entry]]: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class BrokerSource:
    """A subscription that begins in the past and is given up when history is over."""

    call: Call
    filters: Sequence[str]
    begin: str
    to: Begin | None
    qos: int
    extent: Extent = field(init=False)
    _client: Client = field(init=False)
    _waiting: deque[Entry] = field(default_factory=deque)
    _is_over: bool = False
    _is_paused: bool = False

    async def open(self) -> None:
        """Connect and subscribe."""
        self._client = Client(self.call.connect, self._take)
        await self._client.open(self.call.host, self.call.port, self.call.tls)
        pairs = (("everlog-from", self.begin), (POSITION, "yes"), ("everlog-live", "yes"))
        asked = tuple(Subscription(text, self.qos, retain_as_published=True) for text in self.filters)
        reasons = await self._client.subscribe(asked, Properties(user_properties=pairs))
        said = self._client.answered
        refused = [asked[k].filter for k, reason in enumerate(reasons) if reason.is_error]
        if refused:
            words = said.reason_string or ", ".join({reason.name.lower() for reason in reasons if reason.is_error})
            raise Unavailable(f"{', '.join(refused)}: {words}")
        found = dict(said.user_properties)
        if "everlog-begin" not in found:
            raise Unavailable("the broker has no history", hint="it must be an Everlog that keeps the topics")
        begins, ends = (
            [offset for _, offset in parse_begin(found[key], 0).offsets] for key in ("everlog-begin", "everlog-end")
        )
        self.extent = Extent.of(begins, ends, self.to)

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
        """What has arrived, as it does, until history is over."""
        while self._waiting or not self._is_over:
            await self._client.wait_until(lambda: bool(self._waiting) or self._is_over)
            portion = list(self._waiting)
            self._waiting.clear()
            yield portion
            if self._is_paused:
                self._is_paused = False
                self._client.resume()

    async def close(self) -> None:
        """Leave."""
        if hasattr(self, "_client"):
            await self._client.close()


@dataclass(slots=True)
class StoreSource:
    """The log of a data directory, read beside its broker or without one; shards are merged by time."""

    directory: str
    filters: Sequence[str]
    begin: Begin
    to: Begin | None
    extent: Extent = field(init=False)
    _store: LogStore = field(init=False)
    _begins: Positions = ()

    async def open(self) -> None:
        """Open it for reading."""
        self._store = store = LogStore.open(self.directory, writable=False)
        starts = tuple(log.start for log in store.shards)
        ends = store.committed()
        begins = locate(self.begin, starts, ends, store.positions_at)
        self._begins = tuple(map(max, zip(begins, starts, strict=True)))
        self.extent = Extent.of(self._begins, ends, self.to)

    async def portions(self) -> AsyncIterator[list[Entry]]:
        """Everything in the order of time."""
        filters = tuple(map(parse_filter, self.filters))
        shards = [self._shard(number, filters) for number in range(len(self._begins))]
        merged = heapq.merge(*shards, key=lambda entry: entry.time_us)
        portion: list[Entry] = []
        for entry in merged:
            portion.append(entry)
            if len(portion) == STEP_RECORDS:
                yield portion
                portion = []
                await asyncio.sleep(0)
        yield portion

    def _shard(self, number: int, filters: tuple[Filter, ...]) -> Iterator[Entry]:
        reader = self._store.reader(filters)
        at = self._begins[number]
        while at < self.extent.ends[number]:
            result = reader.read_shard(number, at, STEP_RECORDS, STEP_BYTES)
            yield from map(_described, entries(result.batches))
            if result.positions[0] <= at:
                return
            at = result.positions[0]

    async def close(self) -> None:
        """Let go of it."""
        if hasattr(self, "_store"):
            self._store.close()


def _described(entry: Entry) -> Entry:
    """With its position and time as the broker would give them."""
    more = _pair(POSITION, f"{entry.shard}:{entry.offset}") + _pair(TIME, exact_time(entry.time_us))
    return entry._replace(message=entry.message._replace(section=entry.message.section + more))


def _pair(key: str, value: str) -> bytes:
    """A user property as it stands in a PUBLISH."""
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text.encode() for text in (key, value))


async def opened(source: Source, parts: AsyncExitStack) -> Source:
    """The source, open until `parts` ends."""
    parts.push_async_callback(source.close)
    await source.open()
    return source


def check_filters(filters: Sequence[str]) -> None:
    """Refuse what can't be replayed."""
    for text in filters:
        if parse_filter(text).group is not None:
            raise UsageError(f"{text} is a shared subscription", hint="give the filter behind $share/<group>/")
