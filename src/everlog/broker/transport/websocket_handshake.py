"""The opening handshake of a WebSocket (RFC 6455, section 4.2), without I/O: a request's bytes in, the answer out."""

import base64
import binascii
import hashlib
from dataclasses import dataclass

MAX_REQUEST_BYTES = 8192  # a longer request is refused with 431
SUBPROTOCOLS = ("mqtt", "mqttv3.1")
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_END = b"\r\n\r\n"
_STATUS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request; if `accepted`, frames follow, and `rest` is what the client has sent of them."""

    data: bytes
    accepted: bool
    rest: bytes = b""
    why: str = ""


class _Refused(Exception):
    """A request that can't be upgraded."""

    def __init__(self, status: int, text: str, *headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


def answer(received: bytes, path: str, origins: tuple[str, ...] = ()) -> Answer | None:
    """Return the answer to a request for `path`, by a page of its own host or of `origins`; None while incomplete."""
    try:
        if received and not received[:1].isalpha():
            raise _Refused(400, f"not an HTTP request: this port speaks MQTT over WebSocket, at {path}")
        end = received.find(_END, 0, MAX_REQUEST_BYTES)
        if end < 0:
            if len(received) >= MAX_REQUEST_BYTES:
                raise _Refused(431, f"the request is longer than {MAX_REQUEST_BYTES} bytes")
            return None
        accepted = _upgrade(received[:end], path, origins)
    except _Refused as refused:
        return Answer(plain(refused.status, refused.text, *refused.headers), False, why=refused.text)
    return Answer(accepted, True, received[end + len(_END) :])


def plain(status: int, text: str, *headers: str) -> bytes:
    """Return an HTTP answer in plain text, after which the connection closes."""
    body = f"{text}\n".encode()
    lines = (
        f"HTTP/1.1 {status} {_STATUS[status]}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode("latin-1", "replace") + _END + body


def _upgrade(head: bytes, path: str, origins: tuple[str, ...]) -> bytes:
    method, target, fields = _parse(head)
    if target.partition("?")[0] not in (path, f"{path}/", "/"):  # what clients use that are told none, or not quite
        raise _Refused(404, f"nothing here: MQTT over WebSocket is at {path}")
    if method != "GET":
        raise _Refused(405, "a WebSocket handshake is a GET request", "Allow: GET")
    if "websocket" not in _tokens(fields, "upgrade") or "upgrade" not in _tokens(fields, "connection"):
        raise _Refused(
            426,
            f"this is an MQTT broker: connect an MQTT client to it by WebSocket at {path}, subprotocol mqtt",
            "Upgrade: websocket",
        )
    if fields.get("sec-websocket-version") != "13":
        raise _Refused(
            426, "only version 13 of WebSocket is supported", "Sec-WebSocket-Version: 13", "Upgrade: websocket"
        )
    key = fields.get("sec-websocket-key", "")
    if not _is_key(key):
        raise _Refused(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    origin = fields.get("origin")
    if origin is not None and not _may_connect(origin.lower(), fields.get("host", "").lower(), origins):
        raise _Refused(403, "pages of this origin may not connect: see listener.websocket_origins")
    offered = [one.strip() for one in fields.get("sec-websocket-protocol", "").split(",")]
    chosen = next((one for one in SUBPROTOCOLS if one in offered), None)
    if chosen is None:  # [MQTT-6.0.0-3]
        raise _Refused(400, "offer the subprotocol mqtt: Sec-WebSocket-Protocol: mqtt")
    digest = hashlib.sha1((key + _MAGIC).encode(), usedforsecurity=False).digest()
    accept = base64.b64encode(digest).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {chosen}\r\n\r\n"  # [MQTT-6.0.0-4]
    ).encode()


def _may_connect(origin: str, host: str, origins: tuple[str, ...]) -> bool:
    """Return whether pages of an origin may connect: of the host that they connect to, or of one that is named."""
    same = origin.partition("://")[2] == host != ""
    return same or any(one.lower() in (origin, "*") for one in origins)


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return method, target and header fields; repeated fields are joined with a comma."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise _Refused(400, "this is not an HTTP/1.1 request")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Refused(400, "a header line is malformed")
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return words[0], words[1], fields


def _tokens(fields: dict[str, str], name: str) -> list[str]:
    return [token.strip().lower() for token in fields.get(name, "").split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
