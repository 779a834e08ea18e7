"""The sessions by client id, and the client that each of them serves: connecting, take-over, wills, expiry."""

import logging
from collections.abc import Callable, Iterator
from logging import WARNING

import cython

from everlog.base import MAX_OFFSET, PeerError
from everlog.broker.auth import Security
from everlog.broker.events import event
from everlog.broker.groups import GroupRegistry
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.connect_terms import ConnectTerms
from everlog.broker.registry.expiry import Expiry, will_due_us
from everlog.broker.registry.holding import Holding
from everlog.broker.registry.marks import Marks, changes_of
from everlog.broker.registry.served import Client, Opened, Slice
from everlog.broker.registry.silence import close_silent
from everlog.broker.registry.subscriptions import Subscriptions
from everlog.broker.registry.wills import Wills
from everlog.broker.registry.write_behind import WriteBehind
from everlog.broker.turns import Steps
from everlog.mqtt import Reason
from everlog.sessions import (
    STORED_BYTES,
    Changes,
    CopiesTotal,
    StoredSession,
    pack_session,
    restored,
    stored,
    stored_bytes,
    unpack_session,
    unpack_will,
    will_bytes,
)

if not cython.compiled:
    from everlog.broker.delivery import Router
    from everlog.broker.turns import Turns
    from everlog.sessions import Session

_SLICE = 200  # sessions between two turns of the event loop: less than a millisecond
_log = logging.getLogger("everlog.broker")


