"""Write-behind of sessions, shared groups and retained messages: changes are marked, and written a little later.

Marking adds to a set; what is written is taken from the sessions when a batch is made, so many changes of one session
cost one write. Batches are numbered. One is written at a time, in a thread; it is synced if somebody waits for it,
and `saved` is the number of the last batch known to survive a power cut. Owned by the event loop's thread.
Invariant: a batch is made in one go, so marked sessions, groups and `routed` are all as of the same moment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

from everlog.broker.delivery import RetainedSaving, Unsaved
from everlog.sessions import (
    Changes,
    Cursor,
    GroupRow,
    Refused,
    Session,
    SessionTables,
    WillRow,
    cursor_of,
    pack_subscription,
    retained_end,
    row_of,
)

_DELAY_S = 0.25  # between batches that nobody waits for
_MAX_DELAY_S = 2.0
_SHARE = 9  # pause before the next batch, in times of the last one, so that writing takes at most a tenth
_BEAT_S = 10.0  # an idle broker still writes that it is alive
_RETRY_S = 1.0
_SLOW_S = 0.005  # what a batch takes on a disk with slow syncs
_LINGER = 0.1  # of what the last batch took, before the next begins there
_MOST_LINGER_S = 0.005
_STOP_S = 10.0
_log = logging.getLogger("everlog.broker")

Ends: TypeAlias = Sequence[tuple[int, int]]  # shards, each with the offset that something ends at


@dataclass(slots=True)
class Marks:
    """The changes that the next batch will write."""

    ended: dict[str, None] = field(default_factory=dict)
    rows: dict[str, Session] = field(default_factory=dict)
    filters: dict[str, dict[str, None]] = field(default_factory=dict)  # client id -> filters added, removed or changed
    moved: set[Session] = field(default_factory=set)
    retained: Unsaved = field(default_factory=Unsaved)  # what earlier batches could not write
    groups: dict[tuple[str, str], None] = field(default_factory=dict)  # name and filter of changed or ended groups
    wills: dict[str, WillRow | Ends] = field(default_factory=dict)  # or from where on the log has the one that was sent

    def __bool__(self) -> bool:
        return bool(self.moved or self.rows or self.ended or self.filters or self.groups or self.wills)

    def split_wills(self, routed: Sequence[int]) -> "dict[str, WillRow | Ends]":
        """Remove and return the wills that were sent and are not all in the log yet."""
        late = {one: ends for one, ends in self.wills.items() if _is_ahead(ends, routed)}
        for client_id in late:
            del self.wills[client_id]
        return late


def _is_ahead(ends: WillRow | Ends, routed: Sequence[int]) -> bool:
    return not isinstance(ends, WillRow) and any(routed[shard] < end for shard, end in ends)


def changes_of(
    marks: Marks,
    sessions: Mapping[str, Session],
    groups: Mapping[tuple[str, str], GroupRow | None],
    committed: Sequence[int],
    routed: tuple[int, ...],
    now_us: int,
    retained: RetainedSaving | None = None,
) -> Changes:
    """Return the present state of everything that is marked, with changes of retained messages, which marks get."""
    unsubscribed, subscribed = [], []
    for client_id, filters in marks.filters.items():
        session = sessions.get(client_id)
        if session is None:
            continue
        for text in filters:
            one = session.subscriptions.get(text)
            if one is None:
                unsubscribed.append((client_id, text))
            else:
                subscribed.append((client_id, pack_subscription(one, committed)))
    moved = [one for one in marks.moved if one.kept and sessions.get(one.client_id) is one]
    for session in moved:
        session.drop_confirmed(committed)
    cursors = tuple((session.client_id, cursor_of(session, committed)) for session in moved)
    if retained is not None:
        marks.retained.add(retained.take(_owed_below(cursors) if retained.has_unnamed else 0))
    unsaved = marks.retained
    return Changes(
        tuple(marks.ended),
        tuple(row_of(session) for client_id, session in marks.rows.items() if sessions.get(client_id) is session),
        tuple(unsubscribed),
        tuple(subscribed),
        cursors,
        tuple(unsaved.rows.values()),
        tuple(unsaved.names.values()),
        tuple(unsaved.ended_names),
        unsaved.at,
        tuple(key for key, row in groups.items() if row is None),
        tuple(row for row in groups.values() if row is not None),
        tuple(client_id for client_id, one in marks.wills.items() if not isinstance(one, WillRow)),
        tuple(one for one in marks.wills.values() if isinstance(one, WillRow)),
        routed,
        now_us,
    )


def _owed_below(cursors: Iterable[tuple[str, Cursor]]) -> int:
    """Return a number above those of all retained messages that sessions are owed or were sent."""
    return max((retained_end(cursor) for _, cursor in cursors if cursor.feeds or cursor.inflight), default=0)


class WriteBehind:
    """The writer of the session tables. `start` and `stop` bracket its life."""

    def __init__(self, tables: SessionTables, routed: Sequence[int], retained: RetainedSaving | None = None) -> None:
        self.tables = tables
        self.saved = 0
        self.failures = 0  # batches that could not be written, each tried again
        self.marks = Marks()
        self.moved = self.marks.moved  # the router adds to it; emptied, never replaced
        self._routed = routed
        self._retained = retained
        self._changes: Callable[[Marks], Changes] = lambda marks: Changes()
        self._on_saved: Callable[[Session], None] = lambda session: None
        self._batch = 1  # the number of the batch that marks go into
        self._urgent = False
        self._asked = False
        self._writing: asyncio.Future[Refused] | None = None
        self._writing_wills: dict[str, WillRow | Ends] = {}  # of the batch that is being written
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._thread = ThreadPoolExecutor(1, "everlog-sessions")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        self._last_routed: tuple[int, ...] = ()
        self._delay_s = _DELAY_S
        self._linger_s = 0.0

    # Marking

    def mark_session(self, session: Session) -> None:
        """Mark a session whose owner, expiry, will or connection changed; its progress is written too."""
        self.marks.rows[session.client_id] = session
        self.moved.add(session)

    def mark_filter(self, session: Session, text: str) -> None:
        """Mark a subscription that was added, removed or changed."""
        self.marks.filters.setdefault(session.client_id, {})[text] = None
        self.moved.add(session)

    def mark_ended(self, session: Session) -> None:
        """Mark a session that has ended."""
        marks = self.marks
        marks.ended[session.client_id] = None
        marks.rows.pop(session.client_id, None)
        marks.filters.pop(session.client_id, None)
        self.moved.discard(session)

    def mark_group(self, key: tuple[str, str]) -> None:
        """Mark a durable shared group that has changed, begun or ended."""
        self.marks.groups[key] = None

    def mark_will(self, row: WillRow) -> None:
        """Mark the will of a client that has connected, of whose session nothing else is stored."""
        self.marks.wills[row.client_id] = row

    def end_will(self, client_id: str, sent: Ends = ()) -> None:
        """Mark a will to be forgotten when all before the ends in `sent` is in the log."""
        self.marks.wills[client_id] = sent

    def is_marked(self, session: Session) -> bool:
        """Return whether something of a session is still to be written."""
        marks, client_id = self.marks, session.client_id
        return (
            session in self.moved or client_id in marks.rows or client_id in marks.filters or client_id in marks.ended
        )

    def waits_for(self, client_id: str) -> bool:
        """Return whether the end of a session with this client id, or something of its will, is still to be written."""
        return client_id in self.marks.ended or client_id in self.marks.wills or client_id in self._writing_wills

    def ticket(self) -> int:
        """Ask for a batch soon; return the number that `saved` will reach when all that is marked now is durable."""
        self._urgent = True
        if not self._asked and self._writing is None:
            self._write_soon()
        return self._batch

    def _write_soon(self) -> None:
        """Write after this turn of the event loop, or where syncs are slow a little later: others share the batch.

        Whom the last batch has set free answers within a few milliseconds, such as with the next PUBRECs of a small
        window; those would wait for this batch and the next.
        """
        if self._loop is None:
            return
        self._asked = True
        if self._linger_s:
            self._loop.call_later(self._linger_s, self._write)
        else:
            self._loop.call_soon(self._write)

    def when_durable(self, call: Callable[[], None]) -> None:
        """Have `call` called on the event loop when all that was marked so far is durable."""
        self._waiting.append((self.ticket(), call))

    # Writing

    def start(
        self, loop: asyncio.AbstractEventLoop, changes: Callable[[Marks], Changes], on_saved: Callable[[Session], None]
    ) -> None:
        """Begin to write what `changes` makes of marks; `on_saved` is called with sessions that are away and stored."""
        self._loop, self._changes, self._on_saved = loop, changes, on_saved
        self._last_s = loop.time()
        self._timer = loop.call_later(self._delay_s, self._tick)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all that is marked is durable; return False if that takes longer than `timeout_s`."""
        done = asyncio.Event()
        self.when_durable(done.set)
        try:
            await asyncio.wait_for(done.wait(), max(0.0, timeout_s))
        except TimeoutError:
            return False
        return True

    async def retained_at(self) -> tuple[int, ...]:
        """Write some of what waits; return from where on each shard has retained messages that only the log has."""
        assert self._retained is not None
        await self.flush(_STOP_S)
        return self._retained.durable_at

    async def stop(self) -> None:
        """Write all that is marked, durably, and end."""
        if not await self.flush(_STOP_S):
            _log.error("sessions could not be saved within %s s: changes since the last save are lost", _STOP_S)
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None
        self._thread.shutdown()

    def _tick(self) -> None:
        assert self._loop is not None
        idle = self._loop.time() - self._last_s
        routed = tuple(self._routed)
        if (
            self.marks
            or (self._retained is not None and self._retained.waits)
            or self._urgent
            or idle >= _BEAT_S
            or (idle >= 1 and routed != self._last_routed)
        ):
            self._write()
        self._timer = self._loop.call_later(self._delay_s, self._tick)

    def _write(self) -> None:
        self._asked = False
        if self._writing is not None or self._loop is None:
            return
        marks, number = self._take(), self._batch
        durable = self._urgent or bool(marks.wills)
        self._writing_wills = marks.wills
        self._batch += 1
        self._urgent = False
        changes = self._changes(marks)
        self._last_s = self._loop.time()
        self._last_routed = changes.routed or ()
        self._writing = self._loop.run_in_executor(self._thread, self.tables.apply, changes, durable)
        self._writing.add_done_callback(lambda done: self._written(done, marks, number, durable))

    def _take(self) -> Marks:
        old = self.marks
        self.marks = Marks(moved=self.moved)
        self.marks.wills = old.split_wills(self._routed)
        old.moved = set(self.moved)
        self.moved.clear()
        return old

    def _written(self, done: "asyncio.Future[Refused]", marks: Marks, number: int, durable: bool) -> None:
        self._writing = None
        self._writing_wills = {}
        if self._loop is None or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed(error, marks)
            return
        took = self._loop.time() - self._last_s
        self._delay_s = min(max(_DELAY_S, _SHARE * took), _MAX_DELAY_S)
        self._linger_s = min(_LINGER * took, _MOST_LINGER_S) if took > _SLOW_S else 0.0
        if durable:
            self.saved = number
            if self._retained is not None and marks.retained.at is not None:
                self._retained.durable_at = marks.retained.at
        for session in marks.rows.values():
            if session.away_us and not self.is_marked(session):
                self._on_saved(session)
        while self._waiting and self._waiting[0][0] <= self.saved:
            self._waiting.popleft()[1]()
        if self._urgent:
            self._write_soon()

    def _failed(self, error: BaseException, marks: Marks) -> None:
        """Merge the marks of a failed batch into those made since, to try again; whoever waits goes on waiting."""
        assert self._loop is not None
        self.failures += 1
        _log.error("sessions could not be saved, trying again: %s", error)
        newer, ended = self.marks, self.marks.ended
        for client_id, session in marks.rows.items():
            if client_id not in ended:
                newer.rows.setdefault(client_id, session)
        for client_id, filters in marks.filters.items():
            if client_id not in ended:
                newer.filters.setdefault(client_id, {}).update(filters)
        self.moved.update(session for session in marks.moved if session.client_id not in ended)
        newer.groups.update(marks.groups)
        newer.retained = marks.retained
        newer.wills = {**marks.wills, **newer.wills}
        ended.update(marks.ended)
        self._urgent = True
        self._asked = True  # not at once: the next tick tries again
        self._delay_s = _RETRY_S
