"""A peer until its handshake is done, of TLS or of a proxy: it counts as connected, and its timeout runs, at once.

asyncio tells a protocol of a TLS peer only after the handshake, so peers that never finish one would not be counted.
Here the socket is first accepted, against the same limits as any other, then a proxy's header is read from it, and then
it is handed on, to TLS if that is asked for.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from logging import WARNING
from typing import cast

from everlog.base import PeerError
from everlog.broker.connection import Connection, Connections, file_number_of, peer_of
from everlog.broker.events import event
from everlog.broker.transport.proxy_header import read_proxy_header
from everlog.broker.transport.tls import LiveTls
from everlog.broker.transport.websocket import WebSocket

_log = logging.getLogger("everlog.broker")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "RECORD_LAYER_FAILURE")
_SHUTDOWN_S = 2.0  # for a peer to read the rest and end TLS too; then it is cut off
_GRACE_S = 2.0  # beyond the gate's own timeout, which is checked once a second


class Handshake(asyncio.Protocol):
    """The protocol of an accepted socket until its connection takes it over."""

    __slots__ = (
        "_connections",
        "_cut",
        "_inner",
        "_is_proxied",
        "_make",
        "_source",
        "_task",
        "_tls",
        "file_number",
        "peer",
    )

    def __init__(
        self,
        connections: Connections,
        tls: LiveTls | None,
        make: Callable[[], Connection | WebSocket],
        *,
        is_proxied: bool = False,
    ) -> None:
        self._connections = connections
        self._tls = tls
        self._is_proxied = is_proxied
        self._source: str | None = None  # from where a proxy's client connects
        self._make = make
        self._inner: Connection | None = None
        self._cut = False  # closed by us, which is counted elsewhere
        self._task: asyncio.Task[None] | None = None
        self.peer = ""
        self.file_number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count a peer that has connected, before any work is done for it."""
        self.peer, self.file_number = peer_of(transport), file_number_of(transport)
        raw = cast(asyncio.Transport, transport)
        if self._connections.gate.admit(self) is None:  # else it is not told why: that would take a handshake
            # Reading begins when this returns, and what was read could not be given to TLS; so the socket leaves now.
            own = socket.socket(fileno=os.dup(raw.get_extra_info("socket").fileno()))
            own.setblocking(False)
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(own))
        raw.abort()

    def close(self, reason: int, why: str) -> None:
        """End the handshake: it took too long, or the broker stops."""
        self._cut = True
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self, own: socket.socket) -> None:
        gate, metrics = self._connections.gate, self._connections.metrics
        loop, timeout_s = asyncio.get_running_loop(), self._connections.limits.connect_timeout_s + _GRACE_S
        try:
            if self._is_proxied:
                self._source = await asyncio.wait_for(read_proxy_header(own), timeout_s)
            if self._tls is None:
                await loop.connect_accepted_socket(self._enter, own)
            else:
                await loop.connect_accepted_socket(
                    self._enter,
                    own,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=timeout_s,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
        except PeerError as error:
            metrics.protocol_errors += 1
            event(_log, "refused", WARNING, client=None, peer=self.peer, user=None, reason=error)
            own.close()
        except OSError as error:  # TLS errors are OSErrors too
            metrics.tls_failures += not self._cut
            if isinstance(error, ssl.SSLError):
                plain = error.reason in _NOT_TLS
                why = "it does not speak TLS, and the port is one for TLS" if plain else error.reason or error
                event(_log, "tls_failed", WARNING, peer=self.peer, reason=why)
            own.close()
        except asyncio.CancelledError:
            own.close()
            if not self._cut:
                raise
        finally:
            gate.forget(self)
            if self._inner is not None:
                gate.not_coming(self._inner)

    def _enter(self) -> Connection | WebSocket:
        """Return the protocol that takes this one's place after the handshake."""
        protocol = self._make()
        self._inner = protocol.connection if isinstance(protocol, WebSocket) else protocol
        if self._source is not None:
            self._inner.came_from(self._source)
        self._connections.gate.replaces(self._inner, self)
        return protocol
