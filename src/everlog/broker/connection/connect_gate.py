"""The way from an accepted socket to an open session: limits, timeouts, passwords, enhanced authentication.

Whoever is connected and not open yet is in `pending`, from the first byte of a TLS or WebSocket handshake on, and all
of that together may take `limits.connect_timeout_s`. A few of those over a limit may stay for a moment, to be told so
when their CONNECT has come; the others are closed at once, so that a flood stays cheap.
"""

import logging
import secrets
from collections.abc import Callable, Hashable
from functools import partial
from logging import DEBUG, WARNING
from typing import NamedTuple, Protocol

import cython

from everlog.base import EverlogError, PeerError
from everlog.broker.auth import Admission, Security
from everlog.broker.connection.auth_exchange import AuthExchange
from everlog.broker.connection.connection import Connection
from everlog.broker.connection.logins import Logins
from everlog.broker.connection.referrals import Referrals
from everlog.broker.events import event as report
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry import Agreements, ConnectTerms, Holding, Subscriptions
from everlog.broker.token_bucket import TokenBucket
from everlog.mqtt import NO_PROPERTIES, Auth, Connect, Properties, Reason, State

if not cython.compiled:
    from everlog.broker.delivery import Router
    from everlog.broker.registry import Registry

_NO_LIMIT = 1 << 62
_MANY_FILES = 4096  # with so many, half of them are never more than the broker's own
_ANSWERS = 100  # peers over a limit that are told so, at a time and in a second; the others are closed unanswered
_ANSWER_S = 1.0  # for the CONNECT of such a peer
_log = logging.getLogger("everlog.broker")


class _Over(NamedTuple):
    """What a peer over a limit is told; `limit` is what the log calls it."""

    reason: Reason
    limit: str
    why: str


_CONNECTIONS = _Over(Reason.SERVER_BUSY, "connections", "too many connections")
_RATE = _Over(Reason.CONNECTION_RATE_EXCEEDED, "connects_per_second", "too many connects in a second")
_FILES = _Over(Reason.SERVER_BUSY, "files", "too many open files for one more connection")


class Newcomer(Hashable, Protocol):
    """Whoever has connected: a connection, or one that is still shaking hands over TLS."""

    @property
    def peer(self) -> str: ...

    @property
    def file_number(self) -> int: ...  # of its socket; the system gives the lowest that is free

    def close(self, reason: int, why: str) -> None: ...


