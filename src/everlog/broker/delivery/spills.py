"""Spills: who is too slow for what waits in memory reads the rest from the log.

When a transient subscriber's queue gets long, its filters are kept from that moment on: it drains the queue, goes on
from the log like everybody who is behind, and when it is live again its filters are let go. Filters go at a moment when
everything that was appended has been routed, so that no message overtakes an older one of its topic on the way through
the log; a session that is still behind by then takes what is in no log after what it has not read (`released`). The log
from the slowest such reader on counts against a limit over all; beyond it the slowest is cut off.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from logging import DEBUG
from typing import Protocol

from everlog.broker.delivery.kept_topics import SPILLED, KeptTopics
from everlog.broker.delivery.ports import Log
from everlog.broker.events import event
from everlog.sessions import SHARED_PREFIX, OutgoingRows, Session
from everlog.topics import Filter

_SLICE = 200  # filters added or let go in one turn of the event loop
_PATIENCE = 5  # sweeps to wait for a moment at which filters can go, before one is made
_REST_TOPICS = 10_000  # topics to look up again because filters went, for each sweep until others may go
_MOST_CUT_OFF = 100  # readers in one sweep
_LOOKED_AT = 2000  # sessions between two turns of the event loop
_log = logging.getLogger("everlog.broker")


class SpilledReader(Protocol):
    """Whoever reads the log because it was spilled."""

    @property
    def name(self) -> str: ...

    def reads_on(self) -> Sequence[int]: ...  # for each shard the first offset that it needs

    def slowest(self) -> Session | None: ...  # whom to cut off


@dataclass(eq=False, slots=True)
class SpilledSession:
    """A spilled session: its filters that are kept for that, and those that are to be."""

    session: Session
    routed: Sequence[int]
    filters: dict[str, None] = field(default_factory=dict)
    todo: deque[str] = field(default_factory=deque)
    is_whole: bool = False  # all of its filters are in one of the two

    @property
    def name(self) -> str:
        """The client's id."""
        return self.session.client_id

    def reads_on(self) -> Sequence[int]:
        """Return for each shard the first offset that it needs."""
        return [self.session.lag.get(shard, at) for shard, at in enumerate(self.routed)]

    def slowest(self) -> Session | None:
        """Return whom to cut off."""
        return self.session

    @property
    def is_live(self) -> bool:
        """Whether it has drained its queue and has read the log."""
        return not self.session.lag and not self.session.queued_bytes


