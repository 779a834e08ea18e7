"""An MQTT 5 broker as a bus: requests and replies at QoS 0, each request with its response topic.

Replies go to `response/<client id>/…` only. What is published in one turn of the loop leaves in one write. The bus
builds its PUBLISHes itself, from parts that are kept: thousands go to the same few topics.
"""

import asyncio
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from everlog.base import EverlogError, PeerError, Unavailable, UsageError, system_reason
from everlog.bus.delivery import Delivery
from everlog.bus.mqtt_packets import MqttInput, MqttOutput
from everlog.bus.port import NotAllowed
from everlog.bus.reconnect import CONGESTED_BYTES, ReconnectingBus
from everlog.mqtt import (
    Client,
    Connack,
    Connect,
    Disconnect,
    Message,
    Reason,
    Received,
    Suback,
    Subscription,
)

DEFAULT_PORT, DEFAULT_TLS_PORT = 1883, 8883
KEEP_ALIVE_S = 60
_HEADER_BYTES = 64  # at most, of a PUBLISH besides its topics and its payload
_UNSAID_BYTES = 1 << 20  # of a packet, where the broker names no limit
_INBOXES = "response/"
_GATHER_BYTES = 256 << 10  # of output that are written without waiting for the next turn
_TURNED_AWAY = {Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BANNED}

