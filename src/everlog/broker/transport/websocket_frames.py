"""WebSocket frames (RFC 6455, section 5), the server's side, without I/O: bytes in, events out.

The payload of a data frame is unmasked and passed on as it arrives, so a long frame is never collected; only a header
or a control frame (at most 139 bytes) waits for its rest.
"""

from collections.abc import Callable
from dataclasses import dataclass

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED = 1000, 1001, 1002, 1003
_CONTROL_BYTES = 125  # section 5.5
_OWN_CODES = {
    1000,
    1001,
    1002,
    1003,
    1007,
    1008,
    1009,
    1010,
    1011,
    1012,
    1013,
    1014,
}  # section 7.4 and the IANA registry


def unmask_slowly(data: bytes | bytearray | memoryview, mask: bytes) -> bytes:
    """XOR the data with the repeated mask, as two long integers."""
    size = len(data)
    stretched = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(stretched, "little")).to_bytes(size, "little")


def _fastest_unmask() -> Callable[[bytes, bytes], bytes]:
    try:
        from websockets.speedups import apply_mask  # the `web` extra: 5 to 80 times as fast
    except ImportError:
        return unmask_slowly
    return apply_mask


unmask = _fastest_unmask()


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping from the peer."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The peer's end of the connection."""

    code: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A breach of the protocol by the peer; nothing after it is read."""

    code: int
    message: str


Event = bytes | Ping | Close | Violation


class FrameReader:
    """The parser of a client's frames; the payload of consecutive data frames comes out as one `bytes`.

    After `max_frames` it stops: `has_more` says that the rest of what was fed waits for the next call of `feed`.
    """

    __slots__ = ("_in_message", "_left", "_mask", "_max_frames", "_over", "_rest", "has_more")

    def __init__(self, max_frames: int = 1 << 62) -> None:
        self.has_more = False
        self._max_frames = max_frames
        self._rest = b""  # a header or control frame that is not complete, or what waits
        self._left = 0  # payload bytes of the current data frame still to come
        self._mask = b""
        self._in_message = False  # a fragmented message has not ended
        self._over = False

    def hold(self, data: bytes) -> None:
        """Keep bytes for the next call of `feed`."""
        self._rest += data

    def feed(self, data: bytes = b"") -> list[Event]:
        """Return the events that these bytes complete."""
        events: list[Event] = []
        payload: list[bytes] = []
        self.has_more = False
        frames = 0
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        if self._left:
            at = self._take(data, 0, payload)
        while at < size and not self._over:
            if frames == self._max_frames:
                self._rest, self.has_more = data[at:], True
                break
            frames += 1
            header = self._header(data, at)
            if header is None:
                self._rest = data[at:]
                break
            if isinstance(header, Violation):
                event: Event = header
            else:
                opcode, begin, self._left = header
                if opcode <= BINARY:
                    at = self._take(data, begin, payload)
                    continue
                at = begin + self._left
                self._left = 0
                found = self._control(opcode, unmask(data[begin:at], self._mask))
                if found is None:
                    continue
                event = found
            if payload:
                events.append(b"".join(payload))
                payload = []
            events.append(event)
            self._over = not isinstance(event, Ping)
        if payload:
            events.append(payload[0] if len(payload) == 1 else b"".join(payload))
        return events

    def _take(self, data: bytes, begin: int, payload: list[bytes]) -> int:
        """Take as much of the data frame's payload as has arrived; return where it ends."""
        end = min(begin + self._left, len(data))
        taken = end - begin
        if taken:
            payload.append(unmask(data[begin:end], self._mask))
            self._left -= taken
            turn = taken & 3
            if self._left and turn:
                self._mask = self._mask[turn:] + self._mask[:turn]
        return end

    def _header(self, data: bytes, at: int) -> tuple[int, int, int] | Violation | None:
        """Return opcode, start and length of the payload of the frame at `at`, or None if more bytes are needed."""
        size = len(data) - at
        if size < 2:
            return None
        first, length = data[at], data[at + 1]
        opcode, is_last = first & 0x0F, first & 0x80
        problem = self._problem(first, opcode, is_last, length)
        if problem is not None:
            return problem
        length &= 0x7F
        begin = at + 6
        if length > _CONTROL_BYTES:
            wide = 2 if length == 126 else 8
            begin += wide
            if len(data) < begin:
                return None
            length = int.from_bytes(data[at + 2 : at + 2 + wide], "big")
            if length >> 63:
                return Violation(PROTOCOL_ERROR, "a frame's length has its highest bit set")
        if len(data) < begin or (opcode >= CLOSE and len(data) < begin + length):
            return None
        self._mask = data[begin - 4 : begin]
        if opcode <= BINARY:
            self._in_message = not is_last
        return opcode, begin, length

    def _problem(self, first: int, opcode: int, is_last: int, length: int) -> Violation | None:
        if first & 0x70:
            return Violation(PROTOCOL_ERROR, "reserved bits are set without an extension")
        if not length & 0x80:
            return Violation(PROTOCOL_ERROR, "a client's frames must be masked")
        if opcode == TEXT:  # [MQTT-6.0.0-1]
            return Violation(UNSUPPORTED, "MQTT is sent in binary frames")
        if opcode in (CLOSE, PING, PONG):
            if not is_last or length & 0x7F > _CONTROL_BYTES:
                return Violation(PROTOCOL_ERROR, "a control frame is fragmented or too long")
        elif opcode > BINARY:
            return Violation(PROTOCOL_ERROR, f"opcode {opcode} is unknown")
        elif (opcode == BINARY) == self._in_message:
            return Violation(PROTOCOL_ERROR, "a fragment is out of order")
        return None

    def _control(self, opcode: int, payload: bytes) -> Event | None:
        if opcode == PING:
            return Ping(payload)
        if opcode == PONG:
            return None
        if not payload:
            return Close(NORMAL)
        code = int.from_bytes(payload[:2], "big")
        if len(payload) == 1 or not (code in _OWN_CODES or 3000 <= code < 5000):
            return Violation(PROTOCOL_ERROR, "a close frame has no valid code")
        return Close(code)


def header(size: int, opcode: int = BINARY) -> bytes:
    """Return the header of an unfragmented frame to the client, which is never masked (section 5.1)."""
    first = 0x80 | opcode
    if size < 126:
        return bytes((first, size))
    if size < 65536:
        return bytes((first, 126, size >> 8, size & 0xFF))
    return bytes((first, 127)) + size.to_bytes(8, "big")


def close_frame(code: int, message: str = "") -> bytes:
    """Return a close frame; the message is cut to what fits."""
    payload = code.to_bytes(2, "big") + message.encode()[: _CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return header(len(payload), CLOSE) + payload
