"""Which sessions and shared groups lose unread messages to retention, and which would lose some next.

All of them are checked, a slice at a time so that a million do not hold up the event loop. What a connected client was
sent counts as read; what a member of a group was sent counts when it is acknowledged, since until then another member
may have to get it. Owned by the event loop's thread.
"""

import heapq
import json
import logging
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import NamedTuple

from everlog.base import NOT_KEPT, unpack_position
from everlog.broker.delivery import Catchup
from everlog.broker.events import event
from everlog.broker.groups import GroupRegistry
from everlog.broker.registry import Registry
from everlog.sessions import (
    RELEASED,
    SHARED_PREFIX,
    Session,
    StoredSession,
    unpack_inflight,
    unpack_offsets,
    unpack_session,
)
from everlog.store import Positions

MOST_NAMED = 10  # readers that would lose next and are reported by name
_TOLD_AT_ONCE = 200  # reports between two turns of the event loop
NOTHING = 1 << 62  # in place of an offset: no message of this shard is owed
_log = logging.getLogger("everlog.broker")


@dataclass(frozen=True, slots=True)
class Doomed:
    """What retention removes, for each shard: `starts` to `goes` now, `goes` to `next` after that.

    A table has what is below `tabled`. Sessions can read it there when the log has lost it; groups can't.
    """

    starts: Positions
    goes: Positions
    next: Positions
    tabled: Positions


class NextLoss(NamedTuple):
    """A reader that would lose by the removal of the next segments: how many messages of any topic, from where on."""

    unread: int
    name: str
    is_group: bool
    begins: str

    def told(self) -> dict[str, object]:
        """Return it as the fields of a JSON object."""
        return {"group" if self.is_group else "client": self.name, "unread": self.unread, "from": self.begins}


@dataclass(slots=True)
class RetentionState:
    """What retention has done since the start and is about to do."""

    lost: int = 0  # messages removed before a session or a group had read them, counted for each of those
    losers: int = 0  # how often a session or a group lost some
    next_readers: int = 0  # sessions and groups with unread messages in the segments that go next
    next_named: tuple[NextLoss, ...] = ()  # those with the most
    next_us: int | None = None  # when the first of those segments is too old
    thinned: int = 0  # messages of short-lived topics emptied in segments that others keep
    thinned_bytes: int = 0  # what that freed
    held_bytes: int = 0  # due to be deleted, and kept because no table has it

    def next_text(self) -> str:
        """Return who would lose next, as JSON."""
        return json.dumps([one.told() for one in self.next_named], ensure_ascii=False)


class Unread(NamedTuple):
    """What a reader has not read: everything from an offset on in each shard, and single messages (shard, offset)."""

    name: str
    is_group: bool
    begins: Sequence[int]
    single: Sequence[tuple[int, int]] = ()

    def between(self, shard: int, first: int, stop: int) -> int:
        """Return how many unread offsets there are from `first` to before `stop`."""
        begin = self.begins[shard]
        if not self.single:
            return max(0, stop - max(first, begin))
        single = sum(number == shard and first <= offset < min(stop, begin) for number, offset in self.single)
        return max(0, stop - max(first, begin)) + single

    def lowest(self, shard: int) -> int:
        """Return the first unread offset of a shard."""
        if not self.single:
            return self.begins[shard]
        return min((self.begins[shard], *(offset for number, offset in self.single if number == shard)))


class Tally:
    """The findings of one look at all readers."""

    def __init__(self, doomed: Doomed) -> None:
        self.losing: list[tuple[bool, str]] = []
        self.next_readers = 0
        self._doomed = doomed
        self._most: list[NextLoss] = []

    def add(self, one: Unread) -> None:
        """Take in a reader that is behind."""
        doomed, losing, waiting = self._doomed, False, 0
        begins: dict[int, int] = {}
        for shard, (start, goes, stop) in enumerate(zip(doomed.starts, doomed.goes, doomed.next, strict=True)):
            lowest = one.lowest(shard)
            if lowest >= stop:
                continue
            tabled = 0 if one.is_group else doomed.tabled[shard]
            losing = losing or (lowest < goes and one.between(shard, max(start, tabled), goes) > 0)
            here = one.between(shard, max(goes, tabled), stop)
            if here:
                waiting += here
                begins[shard] = max(lowest, goes, tabled)
        if losing:
            self.losing.append((one.is_group, one.name))
        if waiting:
            self.next_readers += 1
            if len(self._most) < MOST_NAMED or waiting >= self._most[0].unread:
                self._name(waiting, one, begins)

    def _name(self, waiting: int, one: Unread, begins: dict[int, int]) -> None:
        text = ",".join(f"{shard}:{offset}" for shard, offset in begins.items())
        heapq.heappush(self._most, NextLoss(waiting, one.name, one.is_group, text))
        if len(self._most) > MOST_NAMED:
            heapq.heappop(self._most)

    @property
    def most(self) -> tuple[NextLoss, ...]:
        """The readers with most to lose next, the most first."""
        return tuple(sorted(self._most, reverse=True))


