"""One client's connection: bytes to events, events to what the broker does, and how it ends.

An asyncio protocol that reads into the broker's one shared buffer. Per packet work happens only for control packets;
a run of PUBLISHes or of acks is one event. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from logging import WARNING
from typing import TYPE_CHECKING, Any, cast

from everlog.base import AckRun, EverlogError, PeerError, PublishRun, Unavailable, UsageError
from everlog.broker.control import HANDLERS
from everlog.broker.detach import attached, detached
from everlog.broker.events import event as report
from everlog.broker.outgoing import Outgoing, peer_of
from everlog.broker.wire import EVENTS_PER_TURN
from everlog.mqtt import (
    Connack,
    Disconnect,
    Event,
    PacketType,
    Properties,
    Reason,
    State,
    Step,
    Will,
    next_state,
    return_code,
    step_of,
)
from everlog.sessions import Session

if TYPE_CHECKING:
    from everlog.broker.authentication import Authenticator
    from everlog.broker.broker import Broker

_log = logging.getLogger("everlog.broker")
_REFUSED_UNREAD = (Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID)
_BEFORE_CONNACK = (State.WAITING, State.CONNECTING, State.AUTHENTICATING)
_NAMES_PER_TURN = 100  # new topic names of one client; if it has more, the others have their turn
_GREEDY_BYTES = 16 << 10  # read at once from such a client


class Connection(Outgoing):
    """The server's end of one connection."""

    __slots__ = (
        "allowed",
        "client_id",
        "closing_reason",
        "exchange",
        "keep_alive_s",
        "peer",
        "user",
        "will",
    )

    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker)
        self.client_id = ""
        self.user: str | None = None
        self.will: Will | None = None
        self.allowed: dict[int, bool] = {}
        self.keep_alive_s = 0.0
        self.peer = ""
        self.closing_reason = ""
        self.exchange: Authenticator | None = None  # an enhanced authentication that is under way

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected; it has a while to say CONNECT."""
        self.transport = wire = cast(asyncio.Transport, transport)
        self.last_seen = self.broker.time()
        self.peer = peer_of(transport)
        wire.set_write_buffer_limits(self.broker.limits.output_bytes)
        refusal = self.broker.gate.admit(self)
        if refusal is not None:
            self.close(refusal, "refused")

    def eof_received(self) -> bool | None:
        """The peer sends no more: that ends the connection."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, in whichever way."""
        if self.session is not None and not self.closing_reason:
            self.broker.metrics.vanished += 1
        self.state = State.CLOSING
        self.is_open = False
        self.decoder.drop()
        self.broker.lost(self)
        self.transport = None

    # What the rest of the broker calls

    def close(self, reason: int, why: str, *, told: str | None = None) -> None:
        """End the connection, telling the client why where its version can; `told`, if that is not for its ears."""
        if self.state is State.CLOSING or self.transport is None:
            return
        self.closing_reason = why
        words = why if told is None else told
        if self.session is None:
            client = self.connect.client_id if self.connect is not None else None
            self.broker.metrics.connects_refused += self.connect is not None
            report(_log, "refused", WARNING, client=client, peer=self.peer, user=self.user, reason=why)
        if self.state in _BEFORE_CONNACK:
            self._refuse(reason, words)
        elif self.decoder.version == 5 and reason and (self._outbox is None or not self._outbox.has_connack):
            self._outbox = None  # what waited is sent again when the client is back
            self.send(Disconnect(Reason(reason), self.explain(words)))  # [MQTT-4.13.1-1]
        self.state = next_state(self.state, Event.CLOSE)
        self.end()

    def opened(self, session: Session, session_present: bool, properties: Properties) -> None:
        """The broker accepts the client: CONNACK goes out."""
        self.session = session
        self.state = next_state(self.state, Event.ACCEPT)
        self.is_open = True
        persistence = self.broker.persistence
        if persistence is not None and (session.kept or persistence.will_forget(session.client_id)):
            self.hold()  # a client relies on what it is told of its session
        self.send(Connack(session_present, Reason.SUCCESS, properties))
        if self._outbox is not None:
            self._outbox.has_connack = True

    def proceed(self) -> None:
        """What the client has sent and what waited, such as for its CONNACK, is taken."""
        waiting = self._waiting
        if waiting is None:
            self.resume_reading()
            return
        some = [waiting.popleft() for _ in range(min(len(waiting), EVENTS_PER_TURN))]
        if not waiting:
            self._waiting = None
        try:
            events = attached(some, self.broker.table)
        except PeerError as error:
            events = [error]
        self._handle(events)
        self._go_on()

    # Events

    def _learnt(self, names: int) -> None:
        """New names cost much more than known ones: who brings many at once is read from a little at a time."""
        if names <= _NAMES_PER_TURN:
            self._buffer = self.broker.buffer
            return
        self._buffer = memoryview(self.broker.buffer)[:_GREEDY_BYTES]
        if not self._paused:
            self.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _not_taken(self, error: EverlogError) -> None:
        """The log refuses: it is full, failed or closed."""
        report(_log, "log_refused", WARNING, client=self.client_id, peer=self.peer, reason=error)
        reason = Reason.SERVER_BUSY if isinstance(error, Unavailable) else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        self.close(reason, str(error), told="the log takes no messages now")

    def _postpone(self, events: list[Any], behind: bool) -> None:
        """These are taken later, before or behind what waits already, and nothing more is read until then."""
        if self._waiting is None:
            self._waiting = deque()
        later = detached(events, self.broker.table)
        if behind:
            self._waiting.extend(later)
        else:
            self._waiting.extendleft(reversed(later))
        self.pause_reading()

    def _go_on(self) -> None:
        """What waits, or the next read, when others have had their turn; not while the peer does not read."""
        if self.state in (State.CONNECTING, State.CLOSING):
            return
        if self._full and self.unsent_bytes() > 2 * self.broker.limits.output_bytes:
            self.broker.metrics.unread_answers += 1
            self.pause_reading()
        elif self._waiting is not None:
            asyncio.get_running_loop().call_soon(self._next_turn)
        else:
            self.resume_reading()

    def _next_turn(self) -> None:
        if self._waiting is not None and self.state not in (State.CONNECTING, State.CLOSING):
            self.proceed()

    def caught_up(self) -> None:
        """The peer has read what was sent to it: what it sends is taken again."""
        if self.is_open:
            self._go_on()

    def _dispatch(self, event: object) -> None:
        """What is not a run on an open connection: the state table says whether it may come now."""
        if isinstance(event, PeerError):
            raise event
        if isinstance(event, PublishRun | AckRun):
            step: Step = PacketType.PUBLISH if isinstance(event, PublishRun) else PacketType(event.packet_type)
            next_state(self.state, step)  # raises: only an open connection takes runs, and it has taken them already
            return
        packet: Any = event
        self.state = next_state(self.state, step_of(packet))
        HANDLERS[packet.type](self, packet)

    def broke_the_rules(self, error: PeerError) -> None:
        """Of the protocol or of a limit, or who it says it is: that ends the connection."""
        self.broker.metrics.protocol_errors += 1
        if self.session is not None:
            report(_log, "protocol_error", WARNING, client=self.client_id, peer=self.peer, reason=error)
        self.close(error.reason, str(error), told=error.message)

    def _refuse(self, reason: int, why: str) -> None:
        """CONNACK with an error, where the protocol has one for it."""
        version = self.decoder.version or 4
        if self.decoder.version == 0 and reason not in _REFUSED_UNREAD:  # a CONNACK answers a CONNECT, or nothing
            return
        if version != 5 and return_code(Reason(reason)) is None:
            return
        try:
            data = self.encoded(Connack(False, Reason(reason), self.explain(why)))
        except UsageError:
            return
        if self.transport is not None and data is not None:
            self.transport.write(data)