Dialer: TypeAlias = Callable[[asyncio.BaseProtocol], Awaitable[object]]  # connects a protocol to a broker


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """Where a broker listens, and how to log in there."""

    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None

    async def dial(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect a protocol to the broker."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)
        except OSError as error:
            raise Unavailable(
                f"can't connect to mqtt://{self.host}:{self.port}: {system_reason(error)}",
                hint="is the broker running there?",
            ) from error


class MqttBus(ReconnectingBus, asyncio.BufferedProtocol):
    """A client of an MQTT 5 broker; see `Bus`."""

    def __init__(self, addresses: list[MqttAddress], client_id: str = "", dialer: Dialer | None = None) -> None:
        super().__init__(len(addresses) or 1)
        self._dialers: list[Dialer] = [dialer] if dialer is not None else [one.dial for one in addresses]
        self._logins = [(one.user, one.password) for one in addresses] or [(None, None)]
        self._client_id = client_id or f"everlog-{secrets.token_hex(8)}"
        self.inbox = f"{_INBOXES}{self._client_id}"
        self.max_payload = _UNSAID_BYTES
        self._session = Client(Connect(version=5, client_id=self._client_id))
        self._arrived = MqttInput()
        self._rendered = MqttOutput()
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flusher: asyncio.Handle | None = None
        self._pinger: asyncio.TimerHandle | None = None
        self._accepted: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Reason]] = {}

    def publish(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> bool:
        """Send a message; return False if there is no connection."""
        if not self.is_open:
            return False
        if len(payload) > self.max_payload:
            raise UsageError(f"{len(payload)} bytes are too large for a message", hint=f"at most {self.max_payload}")
        self._write(self._rendered.render([Delivery(subject, payload, reply, correlation)]))
        return True

    def publish_all(self, messages: list[Delivery]) -> bool:
        """Send messages; return False if there is no connection."""
        if self.is_open:
            self._write(self._rendered.render(messages))
        return self.is_open

    # What the reconnecting bus asks for

    async def _connect(self, address: int) -> None:
        user, password = self._logins[address]
        self._session = Client(
            Connect(
                version=5,
                client_id=self._client_id,
                keep_alive=KEEP_ALIVE_S,
                user_name=user,
                password=None if password is None else password.encode(),
            )
        )
        self._arrived = MqttInput()
        loop = asyncio.get_running_loop()
        self._accepted = loop.create_future()
        self._answers.clear()
        await self._dialers[address](self)
        await self._accepted
        connack = self._session.connack
        assert connack is not None
        limit = connack.properties.maximum_packet_size or _UNSAID_BYTES
        self.max_payload = max(1024, min(limit, 1 << 20) - _HEADER_BYTES - 4096)  # topics have some of it
        if interval_s := self._session.ping_interval_s:
            self._pinger = loop.call_later(interval_s, self._ping)

    async def _confirm(self, pattern: str) -> None:
        waiting = asyncio.get_running_loop().create_future()
        # retained messages are of no use here, so none are asked for
        packet_id = self._session.subscribe((Subscription(pattern, qos=0, retain_handling=2),))
        self._answers[packet_id] = waiting
        self._sent(0)
        reason = await waiting
        if reason.is_error:
            raise NotAllowed(f"the broker does not allow a subscription to {pattern}: {reason.words}")

    def _withdraw(self, pattern: str) -> None:
        self._session.unsubscribe((pattern,))
        self._sent(0)

    async def _disconnect(self) -> None:
        transport = self._transport
        if self._pinger is not None:
            self._pinger.cancel()
        if transport is not None:
            self._session.disconnect()
            self._flush()
            self._transport = None
            transport.close()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a broker."""
        self._transport = wire = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        wire.set_write_buffer_limits(CONGESTED_BYTES)
        self._session.start()
        self._sent(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where bytes of the broker are to be put."""
        return self._arrived.place()

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes: deliveries to their handlers, the rest by what it is."""
        arrived = self._arrived
        try:
            arrived.filled(nbytes)
            others, arrived.others = arrived.others, []
            for event in self._session.receive(b"".join(others)):
                if isinstance(event, Received):
                    self._session.acknowledge(event, len(event.messages))
                    arrived.deliveries += map(self._delivery, event.messages)
                elif isinstance(event, Suback):
                    waiting = self._answers.pop(event.packet_id, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(Reason(event.reasons[0]))
                elif isinstance(event, Connack):
                    self._take_connack(event)
                elif isinstance(event, Disconnect):
                    words = event.properties.reason_string or event.reason.words
                    raise Unavailable(f"the broker ends the connection: {words}")
                elif isinstance(event, PeerError):
                    raise event
        except EverlogError as error:
            self._fail(error)
        deliveries, arrived.deliveries = arrived.deliveries, []
        if deliveries:
            self.routes.dispatch(deliveries)
        self._sent(0)

    def connection_lost(self, error: Exception | None) -> None:
        """End, in whichever way the connection went."""
        self._fail(Unavailable(f"the broker closed the connection{f': {error}' if error else ''}"))

    def pause_writing(self) -> None:
        """Note that much waits to leave."""
        self._set_congested(True)

    def resume_writing(self) -> None:
        """Note that it has left."""
        self._set_congested(False)

    # Packets

    def _take_connack(self, connack: Connack) -> None:
        if connack.reason in _TURNED_AWAY:
            raise NotAllowed(f"the broker refuses the connection: {connack.reason.words}", hint="check the user")
        if connack.reason.is_error:
            words = connack.properties.reason_string or connack.reason.words
            raise Unavailable(f"the broker refuses the connection: {words}")
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    def _delivery(self, message: Message) -> Delivery:
        """Return a message that is not as most are."""
        return Delivery(message.topic.decode(), message.payload, *self._arrived.reply_of(message.section))

    def _ping(self) -> None:
        try:
            self._session.ping()
        except Unavailable as error:
            self._fail(error)
            return
        self._sent(0)
        self._pinger = asyncio.get_running_loop().call_later(self._session.ping_interval_s, self._ping)

    def _fail(self, error: EverlogError) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._pinger is not None:
            self._pinger.cancel()
        self._output.clear()
        self._output_bytes = 0
        waiting: list[asyncio.Future[None] | asyncio.Future[Reason]] = [*self._answers.values()]
        self._answers.clear()
        if self._accepted is not None:
            waiting.append(self._accepted)
        for one in waiting:
            if not one.done():
                one.set_exception(error)
                one.exception()  # whoever does not wait any more need not fetch it
        if transport is not None:
            self.connection_is_lost(error)

    # Output

    def _write(self, data: bytes) -> None:
        self._output.append(data)
        self._sent(len(data))

    def _sent(self, size: int) -> None:
        """Write in this turn's one write; right away when it is much."""
        self._output_bytes += size
        if self._output_bytes > _GATHER_BYTES:
            self._flush()
        elif self._flusher is None and (self._output or self._session.output_bytes):
            self._flusher = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        output, self._output = self._output, []
        self._output_bytes = 0
        if self._session.output_bytes:
            output.insert(0, self._session.take_output())
        if self._transport is not None and output:
            self._transport.write(b"".join(output))
