"""A small MQTT client on asyncio for `pub` and `sub`: both versions, every QoS, TLS.

The protocol is everlog.mqtt's; this shell moves bytes, counts what is in flight and wakes whoever waits. A received
message is acknowledged once the handler has taken it, so that what was not printed is sent again.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace

from everlog.base import AckRun, MessageColumns, PeerError, PublishRun, TopicTable, Unavailable
from everlog.cli.message import Message, unpack
from everlog.mqtt import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    PacketType,
    Pingreq,
    Properties,
    Publish,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    encode,
    write_acks,
    write_answers,
)

WINDOW = 1000  # of our QoS 1 and 2 messages in flight, or fewer if the server says so; more wait
WINDOW_311 = 20  # of a version in which the server can't say so; Mosquitto cuts off who has more
GATHER_BYTES = 64 << 10  # of outgoing packets before they are written in the midst of a burst
GOODBYE_S = 5.0  # for the last bytes to leave; then the connection is cut
MAX_TOPICS = 100_000  # names remembered; at the limit all are forgotten

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)


Handler = Callable[[list[Message]], int]  # takes messages; how many of them, from the first on


class Refused(Unavailable):
    """The server said why it does not serve us, or does no more."""

    def __init__(self, what: str, reason: Reason, properties: Properties) -> None:
        words = properties.reason_string or reason.name.lower().replace("_", " ")
        super().__init__(f"{what}: {words}")
        self.reason = reason


class Untrusted(Refused):
    """The server's certificate is not to be trusted."""

    def __init__(self, message: str, hint: str) -> None:
        Unavailable.__init__(self, message, hint=hint)
        self.reason = Reason.NOT_AUTHORIZED


