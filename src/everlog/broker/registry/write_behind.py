# cython: boundscheck=True, wraparound=True, cdivision=False
"""Write-behind of sessions, shared groups and retained messages: changes are marked, and written a little later.

Marking adds to a set; what is written is taken from the sessions when a batch is made, so many changes of one session
cost one write. Batches are numbered. One is written at a time: to the journal of the tables at once if there is one
whose disk is quick, else in a thread. It is synced if somebody waits for it, and `saved` is the number of the last
batch known to survive a power cut. Owned by the event loop's thread.
Invariant: a batch is made in one go, so marked sessions, groups and `routed` are all as of the same moment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from everlog.broker.delivery import RetainedSaving
from everlog.broker.registry.marks import Ends, Marks
from everlog.ownership import Overruled
from everlog.sessions import (
    Changes,
    GroupDeal,
    JournaledTables,
    Refused,
    SentWill,
    Session,
    SessionTables,
    WillRow,
)

_DELAY_S = 0.25  # between batches that nobody waits for
_MAX_DELAY_S = 2.0
_SHARE = 9  # pause before the next batch, in times of the last one, so that writing takes at most a tenth
_BEAT_S = 10.0  # an idle broker still writes that it is alive
_RETRY_S = 1.0
_SLOW_S = 0.005  # what a batch takes on a disk with slow syncs
_LINGER = 0.1  # of what the last batch took, before the next begins there
_MOST_LINGER_S = 0.005
_GATHER_S = 0.001  # before the next batch begins while several clients wait for each
_FOLLOW_S = 1.0  # between times that the tables follow their journal
_STOP_S = 10.0
_MOST_UNSYNCED = 10_000  # client ids of sessions that were written since the last sync; then there is one
_NOTHING = Refused()
_log = logging.getLogger("everlog.broker")


class WriteBehind:
    """The writer of the session tables. `start` and `stop` bracket its life."""

    def __init__(self, tables: SessionTables, routed: Sequence[int], retained: RetainedSaving | None = None) -> None:
        self.tables = tables
        self.saved = 0
        self.failures = 0  # batches that could not be written, each tried again
        self.is_over = False  # others have overruled this broker: nothing is written, and nobody who waits goes on
        self.marks = Marks()
        self.moved = self.marks.moved  # the router adds to it; emptied, never replaced
        self._routed = routed
        self._retained = retained
        self.on_refused: Callable[[Refused], None] = lambda refused: None  # before what waited for a batch leaves
        self.on_overruled: Callable[[Overruled], None] = lambda error: None
        self._changes: Callable[[Marks], Changes] = lambda marks: Changes()
        self._on_saved: Callable[[Session], None] = lambda session: None
        self._batch = 1  # the number of the one that marks go into
        self._urgent = False
        self._asked = False
        self._writing: asyncio.Future[Refused] | None = None
        self._writing_durably = False
        self._journaled = tables if isinstance(tables, JournaledTables) else None
        self._following: asyncio.Future[None] | None = None
        self._followed_s = 0.0
        self._writing_wills: dict[str, WillRow | Ends] = {}  # of the batch that is being written
        self._unsynced: set[str] = set()  # client ids whose rows, or ends, are in batches not known to survive
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._thread = ThreadPoolExecutor(1, "everlog-sessions")
        self._follower = ThreadPoolExecutor(1, "everlog-tables")  # of tables with a journal, which goes on meanwhile
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        self._last_routed: tuple[int, ...] = ()
        self._delay_s = _DELAY_S
        self._linger_s = 0.0
        self._wills_sent = 0

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

    def mark_deals(self, deals: Iterable[GroupDeal]) -> None:
        """Mark what became of messages that a group has dealt to clients of other brokers."""
        self.marks.deals.update({deal[:3]: deal for deal in deals})

    def mark_will(self, row: WillRow) -> None:
        """Mark the will of a client that has connected, of whose session nothing else is stored."""
        self.marks.wills[row.client_id] = row

    def end_will(self, client_id: str, sent: Ends = ()) -> None:
        """Mark a will to be forgotten when all before the ends in `sent` is in the log."""
        self.marks.wills[client_id] = sent

    def send_will(self, session: Session, packed: bytes) -> None:
        """Mark a will that leaves its session for the outbox, in the batch that forgets it there."""
        self._wills_sent += 1
        self.marks.sent_wills.append(SentWill(self._wills_sent, session.client_id, session.user, packed))
        if session.kept:
            self.mark_session(session)
        else:
            self.end_will(session.client_id)

    def forget(self, session: Session) -> None:
        """Write nothing more of a session, which another broker has."""
        marks, client_id = self.marks, session.client_id
        marks.ended.pop(client_id, None)
        marks.rows.pop(client_id, None)
        marks.filters.pop(client_id, None)
        marks.wills.pop(client_id, None)
        self.moved.discard(session)

    def is_marked(self, session: Session) -> bool:
        """Return whether something of a session is still to be written."""
        marks, client_id = self.marks, session.client_id
        return (
            session in self.moved or client_id in marks.rows or client_id in marks.filters or client_id in marks.ended
        )

    def waits_for(self, client_id: str) -> bool:
        """Return whether the end of a session with this client id, or something of its will, is still to be written."""
        return client_id in self.marks.ended or client_id in self.marks.wills or client_id in self._writing_wills

    def is_sure(self, client_id: str) -> bool:
        """Return whether what is stored of a client id, a session or none, would survive a power cut as it is now."""
        is_marked = client_id in self.marks.rows or client_id in self.marks.filters
        return not (is_marked or client_id in self._unsynced or self.waits_for(client_id))

    def ticket(self) -> int:
        """Ask for a batch soon; return the number that `saved` will reach when all that is marked now is durable."""
        self._urgent = True
        if not self._asked and self._writing is None:
            self._write_soon()
        return self._batch

    def _write_soon(self) -> None:
        """Write after the next turn of the event loop, or where syncs are slow a little later: others share the batch.

        In that turn the rest of what a client has sent is read, such as a SUBSCRIBE right behind its CONNECT.
        Whom the last batch has set free answers within a few milliseconds, such as with the next PUBRECs of a small
        window; those would wait for this batch and the next.
        """
        if self._loop is None:
            return
        self._asked = True
        if self._linger_s:
            self._loop.call_later(self._linger_s, self._write_asked)
        else:
            self._loop.call_soon(self._loop.call_soon, self._write_asked)

    def _write_asked(self) -> None:
        self._asked = False
        if self._urgent:  # or it was written meanwhile
            self._write()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Have `call` called on the event loop when all that was marked so far is durable."""
        self._waiting.append((self.ticket(), call))

    def next_batch(self) -> int:
        """Return the number of the batch that what is marked now goes into, whether or not it is asked for."""
        return self._batch

    def when_saved(self, batch: int, call: Callable[[], None]) -> int:
        """Have `call` called when a batch is durable, which may be the one that is being written; return the number
        that `saved` will have reached then."""
        if batch >= self._batch or not self._writing_durably:
            self.when_durable(call)
            return self._batch
        place = len(self._waiting)
        while place and self._waiting[place - 1][0] > batch:
            place -= 1
        self._waiting.insert(place, (batch, call))
        return batch

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
        if self.is_over:
            return False
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
        if not await self.flush(_STOP_S) and not self.is_over:
            _log.error("sessions could not be saved within %s s: changes since the last save are lost", _STOP_S)
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None
        self._thread.shutdown()
        self._follower.shutdown()

    def _tick(self) -> None:
        assert self._loop is not None
        self._follow()
        if self._urgent or self._has_more():
            self._write()
        self._timer = self._loop.call_later(self._delay_s, self._tick)

    def _has_more(self) -> bool:
        """Return whether there is something to write that nobody waits for."""
        assert self._loop is not None
        if self.marks or (self._retained is not None and self._retained.waits):
            return True
        idle = self._loop.time() - self._last_s
        return idle >= _BEAT_S or (idle >= 1 and tuple(self._routed) != self._last_routed)

    def _write(self) -> None:
        self._asked = False
        if self._writing is not None or self._loop is None or self.is_over:
            return
        marks, number = self._take(), self._batch
        self._unsynced.update(marks.rows, marks.ended)
        durable = self._writing_durably = self._urgent or bool(marks.wills) or len(self._unsynced) > _MOST_UNSYNCED
        self._writing_wills = marks.wills
        self._batch += 1
        self._urgent = False
        changes = self._changes(marks)
        self._last_s = self._loop.time()
        self._last_routed = changes.routed or ()
        if durable and self._journaled is not None and self._journaled.begin(changes):
            self._stored(marks, number, durable, _NOTHING)
            return
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
        self._writing, self._writing_durably = None, False
        self._writing_wills = {}
        if self._loop is None or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed(error, marks)
            return
        self._follow()
        self._stored(marks, number, durable, done.result())

    def _stored(self, marks: Marks, number: int, durable: bool, refused: Refused) -> None:
        """Go on when a batch is written: whoever waited for it answers."""
        assert self._loop is not None
        took = self._loop.time() - self._last_s
        self._delay_s = min(max(_DELAY_S, _SHARE * took), _MAX_DELAY_S)
        if durable:
            self.saved = number
            self._unsynced.clear()  # one batch is written at a time
            if self._retained is not None and marks.retained.at is not None:
                self._retained.durable_at = marks.retained.at
        if refused.sessions or refused.groups:
            self.on_refused(refused)
        for session in marks.rows.values():
            if session.away_us and not self.is_marked(session):
                self._on_saved(session)
        answered = 0
        while self._waiting and self._waiting[0][0] <= self.saved:
            self._waiting.popleft()[1]()
            answered += 1
        if took > _SLOW_S:
            self._linger_s = min(_LINGER * took, _MOST_LINGER_S)
        elif durable:
            self._linger_s = _GATHER_S if answered > 1 and self._journaled is not None else 0.0
        if self._urgent and not self._asked:
            self._write_soon()

    def _follow(self) -> None:
        """Have the tables follow their journal, once in a while or if they are far behind."""
        journaled, loop = self._journaled, self._loop
        if journaled is None or loop is None or self._following is not None or self._writing is not None:
            return
        is_due = loop.time() - self._followed_s >= _FOLLOW_S or journaled.is_far_behind
        if is_due and journaled.take_behind():
            self._followed_s = loop.time()
            self._following = loop.run_in_executor(self._follower, journaled.follow)
            self._following.add_done_callback(self._has_followed)

    def _has_followed(self, done: "asyncio.Future[None]") -> None:
        self._following = None
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.failures += 1
            _log.error("the session tables do not follow their journal, trying again: %s", error)

    def _failed(self, error: BaseException, marks: Marks) -> None:
        """Merge the marks of a failed batch into those made since, to try again; whoever waits goes on waiting."""
        assert self._loop is not None
        if isinstance(error, Overruled):
            self.is_over = True
            self.on_overruled(error)
            return
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
        newer.deals = {**marks.deals, **newer.deals}
        newer.retained = marks.retained
        newer.wills = {**marks.wills, **newer.wills}
        newer.sent_wills = [*marks.sent_wills, *newer.sent_wills]
        ended.update(marks.ended)
        self._urgent = True
        self._asked = True  # not at once: the next tick tries again
        self._delay_s = _RETRY_S
