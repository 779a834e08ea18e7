"""One client's connection: an asyncio protocol that has a reader and an output, its state, and how it ends.

Bytes go from the event loop straight to the reader's kernel and from the output's to the transport; here is what
happens once a control packet or once a connection. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from logging import DEBUG, WARNING
from typing import Any, Protocol

from msgspec.structs import replace

from everlog.base import AckRun, EverlogError, MessageColumns, PeerError, PublishRun, Unavailable, UsageError
from everlog.broker.auth import Authenticator
from everlog.broker.connection.output import Output
from everlog.broker.connection.socket_reader import SocketReader
from everlog.broker.connection.traffic import Traffic
from everlog.broker.connection.wire import Wire
from everlog.broker.events import event as report
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry import WriteBehind
from everlog.broker.turns import Steps, Work
from everlog.mqtt import (
    Carried,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Event,
    PacketType,
    Properties,
    Reason,
    State,
    Step,
    next_state,
    pack_pairs,
    return_code,
    step_of,
)
from everlog.sessions import Session

_log = logging.getLogger("everlog.broker")
_EVENTS_PER_STEP = 64  # packets or runs of one client, before the time is looked at
_REFUSED_UNREAD = (Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID)
_CONNECTING, _CLOSING = State.CONNECTING, State.CLOSING  # an enum's members are slow to look up
_BEFORE_CONNACK = (State.WAITING, State.CONNECTING, State.AUTHENTICATING)


class Certificates(Protocol):
    """What a listener knows of the certificates that its clients have shown."""

    def user(self, transport: asyncio.BaseTransport) -> str | None: ...

    def still_trusts(self, transport: asyncio.BaseTransport) -> bool: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a broker need of it."""

    traffic: Traffic
    limits: Limits
    metrics: Metrics
    columns: MessageColumns  # that all decoders parse into
    carried: Carried  # bytes of packets that are not whole
    write_behind: WriteBehind | None
    admit: Callable[["Connection"], int | None]  # whether a peer may stay: a reason if not
    ended: Callable[["Connection"], bool]  # a peer sends no more: whether the connection is closed later
    lost: Callable[["Connection"], None]  # a connection is gone
    handlers: Mapping[PacketType, Callable[["Connection", Any], None]]


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    __slots__ = (
        "_certificates",
        "_peer",
        "_shared",
        "_works",
        "allow_anonymous",  # None: as the broker does
        "buffer_updated",  # of the reader; these four are bound to the kernels so that nothing stands between
        "client_id",
        "closing_code",
        "closing_reason",
        "exchange",
        "get_buffer",  # of the reader
        "is_entering",
        "keep_alive_s",
        "mount",  # what stands before the topics of the client
        "output",
        "pause_writing",  # of the output
        "proof",
        "reader",
        "resume_writing",  # of the output
        "state",
        "user",
    )

    def __init__(
        self,
        shared: Shared,
        certificates: Certificates | None = None,
        allow_anonymous: bool | None = None,
        mount: str = "",
    ) -> None:
        limits = shared.limits
        decoder = Decoder(
            shared.columns,
            shared.traffic.table,
            limits.packet_bytes,
            limits.topic_aliases,
            max_topic_bytes=limits.topic_bytes,
            max_topic_levels=limits.topic_levels,
            max_topics=limits.topics_per_client,
            carried=shared.carried,
            max_events=_EVENTS_PER_STEP,
            max_publish_bytes=limits.message_bytes,
            mount=mount.encode(),
        )
        self._shared = shared
        self._works: list[Work] = []  # what is done in turns for packets of the client
        self._certificates = certificates
        self.allow_anonymous = allow_anonymous
        self.mount = mount
        self.output = Output(shared.traffic, shared.write_behind, limits.output_bytes)
        self.reader = SocketReader(shared.traffic, decoder, self.output)
        self.reader.connection = self
        self.output.on_free = self._output_free
        self.get_buffer = self.reader.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = self.reader.buffer_updated  # type: ignore[method-assign]
        self.pause_writing = self.output.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self.output.resume_writing  # type: ignore[method-assign]
        self.state = State.WAITING
        self.is_entering = False  # accepted, and waiting until the last connection with its client id has left
        self.client_id = ""
        self.user: str | None = None
        self.proof = ""  # what has proven the user's name, but for a certificate: `PASSWORD` or a method
        self.keep_alive_s = 0.0
        self._peer = ""
        self.closing_reason = ""
        self.closing_code = 0
        self.exchange: Authenticator | None = None  # an enhanced authentication that is under way

    @property
    def session(self) -> Session | None:
        """The session that it serves, once the client is accepted."""
        return self.output.session

    @property
    def connect(self) -> Connect | None:
        """The client's CONNECT, once it has come."""
        return self.output.connect

    @property
    def last_seen(self) -> float:
        """When the client last sent something."""
        return self.reader.last_seen

    @property
    def is_settled(self) -> bool:
        """Whether all that the client has published is committed, or was refused."""
        return self.reader.is_settled

    @property
    def is_open(self) -> bool:
        """Whether the client has its CONNACK and neither side has ended the connection."""
        return self.reader.is_open

    @property
    def peer(self) -> str:
        """Where the peer connects from; asked for only when somebody is told, since it costs two system calls."""
        if not self._peer and self.output.transport is not None:
            self._peer = peer_of(self.output.transport)
        return self._peer

    def came_from(self, peer: str) -> None:
        """Note where the peer connects from, of which its proxy has told."""
        self._peer = peer

    @property
    def file_number(self) -> int:
        """The number of its socket; 0 if it has none."""
        return file_number_of(self.output.transport)

    @property
    def takes_packets(self) -> bool:
        """Whether it neither waits for a decision about the client, nor works on an earlier packet, nor closes."""
        state = self.state
        return not (state is _CONNECTING or state is _CLOSING or self._works or self.is_entering)

    @property
    def is_trusted(self) -> bool:
        """Whether the certificate that it has shown, if any, would still be accepted."""
        transport = self.output.transport
        return self._certificates is None or transport is None or self._certificates.still_trusts(transport)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a peer that has connected; it has a while to say CONNECT."""
        self.output.begin(transport)
        self.reader.last_seen = self._shared.traffic.time()
        if _log.isEnabledFor(DEBUG):
            self._peer = self._peer or peer_of(transport)  # to be told when it is gone
        if self._certificates is not None:  # the handshake is over, so what was shown has been verified
            self.user = self._certificates.user(transport)
        self.output.transport.set_write_buffer_limits(self._shared.limits.output_bytes)
        refusal = self._shared.admit(self)
        if refusal is not None:
            self.close(refusal, "refused")
        elif not self.is_trusted:  # a reload came in the middle of its handshake
            self.close(Reason.NOT_AUTHORIZED, "the authority of its certificate counts no more")

    def eof_received(self) -> bool:
        """Return whether the connection, whose peer sends no more, is left open for a moment and then closed by us."""
        transport = self.output.transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return False  # TLS can't be left open
        return self._shared.ended(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, in whichever way the connection went."""
        if self.session is not None and not self.closing_reason:
            self._shared.metrics.vanished += 1
        self._end()
        self.reader.decoder.drop()
        self._shared.lost(self)
        self.output.end()
        self.output.on_free = self.reader.connection = None  # so that nothing refers to itself, and memory is free now

    # What the rest of the broker calls

    def close(self, reason: int, why: str, *, told: str | None = None, server: str | None = None) -> None:
        """End the connection, telling the client why where its version can; `told`, if that is not for its ears.

        `server` is where it may go instead.
        """
        if self.state is _CLOSING or self.output.transport is None:
            return
        self.closing_reason, self.closing_code = why, reason
        words = why if told is None else told
        if self.session is None:
            client = self.connect.client_id if self.connect is not None else None
            self._shared.metrics.connects_refused += self.connect is not None
            report(_log, "refused", WARNING, client=client, peer=self.peer, user=self.user, reason=why)
        if self.state in _BEFORE_CONNACK:
            self._refuse(reason, words, server)
        elif self.output.version == 5 and reason and self.output.overtake():
            self.output.send(Disconnect(Reason(reason), self._explain(words, server)))  # [MQTT-4.13.1-1]
        self._end()
        self.output.close()

    def leave(self, *, when_stored: bool = False) -> None:
        """End a connection that the client has ended; if `when_stored`, it is closed when the tables know all."""
        self.closing_reason = "client disconnected"
        self._end()
        if when_stored and self._shared.write_behind is not None:
            self._shared.write_behind.when_durable(self.output.close)
        else:
            self.output.close()

    def opened(self, session: Session, connack: bytes, waits: bool) -> None:
        """Accept the client: CONNACK goes out; if it `waits`, when the tables know all."""
        self.is_entering = False
        self.client_id = session.client_id
        self.reader.session = self.output.session = session
        session.scatter(True)
        self.state = next_state(self.state, Event.ACCEPT)
        self.reader.is_open = True
        if self._shared.write_behind is not None:
            session.take_early()
        if waits:
            self.output.hold()  # a client relies on what it is told of its session
        self.output.write(connack)
        self.output.hold_connack()

    def violated(self, why: str) -> None:
        """Count a peer that broke the rules of what carries its packets."""
        self._shared.metrics.protocol_errors += 1
        self.closing_reason = why

    # What the reader calls

    def dispatch(self, event: object) -> bool:
        """Handle what is not a run on an open connection, if it may come now; return False if the rest must wait."""
        if self.state is _CLOSING:
            return True
        if isinstance(event, PeerError):
            raise event
        if isinstance(event, PublishRun | AckRun):
            step: Step = PacketType.PUBLISH if isinstance(event, PublishRun) else PacketType(event.packet_type)
            next_state(self.state, step)  # raises: only an open connection takes runs, and it has taken them already
            return True
        packet: Any = event
        self.state = next_state(self.state, step_of(packet))
        if packet.type is PacketType.CONNECT:
            if packet.properties.user_properties:  # nobody asks for them, and they may take 20 times their bytes
                packet = replace(packet, properties=replace(packet.properties, user_properties=()))
            if packet.will is not None:
                packet = replace(packet, will=pack_pairs(packet.will))
            self.output.connect, self.output.version = packet, self.reader.decoder.version
        self._shared.handlers[packet.type](self, packet)
        return self.takes_packets or self.state is _CLOSING

    def work(self, steps: Steps, then: Callable[[Any], None]) -> None:
        """Work on a packet in turns, and tell `then` the result; what the client sends meanwhile waits.

        If the connection ends before, the rest is dropped.
        """
        work = self._shared.traffic.turns.run(steps, partial(self._worked, then), self._failed)
        if not work.is_over:
            self._works.append(work)

    def _worked(self, then: Callable[[Any], None], result: object) -> None:
        try:
            then(result)
        except EverlogError as error:
            self._failed(error)
        self._go_on()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, PeerError):
            self.broke_the_rules(error)
        elif isinstance(error, EverlogError):
            self.not_taken(error)
        else:
            self.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the broker failed")
            raise error

    def _go_on(self) -> None:
        """Take the next packet, once all work on earlier ones is done."""
        if self._works:
            self._works = [one for one in self._works if not one.is_over]
            if not self._works:
                self.reader.proceed()

    def broke_the_rules(self, error: PeerError) -> None:
        """End the connection of a peer that broke a rule of the protocol, a limit, or is not who it says."""
        self._shared.metrics.protocol_errors += 1
        if self.session is not None:
            report(_log, "protocol_error", WARNING, client=self.client_id, peer=self.peer, reason=error)
        self.close(error.reason, str(error), told=error.message)

    def not_taken(self, error: EverlogError) -> None:
        """End the connection because the log refuses: it is full, failed or closed."""
        report(_log, "log_refused", WARNING, client=self.client_id, peer=self.peer, reason=error)
        reason = Reason.SERVER_BUSY if isinstance(error, Unavailable) else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        self.close(reason, str(error), told="the log takes no messages now")

    def _end(self) -> None:
        self.state = _CLOSING
        self.reader.is_open = False
        works, self._works = self._works, []
        for one in works:
            one.drop()

    def _output_free(self) -> None:
        """Take what a peer sends again that has read what was sent to it."""
        if self.reader.is_open:
            self.reader.go_on()

    def _explain(self, words: str, server: str | None) -> Properties:
        """Return why in words, if the client wants them, and where it may go instead."""
        said = self.output.explain(words)
        return said if server is None else replace(said, server_reference=server)

    def _refuse(self, reason: int, why: str, server: str | None) -> None:
        """Send a CONNACK with an error, where the protocol has one for it."""
        output, version = self.output, self.reader.decoder.version
        output.version = version  # it is known even if the rest of the CONNECT is wrong
        if version == 0 and reason not in _REFUSED_UNREAD:  # a CONNACK answers a CONNECT, or nothing
            return
        if version != 5 and return_code(Reason(reason)) is None:
            return
        try:
            data = output.encoded(Connack(False, Reason(reason), self._explain(why, server)))
        except UsageError:
            return
        if data is not None:
            output.transport.write(data)


def peer_of(transport: Any) -> str:
    """Return where a peer connects from, for the log."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "local")


def file_number_of(transport: Any) -> int:
    """Return the number of a transport's socket; 0 if it has none."""
    if isinstance(transport, Wire):
        return transport.fd
    wire = None if transport is None else transport.get_extra_info("socket")
    return 0 if wire is None else int(wire.fileno())