class Client(asyncio.Protocol):
    """One connection; `connect` is what it says first."""

    def __init__(self, connect: Connect, handler: Handler | None = None) -> None:
        self.connect = connect
        self.version = connect.version
        self.handler = handler
        self.connack: Connack | None = None
        self.refused: list[tuple[int, Reason]] = []  # our messages that the server did not take
        self.answered = NO_PROPERTIES  # of the last SUBACK or UNSUBACK
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport | None = None
        self._columns = MessageColumns(256)
        self._table = TopicTable()
        self._decoder = Decoder(self._columns, self._table, version=connect.version, from_client=False)
        self._names: dict[int, bytes] = {}
        self._answers: dict[int, tuple[Reason, ...]] = {}
        self._inflight: dict[int, int] = {}  # packet id -> the ack that ends or continues it
        self._sent: dict[int, Publish] = {}  # of those that have no answer yet
        self._before: Client | None = None
        self._received: set[int] = set()  # QoS 2 ids between PUBREC and PUBREL
        self._window = WINDOW_311
        self._last_id = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._paused = False
        self._error: BaseException | None = None
        self._lost = False
        self._wakers: list[asyncio.Future[None]] = []
        self._ping: asyncio.TimerHandle | None = None
        self._heard = self._pinged = 0.0

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> Connack:
        """Connect and wait for the CONNACK; Unavailable says why not."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"{host}:{port}: {error.verify_message}", "--cafile names who signed it") from error
        except OSError as error:
            raise Unavailable(
                f"can't connect to {host}:{port}: {error}", hint="is the broker running there?"
            ) from error
        self._send(encode(self.connect, self.version))
        await self._until(lambda: self.connack is not None)
        assert self.connack is not None
        if self.connack.reason.is_error:
            raise Refused("connection refused", self.connack.reason, self.connack.properties)
        if self.version == 5:
            self._window = min(WINDOW, self.connack.properties.receive_maximum or WINDOW)
        keep_alive = self.connack.properties.server_keep_alive or self.connect.keep_alive
        if keep_alive:
            self._ping = self._loop.call_later(keep_alive / 2, self._keep_alive, keep_alive)
        if self._before is not None:
            before, self._before = self._before, None
            await self._take_over(before, self.connack.session_present)
        return self.connack

    def successor(self) -> "Client":
        """For the next connection: it sends again what has no answer yet, and knows what it has received."""
        after = Client(self.connect, self.handler)
        after._before = self._before or self
        after.refused = self.refused
        return after

    async def _take_over(self, before: "Client", session_present: bool) -> None:
        if session_present:
            self._received = before._received
        self._last_id = before._last_id
        for packet_id, awaited in before._inflight.items():
            await self._until(lambda: not self._paused and len(self._inflight) < self._window)
            self._inflight[packet_id] = awaited
            if awaited == _PUBCOMP:
                self._send(encode(Pubrel(packet_id), self.version))
            else:  # [MQTT-4.4.0-1] with its id; a session that is gone does not know it, so it is no duplicate there
                packet = self._sent[packet_id] = replace(before._sent[packet_id], dup=session_present)
                self._send(encode(packet, self.version))

    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: Properties = NO_PROPERTIES
    ) -> int:
        """Send a message once there is room for it; its packet id."""
        await self._until(lambda: not self._paused and len(self._inflight) < self._window)
        packet_id = self._next_id() if qos else 0
        packet = Publish(topic, payload, qos, retain, False, packet_id, properties)
        if qos:
            self._inflight[packet_id] = _PUBACK if qos == 1 else _PUBREC
            self._sent[packet_id] = packet
        self._send(encode(packet, self.version))
        return packet_id

    async def subscribe(
        self, subscriptions: tuple[Subscription, ...], properties: Properties = NO_PROPERTIES
    ) -> tuple[Reason, ...]:
        """Subscribe; the reason for each filter."""
        packet_id = self._next_id()
        self._send(encode(Subscribe(packet_id, subscriptions, properties), self.version))
        return await self._answer(packet_id)

    async def unsubscribe(self, filters: tuple[str, ...]) -> tuple[Reason, ...]:
        """Unsubscribe; the reason for each filter, none in 3.1.1."""
        packet_id = self._next_id()
        self._send(encode(Unsubscribe(packet_id, filters), self.version))
        return await self._answer(packet_id)

    async def settle(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        await self._until(lambda: not self._inflight)

    async def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait for a condition that the handler makes true, or for the connection to fail."""
        await self._until(done)

    def pause(self) -> None:
        """Read no more for now; what the server sends waits there."""
        if self._transport is not None and not self._lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._lost:
            self._transport.resume_reading()

    def wake(self) -> None:
        """Something may have come true that `wait_until` waits for."""
        self._wake()

    async def close(self) -> None:
        """Say goodbye, if there is still somebody to say it to, and wait for the last byte to leave."""
        if self._ping is not None:
            self._ping.cancel()
        if self._transport is None or self._lost:
            return
        if self._error is None and self.connack is not None:
            self._send(encode(Disconnect(), self.version))
        self._flush()
        self._error = None
        self._transport.close()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._until(lambda: self._lost)
        except TimeoutError:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for event in self._decoder.feed(data):
                self._take(event)
        except (OSError, PeerError) as error:  # of the handler's output, or what the server sent
            self._fail(error)
        if len(self._table) > MAX_TOPICS:
            self._table.reset()
            self._names.clear()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._error is None:
            self._error = Unavailable(f"the server closed the connection{f': {error}' if error else ''}")
        self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    # What arrives.

    def _take(self, event: object) -> None:
        if isinstance(event, PublishRun):
            self._messages(event)
        elif isinstance(event, AckRun):
            self._acks(event)
        elif isinstance(event, Connack):
            self.connack = event
        elif isinstance(event, Suback | Unsuback):
            self._answers[event.packet_id] = event.reasons
            self.answered = event.properties
        elif isinstance(event, Disconnect):
            self._fail(Refused("disconnected by the server", event.reason, event.properties))
        elif isinstance(event, PeerError):
            raise event

    def _messages(self, run: PublishRun) -> None:
        rows: list[int] = []  # of those that are new
        messages: list[Message] = []
        for row, message in enumerate(unpack(run, self._table, self._names), run.start):
            if message.qos == 2 and message.packet_id in self._received:
                continue  # [MQTT-4.3.3-10] its first copy was taken
            rows.append(row)
            messages.append(message)
        taken = len(messages) if self.handler is None else self.handler(messages)
        self._received.update(message.packet_id for message in messages[:taken] if message.qos == 2)
        stop = run.stop if taken == len(messages) else rows[taken]
        if stop > run.start:
            self._send(write_answers(PublishRun(run.columns, run.start, stop, run.any_flags)))

    def _acks(self, run: AckRun) -> None:
        ids = memoryview(run.ids).cast("H")
        if run.packet_type == _PUBREL:
            self._received.difference_update(ids)
            self._send(write_acks(_PUBCOMP << 4, run.ids, 0, len(ids)))
            return
        for packet_id, code in zip(ids, run.reasons, strict=True):
            if self._inflight.get(packet_id) != run.packet_type:
                continue  # not one that we wait for
            self._sent.pop(packet_id, None)
            if code >= 0x80:
                self.refused.append((packet_id, Reason(code)))
            elif run.packet_type == _PUBREC:
                self._inflight[packet_id] = _PUBCOMP
                self._send(encode(Pubrel(packet_id), self.version))
                continue
            del self._inflight[packet_id]

    # What leaves.

    def _send(self, packet: bytes) -> None:
        """Gather; the event loop's next turn writes it all at once."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packet)
        self._out_bytes += len(packet)
        if self._out_bytes > GATHER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._lost:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    def _keep_alive(self, seconds: float) -> None:
        if self._heard < self._pinged:
            self._fail(Unavailable(f"the server has not answered a ping for {seconds / 2:g} s"))
            return
        self._pinged = self._loop.time()
        self._send(encode(Pingreq(), self.version))
        self._ping = self._loop.call_later(seconds / 2, self._keep_alive, seconds)

    def _next_id(self) -> int:
        while True:  # ends: the window is far below 65,535
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._inflight:
                return self._last_id

    # Waiting.

    async def _answer(self, packet_id: int) -> tuple[Reason, ...]:
        await self._until(lambda: packet_id in self._answers)
        return self._answers.pop(packet_id)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._error is not None:
                raise self._error
            waker = self._loop.create_future()
            self._wakers.append(waker)
            await waker

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            if not waker.done():
                waker.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._wake()
