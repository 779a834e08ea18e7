"""The sessions by client id, and the client that each of them serves: connecting, take-over, wills, expiry."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from logging import WARNING
from typing import NamedTuple, Protocol

from everlog.base import PeerError
from everlog.broker.auth import Security
from everlog.broker.delivery import Router
from everlog.broker.events import event
from everlog.broker.groups import GroupRegistry
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.connect_terms import ConnectTerms
from everlog.broker.registry.expiry import Expiry, will_due_us
from everlog.broker.registry.subscriptions import Subscriptions
from everlog.broker.registry.write_behind import Marks, WriteBehind, changes_of
from everlog.mqtt import Publish, Reason, Will
from everlog.sessions import Changes, Session, StoredSession, pack_session, restored, stored, unpack_session

_SLICE = 200  # sessions between two turns of the event loop: less than a millisecond
_log = logging.getLogger("everlog.broker")


class Client(Protocol):
    """A connection, as far as its session is concerned."""

    peer: str
    keep_alive_s: float

    @property
    def last_seen(self) -> float: ...

    def close(self, reason: int, why: str) -> None: ...


class Slice(NamedTuple):
    """Some of all sessions: those that are awake, and of those asleep the client id and the session as one string."""

    awake: list[Session]
    asleep: list[tuple[str, bytes]]


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
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.clients: dict[Session, Client] = {}  # the connected ones
        self.asleep: dict[str, bytes] = {}  # client ids that are away and saved, each with its session as one string
        self.expiry = Expiry()
        self._router = router
        self._groups = groups
        self._subscriptions = subscriptions
        self._security = security
        self._limits = limits
        self._metrics = metrics
        self._write_behind = write_behind
        self._transient = 0  # sessions that end with their connection, which nothing stores

    def __len__(self) -> int:
        return len(self.sessions) + len(self.asleep)

    @property
    def stored(self) -> int:
        """The number of sessions that outlive their connection, or did when they began."""
        return len(self) - self._transient

    # Connecting

    def open(self, client: Client, terms: ConnectTerms) -> tuple[Session, bool]:
        """Return the session for an accepted client, and whether it was there before."""
        client_id, user = terms.client_id, terms.session.user
        if not terms.clean_start and self._is_anothers(client_id, user):
            raise PeerError(Reason.NOT_AUTHORIZED, "the client id has a session of another user")
        will = terms.session.will
        if will is not None and not self._security.acl.may_publish(user, client_id, will.topic):
            raise PeerError(Reason.NOT_AUTHORIZED, "the will's topic is not allowed")
        session = self._take_over(client_id, terms.clean_start)
        present = session is not None
        if session is None:
            session = self._begin(client, client_id, terms.session.expiry_s > 0)
        self.clients[session] = client
        session.connected(terms.session)
        self._mark(session)
        return session, present

    def _begin(self, client: Client, client_id: str, lasting: bool) -> Session:
        """Make a session; one that outlives its connection counts against `limits.sessions`."""
        if lasting and self.stored >= self._limits.sessions:
            self._metrics.sessions_refused += 1
            event(_log, "limit", WARNING, limit="sessions", client=client_id, peer=client.peer)
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many stored sessions")
        session = Session(client_id, queue_bytes=self._limits.queue_bytes)
        self.sessions[client_id] = session
        self._transient += not lasting
        return session

    def _is_anothers(self, client_id: str, user: str | None) -> bool:
        """Return whether a session was begun by another user: what it is owed is not for this one."""
        session = self._peek(client_id)
        return session is not None and session.user is not None and session.user != user

    def _take_over(self, client_id: str, clean: bool) -> Session | None:
        """End the connection that has the client id [MQTT-3.1.4-3]; return its session unless `clean` ends that too."""
        session = self.find(client_id)
        if session is None:
            return None
        old = self.clients.get(session)
        if old is not None:
            self._metrics.takeovers += 1
            event(_log, "taken_over", client=client_id, peer=old.peer)
            old.close(Reason.SESSION_TAKEN_OVER, "session taken over")
            self.lost(old, session)
        if clean and self.sessions.get(client_id) is session:
            self.end(session)  # [MQTT-3.1.2-4]
        if self.sessions.get(client_id) is not session:
            return None
        session.take_will()  # [MQTT-3.1.3-9] a delayed will is not sent when the client is back
        return session

    # Leaving

    def lost(self, client: Client, session: Session) -> None:
        """Let go of a connection that is gone: its will, and what becomes of its session."""
        if self.clients.get(session) is not client:
            return
        del self.clients[session]
        self._subscriptions.leave(session)
        self._router.detach(session)
        self._groups.left(session)
        session.disconnected(self._router.now_us())
        if session.will is not None and will_due_us(session.will, 0, session.expiry_s) == 0:
            self._send_will(session)
        if session.durable:
            self.expiry.schedule(session.client_id, session.away_us, session.expiry_s, session.will)
            self._mark(session)
        else:
            self.end(session)

    def end(self, session: Session) -> None:
        """Forget a session and all it was owed; a will that waits is sent now."""
        self._send_will(session)  # [MQTT-3.1.2-10] at the latest when the session ends
        if self.sessions.get(session.client_id) is not session:
            return
        del self.sessions[session.client_id]
        self._transient -= not session.kept
        self._groups.ended(session)
        self._subscriptions.drop(session)
        self._metrics.count_ended(session.counters)
        if self._write_behind is not None and session.kept:
            self._write_behind.mark_ended(session)

    def set_expiry(self, session: Session, expiry_s: int) -> None:
        """Change how long a session stays, as a DISCONNECT may."""
        session.set_expiry(min(expiry_s, self._limits.session_expiry_s))
        self._mark(session)

    def sweep(self, now: float) -> None:
        """Send wills whose delay is over, end sessions whose time is over, close clients that fell silent."""
        wall_us = self._router.now_us()
        for session in self._away(self.expiry.due_wills(wall_us)):
            if session.will is not None:
                if will_due_us(session.will, session.away_us, session.expiry_s) <= wall_us:  # else away again since
                    self._send_will(session)
                self._mark(session)
        for session in self._away(self.expiry.due_ends(wall_us)):
            if session.away_us + session.expiry_s * 1_000_000 <= wall_us:
                self.end(session)
            else:
                self._mark(session)
        for client in list(self.clients.values()):
            if client.keep_alive_s and now - client.last_seen > client.keep_alive_s:
                self._metrics.keep_alive_timeouts += 1
                client.close(Reason.KEEP_ALIVE_TIMEOUT, "keep alive timeout")

    def _away(self, client_ids: Iterator[str]) -> Iterator[Session]:
        found = map(self.find, client_ids)
        return (session for session in found if session is not None and session not in self.clients)

    def _send_will(self, session: Session) -> None:
        will = session.take_will()
        if will is None:
            return
        if not self._security.acl.may_publish(session.user, session.client_id, will.topic):
            self._will_refused(session, will)  # the rules have changed since CONNECT
            return
        self._metrics.wills += 1
        properties = replace(will.properties, will_delay_interval=None)
        packet_id = 1 if will.qos else 0
        self._router.send(Publish(will.topic, will.payload, will.qos, will.retain, False, packet_id, properties))

    def refuse_will(self, session: Session) -> None:
        """Give up the will of a client that may be connected no more."""
        will = session.take_will()
        if will is not None:
            self._will_refused(session, will)

    def _will_refused(self, session: Session, will: Will) -> None:
        self._metrics.refused += 1
        event(_log, "will_refused", WARNING, client=session.client_id, user=session.user, topic=will.topic)

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
            session = restored(unpack_session(packed), self._limits.queue_bytes)
        return session

    def sleep(self, session: Session) -> None:
        """Make a session that is away and saved one string; its counts go where those of ended sessions are."""
        if session in self.clients or self.sessions.get(session.client_id) is not session or session.in_memory_only:
            return
        del self.sessions[session.client_id]
        session.drop_confirmed(committed := self._committed())
        self.put_asleep(stored(session, committed))
        self._metrics.count_ended(session.counters)

    def put_asleep(self, found: StoredSession) -> None:
        """Take in a session that is away, as the tables have it."""
        self.asleep[found.row.client_id] = pack_session(found)

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
        return changes_of(
            marks,
            self.sessions,
            {key: self._groups.row(key) for key in marks.groups},
            self._committed(),
            tuple(self._router.routed),
            self._router.now_us(),
        )

    def _committed(self) -> list[int]:
        return [shard.committed for shard in self._router.log.shards]

    def _mark(self, session: Session) -> None:
        if self._write_behind is not None and session.kept:
            self._write_behind.mark_session(session)
