"""The listeners: from their descriptions to listening sockets, over TCP, TLS, WebSocket or both.

Plain TCP is for the poller where there is one, all else for the event loop.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from everlog.base import EverlogError, Unavailable, UsageError
from everlog.broker.connection import Connection, Connections
from everlog.broker.transport.client_certificates import ClientCertificates
from everlog.broker.transport.handshake import Handshake
from everlog.broker.transport.ports import Ports, open_ports
from everlog.broker.transport.tls import LiveTls, TlsFiles
from everlog.broker.transport.websocket import WebSocket

Kind = Literal["tcp", "tls", "ws", "wss"]
_PROBES = 4  # of TCP, within the time after which it begins with them; then the peer is gone
_MOST_S = 32_767  # that the system takes
_SCHEMES: dict[Kind, str] = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on; port 0 takes any that is free. The files are for `tls` and `wss`."""

    host: str
    port: int
    kind: Kind = "tcp"
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    require_client_cert: bool = False
    path: str = "/mqtt"  # of `ws` and `wss`
    origins: tuple[str, ...] = ()  # of other web pages that may connect by `ws` and `wss`; `*` is all
    backlog: int = 4096
    crl_file: str | None = None
    min_version: str = "1.2"  # of TLS
    allow_anonymous: bool | None = None  # None: as everywhere
    is_proxied: bool = False  # peers are proxies, and say by the PROXY protocol for whom
    mount_point: str = ""  # what stands before the topics of its clients, who do not see it
    tcp_keepalive_s: float = 300.0  # of silence, until TCP asks whether a peer is there; 0 for never


@dataclass(frozen=True, slots=True)
class Address:
    """The address that a listener can be reached at."""

    kind: Kind
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEMES[self.kind]}://{host}:{self.port}{self.path}"


class Listening:
    """The open listeners of a broker."""

    def __init__(self) -> None:
        self._servers: list[tuple[Listener, asyncio.Server | Ports]] = []
        self._tls: list[LiveTls] = []
        self.closed = False

    def addresses(self) -> list[Address]:
        """Return every address that clients can connect to."""
        found = []
        for listener, server in self._servers:
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                found.append(Address(listener.kind, host, port, listener.path if "ws" in listener.kind else ""))
        return found

    def prepare_certificates(self) -> Callable[[], None]:
        """Read all certificate files without a change; return a call that puts them in force and can't fail."""
        contexts = [tls.read() for tls in self._tls]

        def put_in_force() -> None:
            for tls, context in zip(self._tls, contexts, strict=True):
                tls.context = context

        return put_in_force

    def close(self) -> None:
        """Take no more connections; those that are open stay."""
        self.closed = True
        for _, server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """Wait until the sockets are closed, after `close`."""
        for _, server in self._servers:
            await server.wait_closed()

    async def _open(self, connections: Connections, listener: Listener) -> None:
        tls = None
        if listener.kind in ("tls", "wss"):
            tls = LiveTls(_files(listener))
            self._tls.append(tls)
        make = _factory(connections, listener, tls)
        poller = connections.poller() if listener.kind == "tcp" and not listener.is_proxied else None
        server: asyncio.Server | Ports
        try:
            if poller is not None:
                server = await open_ports(poller, listener, make)
            else:
                server = await asyncio.get_running_loop().create_server(
                    make, listener.host, listener.port, backlog=listener.backlog, reuse_address=True
                )
        except OSError as error:
            raise cannot_listen(listener.host, listener.port, error) from error
        self._servers.append((listener, server))
        if listener.tcp_keepalive_s:
            for one in server.sockets:
                _keep_alive(one.fileno(), listener.tcp_keepalive_s)


async def listen(connections: Connections, listeners: Sequence[Listener]) -> Listening:
    """Open all listeners or none; the error says which one failed and what to do."""
    listening = Listening()
    try:
        for listener in listeners:
            await listening._open(connections, listener)
    except BaseException:
        listening.close()
        raise
    return listening


def cannot_listen(host: str, port: int, error: OSError, setting: str = "--port") -> EverlogError:
    """Return the error for the operator, made from that of the operating system."""
    if _number(error) == errno.EADDRINUSE:
        return Unavailable(
            f"port {port} on {host} is in use by another program",
            hint=f"stop it (find it: ss -ltnp 'sport = :{port}') or choose another port with {setting}",
        )
    if _number(error) == errno.EACCES:
        return UsageError(f"port {port} on {host} is not allowed for this user", hint="choose a port above 1023")
    if _number(error) == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return UsageError(
            f"{host} is not an address of this machine", hint="use 127.0.0.1, or 0.0.0.0 or :: for all interfaces"
        )
    return UsageError(f"can't listen on {host}, port {port}: {error}", hint="check host and port")


def _number(error: OSError) -> int | None:
    """Return the error number; asyncio wraps some errors and keeps only the text of it."""
    known = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
    if error.errno in known:
        return error.errno
    return next((number for number in known if os.strerror(number).lower() in str(error).lower()), error.errno)


def _files(listener: Listener) -> TlsFiles:
    if listener.cert_file is None or listener.key_file is None:
        raise UsageError(
            f"the {listener.kind} listener on port {listener.port} needs a certificate and its key",
            hint="set listener.cert_file and listener.key_file",
        )
    return TlsFiles(
        listener.cert_file,
        listener.key_file,
        listener.client_ca_file,
        listener.require_client_cert,
        ("mqtt",) if listener.kind == "tls" else ("http/1.1",),
        listener.crl_file,
        listener.min_version,
    )


def _keep_alive(listening: int, idle_s: float) -> None:
    """Have TCP notice peers that are gone without a word: accepted sockets inherit this from the listening one."""
    own = socket.socket(fileno=os.dup(listening))
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the system's own times count
            for option, value in (
                (socket.TCP_KEEPIDLE, idle_s),
                (socket.TCP_KEEPINTVL, idle_s / _PROBES),
                (socket.TCP_KEEPCNT, _PROBES),
            ):
                own.setsockopt(socket.IPPROTO_TCP, option, max(1, min(round(value), _MOST_S)))
    finally:
        own.close()


def _factory(connections: Connections, listener: Listener, tls: LiveTls | None) -> Callable[[], asyncio.BaseProtocol]:
    certificates = None if tls is None or listener.client_ca_file is None else ClientCertificates(tls)

    connection = partial(connections.new, certificates, listener.allow_anonymous, listener.mount_point)
    make: Callable[[], Connection | WebSocket] = connection
    if listener.kind in ("ws", "wss"):
        make = partial(WebSocket, connection, listener.path, listener.origins)

    if tls is None and not listener.is_proxied:
        return make
    return lambda: Handshake(connections, tls, make, is_proxied=listener.is_proxied)
