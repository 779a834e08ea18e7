"""NATS core as a bus: one TCP connection, and of the protocol what a client of core needs.

Replies go to `_INBOX.<random>` only. What is published in one turn of the loop leaves in one write.
"""

import asyncio
import secrets
import ssl
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from everlog.base import EverlogError, PeerError, Unavailable, UsageError, system_reason
from everlog.bus.delivery import Delivery
from everlog.bus.nats_decoder import NatsDecoder
from everlog.bus.nats_output import NatsOutput
from everlog.bus.nats_subjects import from_nats, to_nats
from everlog.bus.port import NotAllowed
from everlog.bus.reconnect import CONGESTED_BYTES, ReconnectingBus

DEFAULT_PORT = 4222
PING_S = 30.0  # a server that has not answered a ping by the next is gone
_GATHER_BYTES = 256 << 10  # of output that are written without waiting for the next turn


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """Where a server listens, and how to log in there."""

    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None


class _Info(msgspec.Struct):
    """What the server says of itself, as far as it matters here."""

    max_payload: int = 1 << 20
    tls_required: bool = False


class NatsBus(ReconnectingBus, asyncio.Protocol):
    """A client of NATS; see `Bus`."""

    def __init__(self, addresses: list[NatsAddress]) -> None:
        super().__init__(len(addresses))
        self._servers = addresses
        self.inbox = f"_INBOX/{secrets.token_hex(8)}"
        self.max_payload = 1 << 20
        self._decoder = NatsDecoder()
        self._transport: asyncio.Transport | None = None
        self._rendered = NatsOutput()
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flusher: asyncio.Handle | None = None
        self._pinger: asyncio.TimerHandle | None = None
        self._pongs: list[asyncio.Future[None]] = []
        self._info: asyncio.Future[_Info] | None = None
        self._patterns: dict[int, str] = {}  # by the numbers of the subscriptions
        self._numbers: dict[str, int] = {}
        self._last = 0
        self._is_silent = False
        self._refused: set[str] = set()  # patterns that the server's rules forbid

    def publish(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> bool:
        """Send a message; return False if there is no connection. NATS has no correlation data."""
        if not self.is_open:
            return False
        size = len(payload)
        if size > self.max_payload:
            raise UsageError(f"{size} bytes are too large for a message", hint=f"at most {self.max_payload}")
        to = self._rendered.form(subject)
        if reply:
            to = b"%b %b" % (to, self._rendered.form(reply))
        self._send(b"PUB %b %d\r\n%b\r\n" % (to, size, payload))
        return True

    def publish_all(self, messages: list[Delivery]) -> bool:
        """Send messages that want no reply; return False if there is no connection."""
        if self.is_open:
            self._send(self._rendered.render(messages))
        return self.is_open

    # What the reconnecting bus asks for

    async def _connect(self, address: int) -> None:
        server, loop = self._servers[address], asyncio.get_running_loop()
        self._decoder = NatsDecoder()
        self._info = loop.create_future()
        self._pongs.clear()
        self._patterns.clear()
        self._numbers.clear()
        self._refused.clear()
        self._is_silent = False
        try:
            await loop.create_connection(lambda: self, server.host, server.port)
            info = await self._info
            if server.tls is not None or info.tls_required:
                assert self._transport is not None
                secure = server.tls or ssl.create_default_context()
                transport = await loop.start_tls(self._transport, self, secure, server_hostname=server.host)
                self._transport = cast(asyncio.Transport, transport)
        except OSError as error:
            raise Unavailable(
                f"can't connect to nats://{server.host}:{server.port}: {system_reason(error)}",
                hint="is a NATS server running there?",
            ) from error
        self.max_payload = info.max_payload
        options = {"verbose": False, "pedantic": False, "lang": "python", "name": "everlog", "protocol": 1}
        options |= {"user": server.user, "pass": server.password} if server.user is not None else {}
        self._send(b"CONNECT " + msgspec.json.encode(options) + b"\r\n")
        await self._pong()
        self._pinger = loop.call_later(PING_S, self._ping)

    async def _confirm(self, pattern: str) -> None:
        self._last += 1
        self._patterns[self._last] = pattern
        self._numbers[pattern] = self._last
        self._send(b"SUB %b %d\r\n" % (to_nats(pattern), self._last))
        await self._pong()
        if pattern in self._refused:
            raise NotAllowed(f"the NATS server does not allow subscriptions to {pattern}")

    def _withdraw(self, pattern: str) -> None:
        number = self._numbers.pop(pattern, None)
        if number is not None:
            self._patterns.pop(number, None)
            self._send(b"UNSUB %d\r\n" % number)

    async def _disconnect(self) -> None:
        transport = self._transport
        if self._pinger is not None:
            self._pinger.cancel()
        if transport is not None:
            self._flush()
            self._transport = None
            transport.close()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a server."""
        self._transport = wire = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        wire.set_write_buffer_limits(CONGESTED_BYTES)

    def data_received(self, data: bytes) -> None:
        """Take bytes: deliveries to their handlers, the rest by what it is."""
        decoder = self._decoder
        self._is_silent = False
        try:
            decoder.feed(data)
            if decoder.lines:
                lines, decoder.lines = decoder.lines, []
                for line in lines:
                    self._take(line)
        except EverlogError as error:
            self._fail(error)
            return
        if decoder.batches:
            batches, decoder.batches = decoder.batches, {}
            for number, batch in batches.items():
                for handler in self.routes.of_pattern(self._patterns.get(number, "")):
                    handler(batch)

    def connection_lost(self, error: Exception | None) -> None:
        """End, in whichever way the connection went."""
        self._fail(Unavailable(f"the NATS server closed the connection{f': {error}' if error else ''}"))

    def pause_writing(self) -> None:
        """Note that much waits to leave."""
        self._set_congested(True)

    def resume_writing(self) -> None:
        """Note that it has left."""
        self._set_congested(False)

    # Lines of the protocol

    def _take(self, line: bytes) -> None:
        if line == b"PING":
            self._send(b"PONG\r\n")
        elif line == b"PONG":
            while self._pongs:
                waiting = self._pongs.pop(0)
                if not waiting.done():
                    waiting.set_result(None)
                    break
        elif line.startswith(b"INFO "):
            info = msgspec.json.decode(line[5:], type=_Info)
            self.max_payload = info.max_payload
            if self._info is not None and not self._info.done():
                self._info.set_result(info)
        elif line.startswith(b"-ERR"):
            self._complained(line[4:].strip().strip(b"'").decode(errors="replace"))
        elif line and line != b"+OK":
            raise PeerError(0x82, f"the NATS server sends {line[:40]!r}")

    def _complained(self, text: str) -> None:
        _, for_subscription, subject = text.partition("Permissions Violation for Subscription to ")
        if for_subscription:
            name = subject.split('"')[1] if '"' in subject else subject
            self._refused.add(from_nats(name.removesuffix(">").encode()) + ("#" if name.endswith(">") else ""))
        elif "Authorization" in text or "Authentication" in text:
            self._fail(NotAllowed(f"the NATS server says: {text}", hint="check user and password"))
        elif "Permissions Violation" not in text:  # a refused request stays unanswered, as a lost one does
            self._fail(Unavailable(f"the NATS server says: {text}"))

    async def _pong(self) -> None:
        """Wait until the server has seen all that was sent so far."""
        waiting = asyncio.get_running_loop().create_future()
        self._pongs.append(waiting)
        self._send(b"PING\r\n")
        await waiting

    def _ping(self) -> None:
        if self._is_silent:
            self._fail(Unavailable(f"the NATS server has not answered a ping for {PING_S:g} s"))
            return
        self._is_silent = True
        self._pongs.append(asyncio.get_running_loop().create_future())
        self._send(b"PING\r\n")
        self._pinger = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def _fail(self, error: EverlogError) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._pinger is not None:
            self._pinger.cancel()
        self._output.clear()
        self._output_bytes = 0
        pongs, self._pongs = self._pongs, []
        waiting: list[asyncio.Future[Any]] = [*pongs, *([self._info] if self._info is not None else [])]
        for one in waiting:
            if not one.done():
                one.set_exception(error)
                one.exception()  # whoever does not wait any more need not fetch it
        if transport is not None:
            self.connection_is_lost(error)

    # Output

    def _send(self, data: bytes) -> None:
        """Write in this turn's one write; right away when it is much."""
        self._output.append(data)
        self._output_bytes += len(data)
        if self._output_bytes > _GATHER_BYTES:
            self._flush()
        elif self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        output, self._output = self._output, []
        self._output_bytes = 0
        if self._transport is not None and output:
            self._transport.write(b"".join(output))
