"""The part of history that `everlog replay` goes through, and the places and times of its messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from everlog.base import UsageError
from everlog.cli.client.log_entry import Entry
from everlog.mqtt import Message, Properties
from everlog.store import Begin, BeginKind, parse_begin

POSITION, TIME = "everlog-position", "everlog-time"  # user properties that the broker adds on request
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entry_of(message: Message) -> Entry | None:
    """Return a message with the position and time that the broker gave it, or None if it is in no log."""
    pairs = dict(message.properties.user_properties)
    if POSITION not in pairs or TIME not in pairs:
        return None
    shard, _, offset = pairs[POSITION].partition(":")
    return Entry(int(shard), int(offset), parse_begin(pairs[TIME], 0).time_us, message)


def exact_time(time_us: int) -> str:
    """Return a time as `everlog-time` has it."""
    return f"{(_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def own_properties(message: Message) -> Properties:
    """Return the properties that a message was published with, without those that the broker added for us."""
    found = message.properties
    pairs = tuple(pair for pair in found.user_properties if pair[0] not in (POSITION, TIME))
    return replace(found, user_properties=pairs, subscription_identifiers=(), topic_alias=None)


@dataclass(slots=True)
class Extent:
    """What is left to replay: from an offset to another in each shard, and only messages before `to_us`."""

    begins: list[int]
    ends: list[int]
    to_us: int | None = None

    @classmethod
    def of(cls, begins: Sequence[int], ends: Sequence[int], to: Begin | None) -> "Extent":
        """Return what lies between two positions and, with `to`, before a time or position."""
        bounds = list(ends)
        for shard, offset in to.offsets if to is not None else ():
            if shard >= len(bounds):
                raise UsageError(f"--to names shard {shard}", hint=f"the shards are 0 to {len(bounds) - 1}")
            bounds[shard] = min(bounds[shard], offset)
        return cls(list(begins), bounds, to.time_us if to is not None and to.kind is BeginKind.TIME else None)

    def takes(self, entry: Entry) -> bool:
        """Return whether a message is within; one that is not ends its shard, as all after it are later."""
        if entry.offset < self.ends[entry.shard] and (self.to_us is None or entry.time_us < self.to_us):
            return True
        self.ends[entry.shard] = min(self.ends[entry.shard], entry.offset)
        self.begins[entry.shard] = max(self.begins[entry.shard], self.ends[entry.shard])
        return False

    def passed(self, entry: Entry) -> None:
        """Note that a message is done."""
        self.begins[entry.shard] = entry.offset + 1

    @property
    def left(self) -> int:
        """How many offsets are left."""
        return sum(max(0, end - begin) for begin, end in zip(self.begins, self.ends, strict=True))