class ConnectGate:
    """The admission of clients; one for each broker."""

    def __init__(
        self,
        router: Router,
        registry: Registry,
        subscriptions: Subscriptions,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        time: Callable[[], float],
        holding: Holding | None = None,
    ) -> None:
        self.pending: dict[Newcomer, float] = {}  # connected and not open yet, since when
        self.is_closing = False
        self.referrals: Referrals | None = None  # who may send clients to other servers
        self._entries: dict[Newcomer, Newcomer] = {}  # who will take the place of whom in `pending`
        self._files = _NO_LIMIT  # file numbers from here on are not for clients
        self._last_files = _NO_LIMIT  # from here on nobody is told why
        self._few = _NO_LIMIT  # with fewer clients nobody's file number is asked for, which costs a system call
        self._turned_away: dict[Newcomer, _Over] = {}  # those of `pending` over a limit, and what they are told
        self._router = router
        self._registry = registry
        self._holding = holding
        self._subscriptions = subscriptions
        self._security = security
        self._limits = limits
        self._agreements = Agreements(limits)
        self._metrics = metrics
        self._time = time
        self._exchange = AuthExchange(security, metrics, self._accepted)
        self._bucket = TokenBucket(limits.connects_per_second)
        self._answers = TokenBucket(_ANSWERS)
        self.logins = Logins(
            security, limits.logins_waiting, limits.logins_bytes, self._verified, partial(self._busy, "logins_waiting")
        )

    def reserve_files(self, most: int, reserve: int) -> None:
        """Refuse clients when the system has so few open files left; with half of those, without a word."""
        self._files, self._last_files = most - reserve, most - reserve // 2
        self._few = self._files // 2 if self._files >= _MANY_FILES else 0

    def close(self) -> None:
        """Check no more passwords."""
        self.logins.close()

    def sweep(self, now: float) -> None:
        """Close those that have taken too long; called once a second."""
        too_long = self._limits.connect_timeout_s
        sooner, away = min(too_long, _ANSWER_S), self._turned_away
        for newcomer in [
            one for one, since in self.pending.items() if now - since >= (sooner if one in away else too_long)
        ]:
            over = away.get(newcomer)
            if over is not None:
                newcomer.close(over.reason, over.why)
            elif isinstance(newcomer, Connection) and newcomer.state is State.CONNECTING:  # it waits for us
                self._busy("connect_timeout_s", newcomer)
            else:
                self._metrics.connect_timeouts += 1
                newcomer.close(Reason.SERVER_UNAVAILABLE, "no CONNECT in time")
            self.forget(newcomer)

    def forget(self, newcomer: Newcomer) -> None:
        """Forget one that is open or gone."""
        self.pending.pop(newcomer, None)
        self._turned_away.pop(newcomer, None)
        if isinstance(newcomer, Connection):
            self.logins.forget(newcomer)

    # Connecting

    def admit(self, newcomer: Newcomer) -> int | None:
        """Return a reason if a newcomer may not stay, not even to be told why."""
        if self.is_closing:
            return Reason.SERVER_SHUTTING_DOWN
        entry = self._entries.pop(newcomer, None)
        if entry is not None:  # it has been let in already, and its time goes on
            self.pending[newcomer] = self.pending.pop(entry, self._time())
            if entry in self._turned_away:
                self._turned_away[newcomer] = self._turned_away.pop(entry)
            return None
        number = 0 if len(self._registry.clients) + len(self.pending) < self._few else newcomer.file_number
        over = self._over(number)
        if over is not None:
            self._metrics.connects_limited += 1
            report(_log, "limit", WARNING, limit=over.limit, peer=newcomer.peer)
            is_last = len(self._turned_away) >= _ANSWERS or number >= self._last_files
            if is_last or not self._answers.take(self._time()):
                return over.reason
            self._turned_away[newcomer] = over
        self.pending[newcomer] = self._time()
        return None

    def replaces(self, newcomer: Newcomer, entry: Newcomer) -> None:
        """Let one take the place of another in `pending`, such as a connection after its TLS handshake."""
        self._entries[newcomer] = entry

    def not_coming(self, newcomer: Newcomer) -> None:
        """Forget one that was to take the place of another."""
        self._entries.pop(newcomer, None)

    def _over(self, file_number: int) -> _Over | None:
        """Return the limit if one more is too many now."""
        if file_number >= self._files:
            return _FILES
        staying = len(self._registry.clients) + len(self.pending) - len(self._turned_away)
        if staying >= self._limits.connections:
            return _CONNECTIONS
        return None if self._bucket.take(self._time()) else _RATE

    # Proving who it is

    def connecting(self, connection: Connection, packet: Connect) -> None:
        """Check who sends a CONNECT, at once, in a thread or in steps, then open the session."""
        over = self._turned_away.get(connection)
        if over is not None:
            connection.close(over.reason, over.why)
            return
        if packet.properties.authentication_method is not None:
            self._exchange.begin(connection, packet.properties)
            return
        admission = self._security.decide(
            packet.user_name, packet.password, connection.user, connection.allow_anonymous
        )
        if admission is not None:
            self._decided(connection, packet, admission)
            return
        self.logins.add(connection)

    def authenticating(self, connection: Connection, packet: Auth) -> None:
        """Take a step of enhanced authentication."""
        self._exchange.go_on(connection, packet)

    def _verified(self, connection: Connection, admission: Admission) -> None:
        """Go on with a client whose password was checked."""
        packet = connection.connect
        assert packet is not None
        try:
            self._decided(connection, packet, admission)
        except PeerError as error:
            connection.close(error.reason, str(error))

    def _busy(self, limit: str, connection: Connection) -> None:
        """Refuse a client whose password is not checked, since too many wait for that."""
        self._metrics.logins_refused += 1
        report(_log, "limit", WARNING, limit=limit, peer=connection.peer)
        connection.close(Reason.SERVER_BUSY, "too many logins at once")

    def _decided(self, connection: Connection, packet: Connect, admission: Admission) -> None:
        if not admission.admitted:
            self._metrics.auth_failures += 1
            report(_log, "auth_failed", WARNING, client=packet.client_id, peer=connection.peer, user=packet.user_name)
            if packet.user_name is None:
                raise PeerError(Reason.NOT_AUTHORIZED, "clients need a user name and password")
            raise PeerError(Reason.BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong")
        connection.proof = admission.proof
        self._accepted(connection, admission.user, NO_PROPERTIES)

    # Opening the session

    def _accepted(self, connection: Connection, user: str | None, more: Properties) -> None:
        """Open the session of a client that has proven who it is; its CONNACK also has the properties in `more`."""
        packet = connection.connect
        assert packet is not None
        connection.user = user
        terms = self._agreements.agree(packet, user, more, connection.mount, new_id=_new_client_id)
        if terms.connack.write(False) is None:
            raise PeerError(Reason.PACKET_TOO_LARGE, "a CONNACK is larger than the client's maximum packet size allows")
        self._registry.check(connection, terms)
        referral = None if self.referrals is None else self.referrals.at_connect(packet.version)
        if referral is not None:
            connection.close(Reason.USE_ANOTHER_SERVER, referral.why, server=referral.server)
        elif self._holding is None:
            self._enter(connection, terms)
        else:
            connection.is_entering = True
            self._holding.claim(terms, partial(self._claimed, connection, terms))

    def _claimed(self, connection: Connection, terms: ConnectTerms, error: EverlogError | None) -> None:
        """Go on with a client whose client id this broker holds now, of all brokers; or that may not have it."""
        if error is None:
            self._enter_later(connection, terms)
        elif isinstance(error, PeerError):
            connection.close(error.reason, str(error), told=error.message)
        else:
            connection.close(Reason.SERVER_UNAVAILABLE, str(error), told="the client id can't be taken now")

    def _enter(self, connection: Connection, terms: ConnectTerms) -> None:
        """Open the session as soon as the last connection with the client id, if there was one, has left."""
        packet, user = connection.connect, terms.session.user
        assert packet is not None
        if not self._registry.make_way(terms, partial(self._way_is_free, connection, terms)):
            connection.is_entering = True
            return
        session, present, waits = self._registry.open(connection, terms)
        connection.keep_alive_s = terms.keep_alive_s
        self.forget(connection)
        self._metrics.connects += 1
        self._router.attach(session, connection.output)
        if _log.isEnabledFor(DEBUG):
            fields = {"client": session.client_id, "peer": connection.peer, "version": packet.version, "user": user}
            report(_log, "connected", DEBUG, **fields, resumed=present)
        connack = terms.connack.write(present)
        assert connack is not None  # its size does not depend on whether there was a session
        connection.opened(session, connack, waits)
        if present:
            connection.work(self._subscriptions.resume(session), lambda _: None)
        connection.reader.proceed()

    def _way_is_free(self, connection: Connection, terms: ConnectTerms) -> None:
        if self._holding is None:
            self._enter_later(connection, terms)
        else:  # the client id may have been let go meanwhile
            self._holding.claim(terms, partial(self._claimed, connection, terms))

    def _enter_later(self, connection: Connection, terms: ConnectTerms) -> None:
        try:
            if connection.output.transport is not None and connection.state is not State.CLOSING:
                self._registry.check(connection, terms)
                self._enter(connection, terms)
        except PeerError as error:
            connection.close(error.reason, str(error), told=error.message)


def _new_client_id() -> str:
    return f"everlog-{secrets.token_hex(8)}"
