"""How the load generator talks to a bus: the way in, and requests as the bytes that the bus has for them."""

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from everlog.base import Unavailable
from everlog.bus import to_nats
from everlog.mqtt import Connect, Properties, Publish, Subscribe, Subscription, encode

_WAIT_S = 20.0


class Request(NamedTuple):
    """What is asked, whatever the bus: `id_at` and `text_at` say where in the payload ids belong; 0 for nowhere."""

    subject: str
    payload: bytes
    id_at: int = 0
    text_at: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A connection that was let in."""

    socket: socket.socket
    inbox: str


class Wire:
    """One bus at an address; `is_mqtt` says which of the two protocols it speaks."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.is_mqtt = parts.scheme == "mqtt"
        self._place = (parts.hostname or "127.0.0.1", parts.port or 0)

    def connect(self, subjects: Sequence[str] = ()) -> Ready:
        """Return a connection that is subscribed to its own inbox and to these subjects."""
        made = socket.create_connection(self._place, _WAIT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        name = secrets.token_hex(8)
        try:
            inbox = self._enter_mqtt(made, name, subjects) if self.is_mqtt else self._enter_nats(made, name, subjects)
        except BaseException:
            made.close()
            raise
        made.setblocking(False)
        return Ready(made, inbox)

    def _enter_nats(self, made: socket.socket, name: str, subjects: Sequence[str]) -> str:
        inbox = f"_INBOX/{name}"
        options = b'{"verbose":false,"pedantic":false,"protocol":1,"headers":true}'
        filters = [f"{inbox}/r", f"{inbox}/d", *subjects]
        lines = [b"SUB %b %d\r\n" % (to_nats(one), number + 1) for number, one in enumerate(filters)]
        made.sendall(b"CONNECT " + options + b"\r\n" + b"".join(lines) + b"PING\r\n")
        heard = b""
        while b"PONG\r\n" not in heard:
            heard += _more(made)
        return inbox

    def _enter_mqtt(self, made: socket.socket, name: str, subjects: Sequence[str]) -> str:
        client_id = f"bench-{name}"
        inbox = f"response/{client_id}"
        filters = tuple(Subscription(one, qos=0) for one in (f"{inbox}/#", *subjects))
        made.sendall(encode(Connect(version=5, client_id=client_id), 5) + encode(Subscribe(1, filters), 5))
        heard = b""
        while True:  # CONNACK and SUBACK, both shorter than 128 bytes
            heard += _more(made)
            first = 2 + heard[1] if len(heard) > 1 else 1 << 30
            if len(heard) >= first + 2 + (heard[first + 1] if len(heard) > first + 1 else 0) and len(heard) > first:
                return inbox

    def render(self, request: Request, reply: str = "") -> tuple[bytes, int, int]:
        """Return the bytes of a request, and where its ids belong in them; 0 for nowhere."""
        if self.is_mqtt:
            properties = Properties(response_topic=reply or None)
            data = encode(Publish(request.subject, request.payload, properties=properties), 5)
            at = len(data) - len(request.payload)
        else:
            to = to_nats(request.subject) + (b" " + to_nats(reply) if reply else b"")
            head = b"PUB %b %d\r\n" % (to, len(request.payload))
            data, at = head + request.payload + b"\r\n", len(head)
        return data, request.id_at and at + request.id_at, request.text_at and at + request.text_at


def _more(made: socket.socket) -> bytes:
    data = made.recv(1 << 16)
    if not data or b"-ERR" in data:
        raise Unavailable(f"a server under load turns us away: {data[:200]!r}")
    return data
