"""An MQTT client on asyncio: moves the bytes of a sans-I/O `Client`, and wakes whoever waits."""

import asyncio
import ssl
from collections.abc import Callable

from everlog.base import EverlogError, Unavailable, system_reason
from everlog.cli.client.websocket_wire import open_websocket
from everlog.mqtt import (
    NO_PROPERTIES,
    Client,
    ClientEvent,
    Connack,
    Connect,
    Disconnect,
    Message,
    Properties,
    Publish,
    Reason,
    Received,
    RefusedPublish,
    Suback,
    Subscription,
    Unsuback,
)

GATHER_BYTES = 64 << 10  # of output that are written without waiting for the loop's next turn
GOODBYE_S = 5.0  # for the last bytes to leave; then the connection is cut
_CLOSED = {  # what to look at when a server closes without an answer, by whether we speak TLS
    False: "does the port speak TLS? then give --cafile",
    True: "does it ask for another client certificate? --cert and --key name ours",
}

Handler = Callable[[list[Message]], int]  # takes messages; returns how many, from the first on


class Refused(Unavailable):
    """The server said why it does not serve us, or no longer does."""

    def __init__(self, what: str, reason: Reason, properties: Properties, hint: str = "") -> None:
        super().__init__(what if hint else f"{what}: {properties.reason_string or reason.words}", hint=hint)
        self.reason = reason
        self.reference = properties.server_reference


class Untrusted(Refused):
    """The server's certificate can't be trusted."""

    def __init__(self, message: str, hint: str) -> None:
        Unavailable.__init__(self, message, hint=hint)
        self.reason = Reason.NOT_AUTHORIZED
        self.reference = None


