"""The connections of a broker: made, swept, held back while too much is under way, and closed."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from logging import DEBUG, WARNING

from everlog.base import MessageColumns
from everlog.broker.auth import Security
from everlog.broker.connection.connect_gate import ConnectGate
from everlog.broker.connection.connection import Certificates, Connection, Shared
from everlog.broker.connection.packet_handlers import PacketHandlers
from everlog.broker.connection.poller import Poller, new_poller
from everlog.broker.connection.publish_rules import PublishRules
from everlog.broker.connection.socket_reader import SocketReader
from everlog.broker.connection.traffic import Traffic
from everlog.broker.delivery import Router, Sink
from everlog.broker.events import event as report
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry import Holding, Registry, Subscriptions, WriteBehind
from everlog.broker.turns import Steps, Turns
from everlog.mqtt import Carried, Reason
from everlog.sessions import Session

BUFFER_BYTES = 256 << 10
_CLOSED_A_TURN = 32  # connections whose peers have ended them: a millisecond
_log = logging.getLogger("everlog.broker")


class Connections:
    """All connections of a broker, and the facade of this floor; owned by the event loop's thread."""

    def __init__(
        self,
        router: Router,
        registry: Registry,
        subscriptions: Subscriptions,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        write_behind: WriteBehind | None,
        soon: Callable[[Callable[[], None]], object],
        turns: Turns,
        holding: Holding | None = None,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.carried = Carried(limits.unfinished_bytes, self._unfinished)
        self.traffic = Traffic(
            bytearray(BUFFER_BYTES), router, limits, metrics, write_behind is not None, time.monotonic, turns
        )
        self.rules = self.traffic.rules = PublishRules(self.traffic, security)
        self.traffic.hold_back = self._hold_back
        self.traffic.checks = security.has_rules
        self.gate = ConnectGate(
            router, registry, subscriptions, security, limits, metrics, lambda: self.traffic.time(), holding
        )
        self._router = router
        self._security = security
        self._registry = registry
        self._subscriptions = subscriptions
        self._soon = soon
        self._turns = turns
        handlers = PacketHandlers(self.gate, registry, subscriptions).table
        self._shared = Shared(
            self.traffic,
            limits,
            metrics,
            MessageColumns(1024),
            self.carried,
            write_behind,
            self._admit,
            self._peer_ended,
            self._lost,
            handlers,
        )
        self._poller: Poller | None = None
        self._open: dict[Sink, Connection] = {}  # by their outputs
        self._ended: deque[Connection] = deque()  # those of them to close, since their peers send no more
        self._ends = 0  # peers that ended in this turn, and earlier ones whose connections are closed in it
        self._gone: deque[Connection] = deque()  # those of them to let go of
        self._too_slow: dict[Connection, None] = {}
        self._shedding = False
        self._shedding_copies = False
        self._held_back: list[SocketReader] = []
        registry.copies.on_over = self._too_many_copies
        router.spills.on_over_quota = partial(self._too_slow_for, limit="queue_bytes")
        router.spills.on_full = partial(self._too_slow_for, limit="spill_bytes")

    def new(
        self, certificates: Certificates | None = None, allow_anonymous: bool | None = None, mount: str = ""
    ) -> Connection:
        """Return a protocol for a peer that connects, by a listener that may know peers by certificates.

        Without `allow_anonymous` it is the broker's to say whether a client needs a name that is proven. `mount` is
        what stands before all topics of its client.
        """
        return Connection(self._shared, certificates, allow_anonymous, mount)

    def poller(self) -> Poller | None:
        """Return what looks after plain TCP connections on the running loop; None: the loop itself has to."""
        if self._poller is None:
            self._poller = new_poller(asyncio.get_running_loop())
        return self._poller

    def at_end(self, call: Callable[[], None]) -> bool:
        """Have something called when all that is read in this turn is read; False if nothing is being read."""
        return self._poller is not None and self._poller.at_end(call)

    def close(self) -> None:
        """Check no more passwords and cut off whoever is still there, at the broker's end."""
        self.gate.close()
        if self._poller is not None:
            self._poller.close()

    def _admit(self, connection: Connection) -> int | None:
        self._open[connection.output] = connection
        return self.gate.admit(connection)

    def _peer_ended(self, connection: Connection) -> bool:
        """Return whether a connection whose peer sends no more is closed later: of thousands, some in each turn.

        Left to the event loop, all of them would be closed in the turn in which it hears of them.
        """
        self._ends += 1
        if self._ends == 1:
            self._soon(self._close_ended)
        if self._ends <= _CLOSED_A_TURN:
            return False
        self._ended.append(connection)
        return True

    def _close_ended(self) -> None:
        self._ends = min(_CLOSED_A_TURN, len(self._ended))
        for _ in range(self._ends):
            transport = self._ended.popleft().output.transport
            if transport is not None:
                transport.close()
        if self._ends:
            self._soon(self._close_ended)

    def _lost(self, connection: Connection) -> None:
        """Let go of a connection that is gone; of thousands at once, in turns."""
        self._gone.append(connection)
        if len(self._gone) == 1:
            self._turns.run(self._let_go_of_all(), lambda _: None, self._failed)

    def _let_go_of_all(self) -> Steps:
        while self._gone:
            try:
                self._let_go(self._gone[0])
            finally:
                self._gone.popleft()
            yield

    def _failed(self, error: Exception) -> None:
        if self._gone:
            self._turns.later(self._let_go_of_all(), lambda _: None, self._failed)
        raise error

    def _let_go(self, connection: Connection) -> None:
        self._open.pop(connection.output, None)
        self.gate.forget(connection)
        self.metrics.disconnects += 1
        session = connection.session
        if session is not None:
            if _log.isEnabledFor(DEBUG):
                reason = connection.closing_reason or "connection lost"
                report(_log, "disconnected", DEBUG, client=session.client_id, peer=connection.peer, reason=reason)
            self.rules.forget(session)
            self._registry.lost(connection, session)

    # Closing

    def sweep(self, now: float) -> None:
        """Close those that took too long to connect, and forget topic names if they take too much; once a second."""
        self.gate.sweep(now)
        if self.traffic.table.name_bytes > self.limits.topics_bytes:  # names read from the log count too
            self.rules.forget_topics()

    def deafen(self) -> None:
        """Admit nobody and hear nothing more: what clients send from now on they send again."""
        self.gate.is_closing = True
        for connection in self._open.values():
            if connection.session is not None:
                connection.reader.decoder.drop()

    def close_all(self, reason: int, why: str) -> None:
        """Close every connection, open or not."""
        referrals = self.gate.referrals if reason == Reason.SERVER_SHUTTING_DOWN else None
        for newcomer in {*self.gate.pending, *self._open.values()}:
            server = referrals.at_end() if referrals is not None and isinstance(newcomer, Connection) else None
            if server is not None and isinstance(newcomer, Connection) and newcomer.output.version == 5:
                newcomer.close(Reason.USE_ANOTHER_SERVER, why, server=server)
            else:
                newcomer.close(reason, why)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is connected."""
        return not (self._gone or self._registry.clients or self._registry.is_ending or self.gate.pending)

    def rules_changed(self) -> None:
        """Apply users, certificates and rules that were read again to connected clients."""
        for connection in list(self._open.values()):
            session = connection.session
            if not connection.is_trusted:
                self._expel(connection, "the authority of its certificate counts no more")
            elif session is None or not connection.is_open:
                continue
            elif not self._security.still_knows(session.user, connection.proof):
                self._expel(connection, "its user was deleted")
            else:
                for _ in self._subscriptions.revoke(session):
                    pass  # at once: nobody may be sent what it may not read any more

    def _expel(self, connection: Connection, why: str) -> None:
        """End the connection of a client that would not be let in any more, without a will."""
        if connection.session is not None:
            self._registry.wills.refuse(connection.session)
        self.metrics.expelled += 1
        report(_log, "expelled", WARNING, client=connection.client_id, peer=connection.peer, user=connection.user)
        connection.close(Reason.ADMINISTRATIVE_ACTION, why)

    def close_outputs(self, outputs: list[Sink], why: str) -> None:
        """Close connections by their outputs: their acks will not come."""
        for output in outputs:
            connection = self._open.get(output)
            if connection is not None:
                connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, why)

    # Too much

    def _hold_back(self, reader: SocketReader) -> None:
        """Let a client wait: too much of what it has published waits for the disk."""
        self.metrics.held_back += 1
        client = None if reader.session is None else reader.session.client_id
        limit = "inflight_bytes" if reader.waits_for_acks else "unwritten_bytes"
        report(_log, "limit", WARNING, limit=limit, client=client)
        reader.pause_reading()
        self._held_back.append(reader)

    def committed(self) -> None:
        """Read again from those that were held back, once less is under way."""
        if self._held_back:
            held, self._held_back = self._held_back, []
            self._held_back += [reader for reader in held if not reader.release()]

    def cut_off(self, session: Session, why: str) -> None:
        """Close the connection that a session has, since it can't get what it is owed."""
        output = self._router.sink(session)
        if output is not None:
            self.close_outputs([output], why)

    def _too_slow_for(self, session: Session, limit: str) -> None:
        """Close a client that does not keep up, when too much waits for it and none of that may be dropped."""
        output = self._router.sink(session)
        connection = None if output is None else self._open.get(output)
        if connection is not None and connection.is_open and connection not in self._too_slow:
            self._too_slow[connection] = None
            self.metrics.over_quota += 1
            report(_log, "limit", WARNING, limit=limit, client=session.client_id)
            self._soon(self._end_too_slow)  # not while a batch is on its way through the audiences

    def _end_too_slow(self) -> None:
        too_slow, self._too_slow = self._too_slow, {}
        for connection in too_slow:
            connection.close(Reason.QUOTA_EXCEEDED, "too slow for its QoS 1 and 2 messages")

    def _unfinished(self) -> None:
        """Have some with bytes of incomplete packets closed at the end of this turn, since it is too much."""
        if not self._shedding:
            self._shedding = True
            self._soon(self._shed)

    def _shed(self) -> None:
        self._shedding = False
        stalled = most_stalled(self._open.values())
        while stalled and self.carried.total_bytes > self.limits.unfinished_bytes:
            connection = stalled.pop()
            self.metrics.unfinished += 1
            report(_log, "limit", WARNING, limit="unfinished_bytes", client=connection.client_id, peer=connection.peer)
            connection.close(Reason.QUOTA_EXCEEDED, "too many bytes of an unfinished packet")
            connection.reader.decoder.drop()

    def _too_many_copies(self) -> None:
        """Have those with most unacknowledged messages that are in no log closed at the end of this turn."""
        if not self._shedding_copies:
            self._shedding_copies = True
            self._soon(self._shed_copies)

    def _shed_copies(self) -> None:
        self._shedding_copies = False
        copies = self._registry.copies
        while copies.holders and copies.total_bytes > copies.max_bytes:
            session = self._registry.shed_copies()
            self.metrics.over_copies += 1
            report(_log, "limit", WARNING, limit="copies_bytes", client=session.client_id)


def most_stalled(connections: Iterable[Connection]) -> list[Connection]:
    """Return who holds much of an incomplete packet, the one that has sent nothing for longest last.

    A large upload that goes on is not what takes the memory for long. Together they hold nearly all there is;
    those whose bytes wait for a turn of ours come first, as the silence is not theirs.
    """
    holding = [one for one in connections if one.reader.decoder.buffered_bytes]
    total = sum(one.reader.decoder.buffered_bytes for one in holding)
    much = [one for one in holding if 8 * len(holding) * one.reader.decoder.buffered_bytes >= total]
    return sorted(much, key=lambda one: (not one.reader.is_waiting, -one.last_seen, one.reader.decoder.buffered_bytes))
