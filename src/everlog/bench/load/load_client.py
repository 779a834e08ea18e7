"""One MQTT 3.1.1 client of a run: connects, subscribes, pings and leaves. What is per message is its `Link`'s."""

import socket
from enum import Enum
from typing import Any

from everlog.base import MessageColumns, PeerError, TopicTable, Unavailable
from everlog.bench.load.checker import Checker
from everlog.bench.load.figures import Tally
from everlog.bench.load.link import Link
from everlog.bench.load.posix import now_ns
from everlog.bench.load.sender import Sender
from everlog.mqtt import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Pingreq,
    Pingresp,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    encode,
)

KEEP_ALIVE_S = 3600  # longer than any run, so that no pings are mixed into what is measured
SEND_BUFFER_BYTES = 128 << 10
CONNECT_TIMEOUT = b"\x05" + bytes(15)  # struct timeval: 5 s, then the broker's backlog is full
READ_BYTES = 1 << 20

_PING = encode(Pingreq(), 4)
_GOODBYE = encode(Disconnect(), 4)


class State(Enum):
    """A stage of a client's life."""

    IDLE, CONNECTING, SUBSCRIBING, UP, LEAVING = range(5)


class Shared:
    """The read buffer, columns, names and tally that all clients of a run share."""

    def __init__(self, port: int, username: str | None = None, password: str | None = None) -> None:
        self.address = ("127.0.0.1", port)
        self.username = username
        self.password = password
        self.tally = Tally()
        self.table = TopicTable()
        self.columns = MessageColumns(4096)
        self.buffer = bytearray(READ_BYTES)


class Client:
    """One client; `filters` are subscribed to when it connects, unless its session is said to have them."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        *,
        clean: bool = True,
        filters: tuple[str, ...] = (),
        qos: int = 0,
        sender: Sender | None = None,
        checker: Checker | None = None,
    ) -> None:
        self.shared = shared
        self.name = name
        self.clean = clean
        self.filters = filters
        self.qos = qos
        self.sender = sender
        self.checker = checker
        self.state = State.IDLE
        self.link: Any = None
        self.waiting = False  # registered for writing
        self.session_present = False
        self.pings = 0
        self.connect_ns = 0
        self.up_ns = 0
        self.trouble = ""
        self.slow = False
        self._socket: socket.socket | None = None

    def open(self) -> Link:
        """Connect and send CONNECT. On loopback the handshake is done when `connect` returns."""
        self._socket = wire = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        shared = self.shared
        try:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, CONNECT_TIMEOUT)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connect_ns = now_ns()
            wire.connect(shared.address)
            wire.setblocking(False)
        except OSError as error:
            wire.close()
            raise Unavailable(
                f"can't connect to port {shared.address[1]}: {error}", hint="is a broker there?"
            ) from error
        decoder = Decoder(shared.columns, shared.table, version=4, from_client=False)
        self.link = link = Link(wire.fileno(), decoder, shared.buffer, shared.tally, self.sender, self.checker)
        link.slow = self.slow
        password = None if shared.password is None else shared.password.encode()
        packet = Connect(4, self.name, self.clean, KEEP_ALIVE_S, user_name=shared.username, password=password)
        link.put(encode(packet, 4))
        self.state = State.CONNECTING
        return link

    def hear(self) -> None:
        """Take the control packets that have come."""
        packets, self.link.control = self.link.control, []
        for packet in packets:
            if isinstance(packet, Pingresp):
                self.pings -= 1
            elif isinstance(packet, Connack) and self.state is State.CONNECTING:
                self._connected(packet)
            elif isinstance(packet, Suback) and self.state is State.SUBSCRIBING:
                self._subscribed(packet)
            elif isinstance(packet, PeerError):
                self.trouble = f"the broker sent {packet}"
            else:
                self.trouble = f"unexpected {type(packet).__name__}"

    def _connected(self, packet: Connack) -> None:
        if packet.reason.is_error:
            self.trouble = f"CONNECT was refused: {packet.reason.name.lower()}"
            return
        self.session_present = packet.session_present
        if self.filters:
            self.subscribe(self.filters)
        else:
            self._up()

    def subscribe(self, filters: tuple[str, ...]) -> None:
        """Send SUBSCRIBE; the client is up again after the SUBACK."""
        self.state = State.SUBSCRIBING
        self.link.put(encode(Subscribe(1, tuple(Subscription(text, self.qos) for text in filters)), 4))

    def _subscribed(self, packet: Suback) -> None:
        if any(Reason(code).is_error for code in packet.reasons):
            self.trouble = "a SUBSCRIBE was refused"
        else:
            self._up()

    def _up(self) -> None:
        self.state = State.UP
        self.up_ns = now_ns()
        self.link.open = True

    def ping(self) -> None:
        """Ask for a PINGRESP."""
        self.pings += 1
        self.link.put(_PING)

    def leave(self) -> None:
        """Send DISCONNECT; the broker closes the connection."""
        self.state = State.LEAVING
        self.link.open = False
        self.link.put(_GOODBYE)

    def close(self) -> None:
        """Drop the connection without DISCONNECT."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.link = None
        self.pings = 0
        self.waiting = False
        self.state = State.IDLE