class AsyncClient(asyncio.Protocol):
    """A session with a server, over one connection at a time: `open` may be called again once it is closed or lost."""

    def __init__(self, connect: Connect, handler: Handler | None = None) -> None:
        self.session = Client(connect)
        self.handler = handler
        self.refused: list[RefusedPublish] = []
        self.on_packet: Callable[[str, str], None] | None = None  # told "sends" or "receives", and what
        self.answered = NO_PROPERTIES  # of the last SUBACK or UNSUBACK
        self._loop: asyncio.AbstractEventLoop
        self._answers: dict[int, tuple[Reason, ...]] = {}
        self._wakers: list[asyncio.Future[None]] = []
        self._transport: asyncio.Transport | None = None
        self._pinger: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Handle | None = None
        self._error: BaseException | None = None
        self._is_paused = self._is_lost = self._is_secure = False

    async def open(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        bind: str | None = None,
        websocket: str | None = None,
    ) -> Connack:
        """Connect and return the CONNACK; raises Unavailable if that can't be."""
        self._loop = asyncio.get_running_loop()
        self._transport = self._error = self._flusher = None
        self._is_paused = self._is_lost = False
        self._is_secure = tls is not None
        self._answers.clear()
        try:
            if websocket is None:
                local = None if bind is None else (bind, 0)
                await self._loop.create_connection(lambda: self, host, port, ssl=tls, local_addr=local)
            else:
                await open_websocket(self, websocket, tls, bind)
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"{host}:{port}: {error.verify_message}", "--cafile names who signed it") from error
        except ssl.SSLError as error:
            what = f"{host}:{port} does not speak TLS as we do: {error.reason or error}"
            raise Refused(what, Reason.PROTOCOL_ERROR, NO_PROPERTIES, hint="is it the plain port?") from error
        except OSError as error:
            cut_off = tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError)
            hint = "is it the plain port?" if cut_off else "is the broker running there?"
            why = system_reason(error) or "it closed the connection"
            raise Unavailable(f"can't connect to {host}:{port}: {why}", hint=hint) from error
        await self.wait_until(lambda: self.session.connack is not None)
        assert self.session.connack is not None
        if self.session.connack.reason.is_error:
            raise Refused("connection refused", self.session.connack.reason, self.session.connack.properties)
        if interval_s := self.session.ping_interval_s:
            self._pinger = self._loop.call_later(interval_s, self._ping)
        return self.session.connack

    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Send a message once there is room for it."""
        session = self.session
        if self._is_paused or not session.has_room:
            await self.wait_until(lambda: not self._is_paused and session.has_room)
        packet_id = session.next_packet_id() if qos else 0
        self._tell("sends", f"PUBLISH {topic} (q{qos}, r{int(retain)}, m{packet_id}, {len(payload)} bytes)")
        session.publish(Publish(topic, payload, qos, retain, False, packet_id, properties))
        self._send_soon()

    async def subscribe(
        self, subscriptions: tuple[Subscription, ...], properties: Properties = NO_PROPERTIES
    ) -> tuple[Reason, ...]:
        """Subscribe; returns the reason for each filter."""
        self._tell("sends", f"SUBSCRIBE {', '.join(one.filter for one in subscriptions)}")
        return await self._answer(self.session.subscribe(subscriptions, properties))

    async def unsubscribe(self, filters: tuple[str, ...], properties: Properties = NO_PROPERTIES) -> tuple[Reason, ...]:
        """Unsubscribe; returns the reason for each filter, none in 3.1.1."""
        self._tell("sends", f"UNSUBSCRIBE {', '.join(filters)}")
        return await self._answer(self.session.unsubscribe(filters, properties))

    async def settle(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        await self.wait_until(lambda: not self.session.in_flight)

    async def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition holds; raises what the connection fails with before."""
        while not done():
            if self._error is not None:
                raise self._error
            waker = self._loop.create_future()
            self._wakers.append(waker)
            await waker

    def wake(self) -> None:
        """Have those who wait look at their condition again."""
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            if not waker.done():
                waker.set_result(None)

    def pause(self) -> None:
        """Read no more for now; what the server sends waits there."""
        if self._transport is not None and not self._is_lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._is_lost:
            self._transport.resume_reading()

    async def close(self) -> None:
        """Disconnect, unless the connection is lost, and wait for the last byte to leave."""
        if self._pinger is not None:
            self._pinger.cancel()
        if self._transport is None or self._is_lost:
            return
        if self._error is None and self.session.connack is not None:
            self.session.disconnect()
            self._tell("sends", "DISCONNECT")
        self._flush()
        self._error = None
        self._transport.close()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self.wait_until(lambda: self._is_lost)
        except TimeoutError:
            self._transport.abort()
            await self.wait_until(lambda: self._is_lost)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._tell("sends", "CONNECT")
        self.session.start()
        self._send_soon()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self.session.receive(data):
                self._take(event)
        except (OSError, EverlogError) as error:  # OSError: the handler could not write its output
            self._fail(error)
        self._send_soon()
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._error is None:
            hint = "" if self.session.connack is not None else _CLOSED[self._is_secure]
            why = f": {system_reason(error)}" if isinstance(error, OSError) else f": {error}" if error else ""
            self._error = Unavailable(f"the server closed the connection{why}", hint=hint)
        self.wake()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.wake()

    def _take(self, event: ClientEvent) -> None:
        if self.on_packet is not None:
            self._tell_of(event)
        if isinstance(event, Received):
            count = len(event.messages)
            self.session.acknowledge(event, count if self.handler is None else self.handler(event.messages))
        elif isinstance(event, RefusedPublish):
            self.refused.append(event)
        elif isinstance(event, Suback | Unsuback):
            self._answers[event.packet_id] = tuple(map(Reason, event.reasons))
            self.answered = event.properties
        elif isinstance(event, Disconnect):
            self._fail(Refused("disconnected by the server", event.reason, event.properties))
        elif not isinstance(event, Connack):
            raise event

    def _tell(self, direction: str, what: str) -> None:
        if self.on_packet is not None:
            self.on_packet(direction, what)

    def _tell_of(self, event: ClientEvent) -> None:
        if isinstance(event, Received):
            for one in event.messages:
                flags = f"q{one.qos}, r{int(one.retain)}, m{one.packet_id}, {len(one.payload)} bytes"
                self._tell("receives", f"PUBLISH {one.topic.decode()} ({flags})")
        elif isinstance(event, Connack | Disconnect):
            self._tell("receives", f"{event.type.name} {event.reason.words}")
        elif isinstance(event, Suback | Unsuback):
            self._tell("receives", f"{event.type.name} {', '.join(Reason(one).words for one in event.reasons)}")

    def _ping(self) -> None:
        self._tell("sends", "PINGREQ")
        try:
            self.session.ping()
        except Unavailable as error:
            self._fail(error)
            return
        self._send_soon()
        self._pinger = self._loop.call_later(self.session.ping_interval_s, self._ping)

    def _send_soon(self) -> None:
        """Write the output in the event loop's next turn, all of it together; right away when it is much."""
        if self.session.output_bytes > GATHER_BYTES:
            self._flush()
        elif self.session.output_bytes and self._flusher is None:
            self._flusher = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flusher = None
        if self._transport is not None and not self._is_lost:
            self._transport.write(self.session.take_output())

    async def _answer(self, packet_id: int) -> tuple[Reason, ...]:
        self._send_soon()
        await self.wait_until(lambda: packet_id in self._answers)
        return self._answers.pop(packet_id)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        self.wake()