class UnreadLoss:
    """The check of all sessions and groups of one broker."""

    def __init__(self, registry: Registry, groups: GroupRegistry, catchup: Catchup, shards: int) -> None:
        self.state = RetentionState()
        self._catchup = catchup
        self._registry = registry
        self._groups = groups
        self._shards = range(shards)

    def look_owed(self) -> Generator[None, None, list[int]]:
        """Return for each shard the first offset that a session or group that outlives its connections may need.

        What was sent to a client counts until it is acknowledged. Pauses after each slice; who falls behind meanwhile
        does so at a later offset, unless it asks for history.
        """
        found = [NOTHING for _ in self._shards]
        for group in self._unread_of_groups():
            found = [min(at, group.lowest(shard)) for shard, at in enumerate(found)]
        yield
        for awake, asleep in self._registry.walk():
            readers = [self._of_session(session, sent=True) for session in awake if session.kept]
            readers += [_of_stored(client_id, unpack_session(packed)) for client_id, packed in asleep]
            for one in readers:
                found = [min(at, one.lowest(shard)) for shard, at in enumerate(found)]
            yield
        return found

    def look(self, doomed: Doomed) -> Generator[None, None, Tally]:
        """Check all readers, pausing after each slice."""
        tally = Tally(doomed)
        for group in self._unread_of_groups():
            tally.add(group)
        yield
        for awake, asleep in self._registry.walk():
            for session in awake:
                if session.lag or session not in self._registry.clients:
                    tally.add(self._of_session(session))
            for client_id, packed in asleep:
                stored = unpack_session(packed)
                if stored.cursor.inflight or _is_behind(stored, doomed.next):
                    tally.add(_of_stored(client_id, stored))
            yield
        return tally

    def note_losses(self, noting: bool) -> None:
        """Begin or end to note what connected sessions miss, since those that have noticed are no longer behind it."""
        self._catchup.losses = {} if noting else None

    def tell(self, losing: Sequence[tuple[bool, str]], doomed: Doomed) -> Generator[None, None, None]:
        """Report whose messages are gone, of the `losing` who had not read them when `note_losses` began."""
        groups = {one.name: one for one in self._unread_of_groups()} if any(is_group for is_group, _ in losing) else {}
        for number, (is_group, name) in enumerate(losing, 1):
            one = groups.get(name) if is_group else self._of_client(name)
            if one is not None:
                self._tell(one, doomed)
            if number % _TOLD_AT_ONCE == 0:
                yield

    def _tell(self, one: Unread, doomed: Doomed) -> None:
        total = 0
        noted = () if one.is_group else (self._catchup.losses or {}).get(one.name, ())
        for shard, (start, goes) in enumerate(zip(doomed.starts, doomed.goes, strict=True)):
            first = start if one.is_group else max(start, doomed.tabled[shard])
            missed = [(max(first, begin), min(goes, stop)) for where, begin, stop in noted if where == shard]
            missed = [(begin, stop) for begin, stop in missed if begin < stop]
            count = one.between(shard, first, goes) + sum(stop - begin for begin, stop in missed)
            if count:
                total += count
                lowest = min(max(first, one.lowest(shard)), *(begin for begin, _ in missed), goes)
                fields = {"shard": shard, "from": lowest, "to": goes, "count": count}
                whom = {"group" if one.is_group else "client": one.name}
                event(_log, "retention_lost", WARNING, **whom, **fields)
        self.state.lost += total
        self.state.losers += total > 0

    def _unread_of_groups(self) -> list[Unread]:
        return [
            Unread(name, True, begins, list(map(unpack_position, owed))) for name, begins, owed in self._groups.unread()
        ]

    def _of_client(self, client_id: str) -> Unread | None:
        session = self._registry.sessions.get(client_id)
        if session is not None:
            return self._of_session(session)
        packed = self._registry.asleep.get(client_id)
        return None if packed is None else _of_stored(client_id, unpack_session(packed))

    def _of_session(self, session: Session, *, sent: bool = False) -> Unread:
        """Return what a session has not read; with `sent`, a connected one has not read what it did not acknowledge."""
        since = [one.since for text, one in session.subscriptions.items() if not text.startswith(SHARED_PREFIX)]
        begins = _begins([session.lag.get(shard, NOTHING) for shard in self._shards], since)
        is_read = session in self._registry.clients and not sent
        under_way = () if is_read else _under_way(session.pending())
        return Unread(session.client_id, False, begins, under_way)


def _of_stored(client_id: str, stored: StoredSession) -> Unread:
    since = [unpack_offsets(one.since) for one in stored.subscriptions if not one.filter.startswith(SHARED_PREFIX)]
    positions = [at if at >= 0 else NOTHING for at in unpack_offsets(stored.cursor.positions)]
    under_way = _under_way(unpack_inflight(stored.cursor.inflight)) if stored.cursor.inflight else ()
    return Unread(client_id, False, _begins(positions, since), under_way)


def _is_behind(stored: StoredSession, below: Positions) -> bool:
    return any(0 <= at < end for at, end in zip(unpack_offsets(stored.cursor.positions), below, strict=False))


def _begins(positions: list[int], since: list[tuple[int, ...]]) -> list[int]:
    """Return for each shard the first offset that any of a reader's subscriptions is still to get."""
    if not since:
        return [NOTHING] * len(positions)
    if not all(since):
        return positions
    first = [min(one[shard] if shard < len(one) else 0 for one in since) for shard in range(len(positions))]
    return list(map(max, positions, first))


def _under_way(pending: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return the places of messages in the log that are to be sent again."""
    places = [unpack_position(position) for _, state, position in pending if state != RELEASED]
    return [place for place in places if place[0] != NOT_KEPT]
