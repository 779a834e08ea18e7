"""Messages of the past on their way through `everlog replay`: where and when each was, how far, and how fast."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from everlog.base import UsageError
from everlog.cli.entries import Entry
from everlog.cli.message import Message
from everlog.mqtt import NO_PROPERTIES, Properties
from everlog.store import Begin, BeginKind, parse_begin

LONGEST_NAP_S = 0.5  # between looks at the clock
POSITION, TIME = "everlog-position", "everlog-time"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entry_of(message: Message) -> Entry | None:
    """What the broker says of a message; None of one that is in no log."""
    pairs = dict(message.properties.user_properties)
    if POSITION not in pairs or TIME not in pairs:
        return None
    shard, _, offset = pairs[POSITION].partition(":")
    return Entry(int(shard), int(offset), parse_begin(pairs[TIME], 0).time_us, message)


def exact_time(time_us: int) -> str:
    """A time as `everlog-time` has it."""
    return f"{(_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def own_properties(message: Message) -> Properties:
    """The properties that a message was published with: without what the broker added for us."""
    if not message.section:
        return NO_PROPERTIES
    found = message.properties
    pairs = tuple(pair for pair in found.user_properties if pair[0] not in (POSITION, TIME))
    return replace(found, user_properties=pairs, subscription_identifiers=(), topic_alias=None)


@dataclass(slots=True)
class Extent:
    """From where to where history goes: offsets by shard, and the time before which a message must be, if any."""

    begins: list[int]
    ends: list[int]
    to_us: int | None = None

    @classmethod
    def of(cls, begins: Sequence[int], ends: Sequence[int], to: Begin | None) -> "Extent":
        """What lies between positions and, with `to`, before a time or position."""
        bounds = list(ends)
        for shard, offset in to.offsets if to is not None else ():
            if shard >= len(bounds):
                raise UsageError(f"--to names shard {shard}", hint=f"the shards are 0 to {len(bounds) - 1}")
            bounds[shard] = min(bounds[shard], offset)
        return cls(list(begins), bounds, to.time_us if to is not None and to.kind is BeginKind.TIME else None)

    def takes(self, entry: Entry) -> bool:
        """Whether a message is within; one that is not ends its shard, as all behind it are later."""
        if entry.offset < self.ends[entry.shard] and (self.to_us is None or entry.time_us < self.to_us):
            return True
        self.ends[entry.shard] = min(self.ends[entry.shard], entry.offset)
        self.begins[entry.shard] = max(self.begins[entry.shard], self.ends[entry.shard])
        return False

    def passed(self, entry: Entry) -> None:
        """A message is done: its shard goes on behind it."""
        self.begins[entry.shard] = entry.offset + 1

    @property
    def left(self) -> int:
        """How many offsets are before us."""
        return sum(max(0, end - begin) for begin, end in zip(self.begins, self.ends, strict=True))


@dataclass(slots=True)
class Pace:
    """When a message is due: `speed` times as fast as it was, or at once (None)."""

    speed: float | None
    clock: Callable[[], float] = time.monotonic
    nap: Callable[[float], Awaitable[None]] = asyncio.sleep
    _first_us: int | None = None
    _began: float = 0.0

    async def wait_for(self, time_us: int, before: Callable[[], None]) -> None:
        """Wait for a message's moment, having called `before`; not for one older than those before it."""
        while (wait := self.wait_s(time_us, self.clock())) > 0:
            before()
            await self.nap(min(wait, LONGEST_NAP_S))

    def wait_s(self, time_us: int, now: float) -> float:
        """How long that is."""
        if self.speed is None:
            return 0.0
        if self._first_us is None:
            self._first_us, self._began = time_us, now
        return max(0.0, self._began + (time_us - self._first_us) / 1e6 / self.speed - now)


def parse_speed(text: str) -> float | None:
    """`max`, `original`, or as `10x`."""
    if text == "max":
        return None
    if text == "original":
        return 1.0
    try:
        speed = float(text.removesuffix("x")) if text.endswith("x") else 0.0
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise UsageError(f"--speed {text!r} is no speed", hint="use max, original, or a factor like 10x")
    return speed
