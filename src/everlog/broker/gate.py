"""The way in: from an accepted socket to an open session. Limits, time, passwords, enhanced authentication.

Whoever is connected and not open yet is in `pending`, from the first byte of a TLS or WebSocket handshake on, and all
of it together may take `limits.connect_timeout_s`. Who is over a limit may stay for a moment, to be told so when its
CONNECT has come; there are few of those, and the others are closed at once, so that a flood stays cheap.
"""

import asyncio
import logging
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from typing import TYPE_CHECKING, Protocol

from everlog.base import PeerError
from everlog.broker import exchanges
from everlog.broker.events import event as report
from everlog.broker.rates import TokenBucket
from everlog.broker.security import Admission
from everlog.mqtt import Connect, Reason

if TYPE_CHECKING:
    from everlog.broker.broker import Broker
    from everlog.broker.connection import Connection

_VERIFIERS = 4  # passwords checked at a time, each with 19 MiB of memory; the others wait
_ANSWERS = 100  # peers over a limit that are told so, at a time and a second; the others are closed without a word
_ANSWER_S = 1.0  # for the CONNECT of such a peer
_OVER = {
    Reason.SERVER_BUSY: ("connections", "too many connections"),
    Reason.CONNECTION_RATE_EXCEEDED: ("connects_per_second", "too many connects in a second"),
}
_log = logging.getLogger("everlog.broker")


class Newcomer(Hashable, Protocol):
    """Whoever has connected: a connection, or one that is still shaking hands over TLS."""

    peer: str

    def close(self, reason: int, why: str) -> None: ...


class Gate:
    """Lets clients in, or not; one for each broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.pending: dict[Newcomer, float] = {}  # connected and not open yet, since when
        self.entries: dict[Newcomer, Newcomer] = {}  # who will come in the place of whom that is pending
        self._turned_away: dict[
            Newcomer, Reason
        ] = {}  # those of `pending` that are over a limit, and what they are told
        self._bucket = TokenBucket(broker.limits.connects_per_second)
        self._answers = TokenBucket(_ANSWERS)
        self._verifiers = ThreadPoolExecutor(_VERIFIERS, "everlog-verify")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_verifying(self) -> bool:
        """Whether a password is being checked."""
        return bool(self._tasks)

    def close(self) -> None:
        """No more passwords are checked."""
        self._verifiers.shutdown(wait=False)

    def sweep(self, now: float) -> None:
        """Once a second: who has taken too long."""
        too_long = self._broker.limits.connect_timeout_s
        sooner, away = min(too_long, _ANSWER_S), self._turned_away
        for newcomer in [
            one for one, since in self.pending.items() if now - since >= (sooner if one in away else too_long)
        ]:
            reason = away.get(newcomer)
            if reason is not None:
                newcomer.close(reason, _OVER[reason][1])
            else:
                self._broker.metrics.connect_timeouts += 1
                newcomer.close(Reason.SERVER_UNAVAILABLE, "no CONNECT in time")
            self.forget(newcomer)

    def forget(self, newcomer: Newcomer) -> None:
        """It is open or gone."""
        self.pending.pop(newcomer, None)
        self._turned_away.pop(newcomer, None)

    def admit(self, newcomer: Newcomer) -> int | None:
        """Whether who has just connected may stay, if only to be told that it may not: a reason if not."""
        broker = self._broker
        if broker.closing:
            return Reason.SERVER_SHUTTING_DOWN
        entry = self.entries.pop(newcomer, None)
        if entry is not None:  # it has been let in already, and its time goes on
            self.pending[newcomer] = self.pending.pop(entry, broker.time())
            if entry in self._turned_away:
                self._turned_away[newcomer] = self._turned_away.pop(entry)
            return None
        reason = self._over()
        if reason is not None:
            broker.metrics.connects_limited += 1
            report(_log, "limit", WARNING, limit=_OVER[reason][0], peer=newcomer.peer)
            if len(self._turned_away) >= _ANSWERS or not self._answers.take(broker.time()):
                return reason
            self._turned_away[newcomer] = reason
        self.pending[newcomer] = broker.time()
        return None

    def _over(self) -> Reason | None:
        """The reason why one more is too many now."""
        broker = self._broker
        staying = len(broker.clients.connections) + len(self.pending) - len(self._turned_away)
        if staying >= broker.limits.connections:
            return Reason.SERVER_BUSY
        return None if self._bucket.take(broker.time()) else Reason.CONNECTION_RATE_EXCEEDED

    def connecting(self, connection: "Connection", packet: Connect) -> None:
        """CONNECT: check who it is, at once, in a thread or in steps, then open the session."""
        over = self._turned_away.get(connection)
        if over is not None:
            connection.close(over, _OVER[over][1])
            return
        if packet.properties.authentication_method is not None:
            exchanges.begin(connection, packet.properties)
            return
        admission = self._broker.security.decide(packet.user_name, packet.password, connection.user)
        if admission is not None:
            self._decided(connection, packet, admission)
            return
        task = asyncio.get_running_loop().create_task(self._verify(connection, packet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _verify(self, connection: "Connection", packet: Connect) -> None:
        """A password takes a while to check, on purpose, so a thread does it."""
        user, password = packet.user_name or "", packet.password or b""
        verdict = await asyncio.get_running_loop().run_in_executor(
            self._verifiers, self._broker.security.verify, user, password
        )
        try:
            if connection.transport is not None:
                self._decided(connection, packet, verdict)
        except PeerError as error:
            connection.close(error.reason, str(error))

    def _decided(self, connection: "Connection", packet: Connect, admission: Admission) -> None:
        if not admission.admitted:
            self._broker.metrics.auth_failures += 1
            report(_log, "auth_failed", WARNING, client=packet.client_id, peer=connection.peer, user=packet.user_name)
            if packet.user_name is None:
                raise PeerError(Reason.NOT_AUTHORIZED, "clients need a user name and password")
            raise PeerError(Reason.BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong")
        connection.user = admission.user
        self._broker.open(connection, packet)