class Spills:
    """Everybody who is spilled; owned by the event loop's thread. With a limit of 0 bytes nobody is."""

    def __init__(
        self,
        kept: KeptTopics,
        log: Log,
        routed: Sequence[int],
        limit_bytes: int,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.released = [0] * len(routed)  # where the shards ended when filters were last let go
        self.is_due = False  # filters wait to be let go at the next good moment
        self.hurries = False  # such a moment has to be made
        self.count = 0  # how often a session or a group was spilled
        self.held_bytes = 0  # of the log, from the slowest reader on, at the last sweep
        self.spill_group: Callable[[tuple[str, str]], bool] = lambda key: False
        self.on_over_quota: Callable[[Session], None] = lambda session: None
        self.on_full: Callable[[Session], None] = lambda session: None
        self.connected: Iterable[Session] = ()
        self._kept = kept
        self._log = log
        self._routed = routed
        self._limit_bytes = limit_bytes
        self._soon = soon
        self._sessions: dict[Session, SpilledSession] = {}
        self._groups: dict[tuple[str, str], SpilledReader] = {}
        self._kept_groups: set[tuple[str, str]] = set()  # of them, those whose filters are kept
        self._leaving: dict[str, int] = {}  # filters to let go, each with how many of its users
        self._waited = 0  # sweeps
        self._rest = 0  # sweeps

    def __len__(self) -> int:
        return len(self._sessions) + len(self._groups)

    @property
    def may_spill(self) -> bool:
        """Whether the log can take what does not fit into memory."""
        shards = self._log.shards
        return self._limit_bytes > 0 and all(one.failure is None and one.trouble is None for one in shards)

    # Sessions

    def too_long(self, out: OutgoingRows) -> None:
        """Deal with a session that so much waits for in memory, some of it just now: spill it, or close it."""
        session, group = out.merged.session, out.merged.group
        if group is None:
            spilled = self.spill(session)
        else:  # what other members were given in the same turn may wait as well
            spilled = self.may_spill and (self.spill_group(group) or group in self._kept_groups)
        if spilled:
            session.spilled()
        elif session.shed():
            self.on_over_quota(session)

    def spill(self, session: Session) -> bool:
        """Have the filters of a session kept; return whether that is new for some of them."""
        if session.kept or not self.may_spill:
            return False
        one = self._sessions.get(session)
        if one is None:
            one = self._sessions[session] = SpilledSession(session, self._routed)
            self.count += 1
            event(_log, "spilled", DEBUG, client=session.client_id, bytes=session.queued_bytes)
        elif one.is_whole:
            return False
        one.is_whole = True
        one.todo.extend(_owed_filters(session, one))
        return self._keep(one)

    def _keep(self, one: SpilledSession) -> bool:
        """Have some of the filters of a session kept that are to be; return whether there were any."""
        added = 0
        while one.todo and added < _SLICE:
            text = one.todo.popleft()
            if text in one.session.subscriptions and text not in one.filters:
                one.filters[text] = None
                self._kept.add(text, SPILLED)
                added += 1
        if one.todo:
            self._soon(lambda: self._go_on(one))
        return added > 0

    def _go_on(self, one: SpilledSession) -> None:
        if self._sessions.get(one.session) is one:
            self._keep(one)

    def subscribed(self, session: Session) -> None:
        """Take note that a session may have one more filter."""
        one = self._sessions.get(session)
        if one is not None:
            one.is_whole = False

    def has(self, session: Session) -> bool:
        """Return whether a session is spilled."""
        return session in self._sessions

    def unsubscribed(self, session: Session, flt: Filter) -> None:
        """Let go of a filter that a session has given up."""
        one = self._sessions.get(session)
        if one is not None and flt.text in one.filters:
            del one.filters[flt.text]
            self.leave((flt.text,))

    def forget(self, session: Session) -> None:
        """Let go of everything of a session that is live again, or has no connection any more."""
        one = self._sessions.pop(session, None)
        if one is not None:
            self.leave(one.filters)

    # Groups

    def add_group(self, key: tuple[str, str], group: SpilledReader) -> bool:
        """Have the filter of a shared group kept, which reads it by a cursor of its own; return whether that is new."""
        if key in self._kept_groups:
            return False
        self._groups[key] = group
        self._kept_groups.add(key)
        self._kept.add(key[1], SPILLED)
        self.count += 1
        event(_log, "spilled", DEBUG, group=group.name)
        return True

    def keeps(self, text: str) -> bool:
        """Return whether a filter that someone spilled has let go of is still kept for that."""
        return text in self._leaving

    def release_group(self, key: tuple[str, str]) -> None:
        """Let go of the filter of a group that is live again, and may still need what it has dealt."""
        if key in self._kept_groups:
            self._kept_groups.remove(key)
            self.leave((key[1],))

    def forget_group(self, key: tuple[str, str]) -> None:
        """Let go of a group that needs nothing of the log any more."""
        self.release_group(key)
        self._groups.pop(key, None)

    # Letting go

    def leave(self, filters: Iterable[str]) -> None:
        """Let filters go, each for one of its users, at some later moment."""
        for text in filters:
            self._leaving[text] = self._leaving.get(text, 0) + 1

    def let_go(self) -> None:
        """Let some filters go if this is a moment for it: nothing is between the log's end and the subscribers."""
        for number, shard in enumerate(self._log.shards):
            if self._routed[number] < shard.end and shard.failure is None:
                return
        topics = 0
        for text in list(islice(self._leaving, _SLICE)):
            for _ in range(self._leaving.pop(text)):
                topics += self._kept.remove(text, SPILLED)
        self.released[:] = self._routed
        self._rest += topics // _REST_TOPICS
        self._waited = 0
        self.hurries = False
        self.is_due = bool(self._leaving) and self._rest == 0

    def sweep(self) -> None:
        """Let go of who is live, cut off who holds too much of the log, see to filters that wait to go; once a second.

        A moment for filters to go comes by itself unless kept messages arrive faster than they are committed. Then
        nothing more is read from publishers until one has come.
        """
        for session in [session for session, one in self._sessions.items() if one.is_live]:
            event(_log, "spill_ended", DEBUG, client=session.client_id)
            self.forget(session)
        self._cut_off()
        if self._rest:
            self._rest -= 1
        elif self._leaving:
            self.is_due = True
            self.let_go()
            if self.is_due:
                self._waited += 1
                self.hurries = self._waited > _PATIENCE

    # The limit

    def needed(self) -> list[int]:
        """Return for each shard the first offset that someone spilled needs; where nobody does, what is not routed."""
        found = list(self._routed)
        for one in self._readers():
            found = list(map(min, found, one.reads_on()))
        return found

    def look(self) -> Generator[None, None, list[int]]:
        """Return for each shard the first offset that someone connected may need who has nothing stored.

        Looks at all who are connected, pausing after some: also who was never spilled may be behind in what was kept
        for others. Who falls behind meanwhile does so at a later offset.
        """
        found = self.needed()
        for number, session in enumerate(list(self.connected)):
            for shard, at in session.lag.items() if not session.kept else ():
                found[shard] = min(found[shard], at)
            if number % _LOOKED_AT == 0:
                yield
        return found

    def _readers(self) -> list[SpilledReader]:
        return [*self._sessions.values(), *self._groups.values()]

    def _held_from(self, offsets: Iterable[int]) -> int:
        return sum(shard.bytes_from(at) for shard, at in zip(self._log.shards, offsets, strict=True))

    def _cut_off(self) -> None:
        """Cut off the slowest readers until the others hold no more of the log than they may."""
        self.held_bytes = self._held_from(self.needed()) if len(self) else 0
        if self.held_bytes <= self._limit_bytes:
            return
        readers = sorted(self._readers(), key=lambda one: self._held_from(one.reads_on()))
        for _ in range(min(_MOST_CUT_OFF, len(readers))):
            needs = [one.reads_on() for one in readers]
            if not needs or self._held_from(map(min, zip(*needs, strict=True))) <= self._limit_bytes:
                return
            session = readers.pop().slowest()
            if session is not None:
                self.on_full(session)

    def failed(self) -> list[Session]:
        """Return the sessions that wait for what can't be written any more."""
        return [session for one in self._readers() if (session := one.slowest()) is not None]


def _owed_filters(session: Session, one: SpilledSession) -> list[str]:
    """Return the filters by which a session by itself gets messages that must not be dropped, and that are not kept."""
    return [
        text
        for text, subscribed in session.subscriptions.items()
        if subscribed.qos and text not in one.filters and not text.startswith(SHARED_PREFIX)
    ]