class Registry:
    """All sessions, by client id; owned by the event loop's thread."""

    def __init__(
        self,
        router: Router,
        groups: GroupRegistry,
        subscriptions: Subscriptions,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        write_behind: WriteBehind | None,
        turns: Turns,
        holding: Holding | None = None,
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.clients: dict[Session, Client] = {}  # the connected ones
        self.asleep: dict[str, bytes] = {}  # client ids that are away and saved, each with its session as one string
        self.copies = CopiesTotal(limits.copies_bytes)
        self.expiry = Expiry()
        self.router = self._router = router
        self._groups = groups
        self._subscriptions = subscriptions
        self._security = security
        self._limits = limits
        self._metrics = metrics
        self.write_behind = self._write_behind = write_behind
        self._turns = turns
        self._holding = holding
        self._begin_at = tuple(router.routed)  # where the log ended when the broker started
        if holding is not None:
            self._begin_at = (MAX_OFFSET,) * len(router.routed)  # what is published elsewhere, only the log knows
        self.wills = Wills(router, subscriptions, security, limits, metrics, write_behind, holding is not None)
        self._ending: dict[str, list[Callable[[], None]]] = {}  # client ids being cleared away, and who waits for that
        self._is_listening = False  # for clients that have fallen silent
        self._transient = 0  # sessions that end with their connection, which nothing stores

    def __len__(self) -> int:
        return len(self.sessions) + len(self.asleep)

    @property
    def stored(self) -> int:
        """The number of sessions that outlive their connection, or did when they began."""
        return len(self) - self._transient

    @property
    def held_bytes(self) -> int:
        """The memory of the filters and wills of all sessions."""
        return self._subscriptions.memory.total_bytes

    # Connecting

    def check(self, client: Client, terms: ConnectTerms) -> None:
        """Raise why a client may not have the session or the will that it asks for."""
        client_id, user = terms.client_id, terms.session.user
        if self._is_anothers(client_id, user, terms.clean_start):
            raise PeerError(Reason.NOT_AUTHORIZED, "the client id has a session of another user")
        will = terms.session.will
        if will is not None and not self._security.acl.may_publish(user, client_id, will.topic):
            raise PeerError(Reason.NOT_AUTHORIZED, "the will's topic is not allowed")
        self._check_memory(client, terms)

    def make_way(self, terms: ConnectTerms, then: Callable[[], None]) -> bool:
        """End what `open` must not find; if that takes a while, return False and have `then` called afterwards.

        That is the connection that has the client id [MQTT-3.1.4-3], and its session too if a clean start asks for it.
        """
        client_id = terms.client_id
        session = None if client_id in self._ending else self.find(client_id)
        if session is not None:
            old = self.clients.get(session)
            if old is not None:
                self._take_from(old, session)
            if terms.clean_start and client_id not in self._ending and self.sessions.get(client_id) is session:
                self.end(session)  # [MQTT-3.1.2-4]
        if client_id in self._ending:
            self._ending[client_id].append(then)
            return False
        return True

    def open(self, client: Client, terms: ConnectTerms) -> Opened:
        """Return the session for an accepted client; `make_way` has made way."""
        client_id = terms.client_id
        found = self.find(client_id)
        present = found is not None
        waits = self._must_store(terms, found)
        session = self._begin(client, client_id, terms.session.expiry_s > 0) if found is None else found
        session.take_will()  # [MQTT-3.1.3-9] a delayed will is not sent when the client is back
        self.clients[session] = client
        session.connected(terms.session)
        self._subscriptions.count(session)
        self._mark(session)
        self.wills.store(session)
        return Opened(session, present, waits or self.wills.is_waited_for(session))

    def _must_store(self, terms: ConnectTerms, old: Session | None) -> bool:
        """Return whether a client relies on what is not stored for good."""
        if self._write_behind is None:
            return False
        if terms.session.expiry_s > 0 or (old is not None and old.kept):
            return True
        return not self._write_behind.is_sure(terms.client_id)

    def _check_memory(self, client: Client, terms: ConnectTerms) -> None:
        """Refuse a will, or a session that is stored, if those there are take too much."""
        is_new = terms.client_id not in self.sessions and terms.client_id not in self.asleep
        more = will_bytes(terms.session.will) + STORED_BYTES * (is_new and terms.session.expiry_s > 0)
        if more and not self._subscriptions.memory.has_room(0, more):
            self._metrics.sessions_refused += 1
            event(_log, "limit", WARNING, limit="sessions_bytes", client=terms.client_id, peer=client.peer)
            raise PeerError(Reason.QUOTA_EXCEEDED, "all sessions together take too much")

    def _begin(self, client: Client, client_id: str, lasting: bool) -> Session:
        """Make a session; one that outlives its connection counts against `limits.sessions`."""
        if lasting and self.stored >= self._limits.sessions:
            self._metrics.sessions_refused += 1
            event(_log, "limit", WARNING, limit="sessions", client=client_id, peer=client.peer)
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many stored sessions")
        session = Session(client_id, queue_bytes=self._limits.queue_bytes, copies_total=self.copies)
        self.sessions[client_id] = session
        self._transient += not lasting
        return session

    def _is_anothers(self, client_id: str, user: str | None, to_end_it: bool) -> bool:
        """Return whether a session is another user's: what it is owed is not for this one, to have or to end."""
        session = self._peek(client_id)
        if session is None or session.user is None or session.user == user:
            return False
        return session.durable or not to_end_it

    # Leaving

    @property
    def is_ending(self) -> bool:
        """Whether what a connection or a session has left behind is still being cleared away."""
        return bool(self._ending)

    def lost(self, client: Client, session: Session) -> None:
        """Let go of a connection that is gone: its will, and what becomes of its session.

        Its filters go one after the other, in turns. Until all are gone it is like a client that does not read.
        """
        if self.clients.get(session) is client:
            del self.clients[session]
            session.halt()
            self._clear(session.client_id, self._leave(session))

    def _take_from(self, client: Client, session: Session) -> None:
        self._metrics.takeovers += 1
        event(_log, "taken_over", client=session.client_id, peer=client.peer)
        client.close(Reason.SESSION_TAKEN_OVER, "session taken over")
        self.lost(client, session)

    def _clear(self, client_id: str, steps: Steps) -> None:
        """Clear away what is left of a connection or session, in turns; who comes with the client id waits for it."""
        self._ending[client_id] = []
        self._turns.run(steps, lambda _: self._cleared(client_id), lambda error: self._cleared(client_id, error))

    def _cleared(self, client_id: str, error: Exception | None = None) -> None:
        for then in self._ending.pop(client_id):
            then()
        if error is not None:
            raise error

    def _leave(self, session: Session) -> Steps:
        yield from self._subscriptions.leave(session)
        self._router.detach(session)
        yield from self._groups.left(session)
        session.disconnected(self._router.now_us())
        if session.will is not None and will_due_us(session.will, 0, session.expiry_s) == 0:
            self.wills.send(session)
        if session.durable:
            self._schedule(session)
            self._mark(session)
        else:
            yield from self._end(session)

    def end(self, session: Session) -> None:
        """Forget a session that is away and all it was owed; a will that waits is sent now."""
        if session.client_id not in self._ending:
            self._clear(session.client_id, self._end(session))

    def _end(self, session: Session) -> Steps:
        self.wills.send(session)  # [MQTT-3.1.2-10] at the latest when the session ends
        if self.sessions.get(session.client_id) is not session:
            return
        del self.sessions[session.client_id]
        self.expiry.forget(session.client_id)
        self._transient -= not session.kept
        self._metrics.count_ended(session.counters)
        if self._write_behind is not None and session.kept:
            self._write_behind.mark_ended(session)
        if self._holding is not None:
            self._holding.ended(session.client_id)
        yield from self._groups.ended(session)
        yield from self._subscriptions.drop(session)
        session.drop_copies()

    def shed_copies(self) -> Session:
        """Close the client with most unacknowledged messages that are in no log, and return its session.

        Other members of its groups get them; a durable session will not be sent its retained messages again.
        """
        session = self.copies.largest()
        assert isinstance(session, Session)
        client = self.clients.get(session)
        if client is not None:
            client.close(Reason.QUOTA_EXCEEDED, "too many bytes not acknowledged")
            self.lost(client, session)
        if session.client_id in self._ending:  # others get what it has, then it is dropped
            self._ending[session.client_id].append(session.drop_copies)
        else:
            session.drop_copies()
        return session

    def end_stored(self) -> None:
        """End every session that was stored and whose client is away: none may outlive its connection any more."""
        client_ids = list(self.asleep)
        for session in filter(None, map(self.find, client_ids)):
            self.end(session)
        if client_ids:
            why = "no session may outlive its connection"
            event(_log, "sessions_ended", WARNING, count=len(client_ids), reason=why)

    def set_expiry(self, session: Session, expiry_s: int) -> None:
        """Change how long a session stays, as a DISCONNECT may."""
        session.set_expiry(min(expiry_s, self._limits.session_expiry_s))
        self._mark(session)

    def sweep(self, now: float) -> None:
        """Send wills whose delay is over, end sessions whose time is over, close clients that fell silent."""
        self.wills.send_left()
        wall_us = self._router.now_us()
        for session in self._away(self.expiry.due_wills(wall_us)):
            if session.will is not None:
                if will_due_us(session.will, session.away_us, session.expiry_s) <= wall_us:
                    self.wills.send(session)
                else:
                    self._schedule(session)  # away again since
                self._mark(session)
        due_us = self._router.due_us()
        for session in self._away(self.expiry.due_ends(due_us)):
            if session.away_us + session.expiry_s * 1_000_000 <= due_us:
                self._metrics.sessions_expired += 1
                self.end(session)
            else:
                self._schedule(session)
                self._mark(session)
        if not self._is_listening:
            self._is_listening = True
            steps = close_silent(list(self.clients.values()), now, self._metrics)
            self._turns.run(steps, self._has_listened, self._has_listened)

    def _has_listened(self, outcome: object) -> None:
        self._is_listening = False
        if isinstance(outcome, Exception):
            raise outcome

    def _schedule(self, session: Session) -> None:
        self.expiry.schedule(session.client_id, session.away_us, session.expiry_s, session.will)

    def _away(self, client_ids: Iterator[str]) -> Iterator[Session]:
        found = map(self.find, client_ids)
        return (session for session in found if session is not None and session not in self.clients)

    # Sessions that are away are asleep

    def find(self, client_id: str) -> Session | None:
        """Return the session of a client id, woken if it is asleep."""
        session = self._peek(client_id)
        if session is not None and self.asleep.pop(client_id, None) is not None:
            self.sessions[client_id] = session
        return session

    def _peek(self, client_id: str) -> Session | None:
        """Return the session of a client id to look at; one that is asleep stays so."""
        session = self.sessions.get(client_id)
        if session is None and (packed := self.asleep.get(client_id)) is not None:
            session = restored(unpack_session(packed), self._limits.queue_bytes, self.copies, self._begin_at)
        return session

    def sleep(self, session: Session) -> None:
        """Make a session that is away and saved one string; its counts go where those of ended sessions are."""
        client_id = session.client_id
        if session in self.clients or client_id in self._ending or session.in_memory_only:
            return
        if self.sessions.get(client_id) is not session:
            return
        del self.sessions[session.client_id]
        self._subscriptions.count(session)
        session.drop_confirmed(self._router.proven())
        self.put_asleep(stored(session, self.committed()))
        self._metrics.count_ended(session.counters)

    def restore(self, found: StoredSession) -> None:
        """Take in a session that was stored before the broker started."""
        self._subscriptions.memory.total_bytes += stored_bytes(found)
        self.put_asleep(found)

    def put_asleep(self, found: StoredSession) -> None:
        """Take in a session that is away, as the tables have it."""
        self.asleep[found.row.client_id] = pack_session(found)

    # Client ids that one broker of several holds

    def holds(self, client_id: str) -> bool:
        """Return whether there is something of a session, if only its end that is being cleared away."""
        return client_id in self.sessions or client_id in self.asleep or client_id in self._ending

    def adopt(self, found: StoredSession) -> None:
        """Take in a session that another broker had, and that is this one's from now on."""
        row = found.row
        for one in found.subscriptions:
            self._router.kept.add(one.filter)
        self.expiry.schedule(row.client_id, row.away_us, row.expiry_s, unpack_will(row.will))
        self.restore(found)

    def part_with(self, client_id: str, then: Callable[[], None]) -> Client | None:
        """Close the connection of a client id that another broker asks for, and return it if there was one.

        When what it left behind is cleared away, `then` is called.
        """
        session = None if client_id in self._ending else self.sessions.get(client_id)
        client = None if session is None else self.clients.get(session)
        if session is not None and client is not None:
            self._take_from(client, session)
        if client_id in self._ending:
            self._ending[client_id].append(then)
        else:
            then()
        return client

    def let_go(self, client_id: str) -> None:
        """Forget a session that is away, which another broker may have now: nothing of it is written or sent."""
        session = self.find(client_id)
        if session is None or session in self.clients or client_id in self._ending:
            return
        del self.sessions[client_id]
        self.expiry.forget(client_id)
        self._transient -= not session.kept
        self._metrics.count_ended(session.counters)
        if self._write_behind is not None:
            self._write_behind.forget(session)
        self._clear(client_id, self._drop(session))

    def _drop(self, session: Session) -> Steps:
        yield from self._subscriptions.drop(session)
        session.drop_copies()

    def walk(self) -> Iterator[Slice]:
        """Go through all sessions, a slice at a time so that a million of them do not hold up the event loop."""
        # All taken together: a session that ends, sleeps or wakes from here on is met once, as what it was.
        sessions, asleep = list(self.sessions.values()), list(self.asleep.items())
        for start in range(0, len(sessions), _SLICE):
            yield Slice(sessions[start : start + _SLICE], [])
        for start in range(0, len(asleep), _SLICE):
            yield Slice([], asleep[start : start + _SLICE])

    # Storing

    def changes(self, marks: Marks) -> Changes:
        """Return the present state of everything that is marked."""
        router, groups = self._router, {key: self._groups.row(key) for key in marks.groups}
        now = (self.committed(), tuple(router.routed), router.now_us(), router.retained.saving, router.proven())
        return changes_of(marks, self.sessions, groups, *now)

    def committed(self) -> list[int]:
        """Return where the committed records of each shard end."""
        return [shard.committed for shard in self._router.log.shards]

    def _mark(self, session: Session) -> None:
        if self._write_behind is not None and session.kept:
            self._write_behind.mark_session(session)
