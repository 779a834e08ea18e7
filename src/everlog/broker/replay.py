"""Replay: what a SUBSCRIBE asks of history, and what a session that goes back becomes. Pure.

A replay is a subscription that begins in the past: `since` says where, and the session's `lag` goes back to there, so
it reads the log like any session that is behind and turns live at its end. Its other subscriptions then begin where the
session was, so that they get nothing again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everlog.base import PeerError
from everlog.mqtt import Properties, Reason
from everlog.sessions import Session, Subscribed
from everlog.store import Positions
from everlog.topics import parse_filter

PREFIX = "$replay/"
LIVE_TOPIC = "$replay/live"  # a client that asks for it is told here that history is over
FROM, POSITION, LIVE = "everlog-from", "everlog-position", "everlog-live"
BEGIN, END = "everlog-begin", "everlog-end"  # of a SUBACK

_YES = ("yes", "true", "1")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user properties of a SUBSCRIBE ask for, for all of its filters."""

    begin: str | None = None
    position: bool = False  # each message carries its position and time
    live: bool = False  # a message says when history is over


def wishes_of(properties: Properties) -> Wishes:
    """The wishes; a beginning that is given twice is none."""
    pairs = properties.user_properties
    if not pairs:
        return Wishes()
    begins = [value for key, value in pairs if key == FROM]
    return Wishes(
        (begins[0] if len(begins) == 1 else ", ".join(begins)) if begins else None,
        any(key == POSITION and value in _YES for key, value in pairs),
        any(key == LIVE and value in _YES for key, value in pairs),
    )


def split_filter(text: str) -> tuple[str | None, str]:
    """`$replay/<from>/<filter>` as its two parts; any other filter has no beginning."""
    if not text.startswith(PREFIX):
        return None, text
    _, begin, rest = text.split("/", 2) if text.count("/") > 1 else ("", "", "")
    if not rest or not begin:
        raise PeerError(Reason.TOPIC_FILTER_INVALID, "a replay is $replay/<from>/<filter>")
    return begin, rest


def filter_of(text: str) -> str:
    """The filter that a subscription is stored under: a replay and its filter are the same subscription."""
    try:
        return split_filter(text)[1]
    except PeerError:
        return text


def rewind(session: Session, text: str, begins: Positions, routed: Sequence[int]) -> dict[str, Subscribed]:
    """Let a session go back to where a replay of `text` begins; its other subscriptions that begin later by that."""
    here = [session.lag.get(shard, end) for shard, end in enumerate(routed)]
    back = [shard for shard, begin in enumerate(begins) if begin < here[shard]]
    for shard in back:
        session.lag[shard] = begins[shard]
    changed: dict[str, Subscribed] = {}
    for other, one in session.subscriptions.items() if back else ():
        if other == text or parse_filter(other).group is not None:
            continue
        since = list(one.since or (0,) * len(here))
        for shard in back:
            since[shard] = max(since[shard], here[shard])
        if tuple(since) != one.since:
            changed[other] = replace(one, since=tuple(since))
    return changed


def forget_lost(begins: Positions, starts: Sequence[int]) -> tuple[Positions, dict[int, tuple[int, int]]]:
    """A beginning moved up to what is still there, and by shard what that leaves out."""
    lost = {
        shard: (begin, start) for shard, (begin, start) in enumerate(zip(begins, starts, strict=True)) if begin < start
    }
    return tuple(map(max, zip(begins, starts, strict=True))), lost


def say_lost(lost: dict[int, tuple[int, int]]) -> str:
    """What is gone, in words."""
    gone = ", ".join(f"{shard}:{begin} to {shard}:{start - 1}" for shard, (begin, start) in lost.items())
    return f"no longer kept: {gone}" if lost else ""
