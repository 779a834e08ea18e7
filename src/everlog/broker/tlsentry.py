"""A TLS peer until its handshake is done: it counts as connected, and its time runs, from the first byte on.

asyncio tells a protocol of a TLS peer only when the handshake is over, so peers that never finish one would be counted
by nobody. Here the socket is accepted first, against the same limits as any other, and switched to TLS then.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from everlog.broker.connection import Connection
from everlog.broker.outgoing import peer_of
from everlog.broker.tls import LiveTls
from everlog.broker.websocket import WebSocket

if TYPE_CHECKING:
    from everlog.broker.broker import Broker

_GRACE_S = 2.0  # the gate looks once a second who has taken too long; this is for when it does not


class TlsEntry(asyncio.Protocol):
    """The protocol of the socket, then of the TLS transport, until the one that it is for takes over."""

    __slots__ = ("_broker", "_cut", "_early", "_ended", "_make", "_raw", "_task", "_tls", "peer")

    def __init__(self, broker: "Broker", tls: LiveTls, make: Callable[[], Connection | WebSocket]) -> None:
        self._broker = broker
        self._tls = tls
        self._make = make
        self._raw: asyncio.Transport | None = None
        self._early: list[bytes] = []  # what came between the handshake and the handing over: one read
        self._ended = False
        self._cut = False  # by us, which is counted elsewhere
        self._task: asyncio.Task[None] | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected: it is counted before anything is worked out for it."""
        self._raw = cast(asyncio.Transport, transport)
        self._raw.pause_reading()  # what it sends is for TLS
        self.peer = peer_of(transport)
        if self._broker.gate.admit(self) is not None:
            self._ended = True
            self._raw.abort()  # without a handshake there is no way to say why
            return
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(self._raw))

    def data_received(self, data: bytes) -> None:
        """What the peer sends right behind its handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone."""
        self._ended = True
        self._broker.gate.pending.pop(self, None)

    def close(self, reason: int, why: str) -> None:
        """It took too long, or the broker stops."""
        self._cut = self._ended = True
        if self._raw is not None:
            self._raw.abort()

    async def _shake_hands(self, raw: asyncio.Transport) -> None:
        broker = self._broker
        loop = asyncio.get_running_loop()
        timeout_s = broker.limits.connect_timeout_s + _GRACE_S
        try:
            transport = await loop.start_tls(
                raw, self, self._tls.context, server_side=True, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError):
            if not self._cut:
                broker.metrics.tls_failures += 1
            raw.abort()
            transport = None
        if transport is None or self._ended:
            broker.gate.pending.pop(self, None)
            return
        protocol = self._make()
        broker.gate.pass_on(self, protocol.connection if isinstance(protocol, WebSocket) else protocol)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._early:
            protocol.receive(data)
