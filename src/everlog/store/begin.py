"""Where in history to begin, as people and clients write it: `earliest`, `latest`, a time, an age or a position.

Pure: the time and the state of the log are arguments.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, auto

from everlog.base import MAX_OFFSET, UsageError
from everlog.store.read_result import Positions
from everlog.store.sharding import MAX_SHARDS

HINT = "write earliest, latest, -24h, 2026-01-31, 2026-01-31T12:00:00Z or a position like 0:1234"

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_AGO = re.compile(r"-((?:\d{1,12}(?:\.\d{1,6})?[smhdw])+)", re.ASCII)
_PART = re.compile(r"(\d+)(?:\.(\d+))?([smhdw])", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:[Zz]|([+-])(\d\d):(\d\d))?)?", re.ASCII
)
_POSITION = re.compile(r"\d{1,3}:\d{1,17}(?:,\d{1,3}:\d{1,17})*", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BeginKind(Enum):
    """How a beginning is given."""

    EARLIEST = auto()
    LATEST = auto()
    TIME = auto()
    POSITION = auto()


@dataclass(frozen=True, slots=True)
class Begin:
    """A place in history before it is looked up; a time has `time_us`, a position has `offsets` by shard."""

    kind: BeginKind
    time_us: int = 0
    offsets: tuple[tuple[int, int], ...] = ()


def parse_begin(text: str, now_us: int) -> Begin:
    """Return the beginning that a text means, or raise a UsageError that says what is wrong with it."""
    if text in ("earliest", "latest"):
        return Begin(BeginKind[text.upper()])
    if (ago := _AGO.fullmatch(text)) is not None:
        return Begin(BeginKind.TIME, max(0, now_us - _duration_us(ago[1])))
    if (time := _TIME.fullmatch(text)) is not None:
        return Begin(BeginKind.TIME, max(0, _time_us(text, time)))
    if _POSITION.fullmatch(text) is not None:
        return Begin(BeginKind.POSITION, offsets=_offsets(text))
    raise UsageError(f"{text!r} is not a place in history", hint=HINT)


def _duration_us(text: str) -> int:
    return sum(
        int(whole) * _UNITS_US[unit] + int(f"{fraction:0<6}") * _UNITS_US[unit] // 1_000_000
        for whole, fraction, unit in _PART.findall(text)
    )


def _time_us(text: str, found: re.Match[str]) -> int:
    """Return an RFC 3339 time, in UTC where it names no zone; a date is its first moment.

    A leap second counts as the next minute's first moment, nanoseconds are ignored.
    """
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    fraction, sign, east_hours, east_minutes = found.groups()[6:]
    try:
        if second > 60 or int(east_minutes or 0) > 59:
            raise ValueError
        east = timedelta(hours=int(east_hours or 0), minutes=int(east_minutes or 0))
        zone = timezone(-east if sign == "-" else east)
        whole = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone) - _EPOCH
    except (ValueError, OverflowError):
        raise UsageError(f"there is no time {text!r}", hint=HINT) from None
    seconds = whole.days * 86_400 + whole.seconds
    if second == 60:
        return (seconds + 1) * 1_000_000
    return seconds * 1_000_000 + int(f"{fraction or '':0<6}"[:6])


def _offsets(text: str) -> tuple[tuple[int, int], ...]:
    offsets: dict[int, int] = {}
    for part in text.split(","):
        shard, offset = map(int, part.split(":"))
        if shard in offsets:
            raise UsageError(f"{text!r} has shard {shard} twice", hint="name each shard once, as in 0:1234,1:99")
        if shard >= MAX_SHARDS or offset > MAX_OFFSET:
            raise UsageError(f"{part!r} is not a position", hint="it is a shard and an offset in it, as in 0:1234")
        offsets[shard] = offset
    return tuple(sorted(offsets.items()))


def locate(begin: Begin, starts: Sequence[int], ends: Sequence[int], at: Callable[[int], Positions]) -> Positions:
    """Return the offset in each shard; `starts` and `ends` bound what there is, `at` finds the positions of a time.

    What lies after the end becomes the end. An offset below the start stays as it is, since whoever asked for that
    offset is to be told that it is gone.
    """
    if begin.kind is BeginKind.EARLIEST:
        return tuple(starts)
    if begin.kind is BeginKind.LATEST:
        return tuple(ends)
    if begin.kind is BeginKind.TIME:
        found: Sequence[int] = at(begin.time_us)
    else:
        named = dict(begin.offsets)
        if (highest := max(named)) >= len(starts):
            raise UsageError(f"there is no shard {highest}", hint=f"the shards are 0 to {len(starts) - 1}")
        found = [named.get(shard, start) for shard, start in enumerate(starts)]
    return tuple(min(offset, end) for offset, end in zip(found, ends, strict=True))


def show_positions(positions: Sequence[int]) -> str:
    """Return positions as a text that `parse_begin` reads."""
    return ",".join(f"{shard}:{offset}" for shard, offset in enumerate(positions))
