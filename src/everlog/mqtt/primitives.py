"""The data representations of MQTT (section 1.5): integers, strings and binary data, read within bounds and written.

Clause ids in this room are those of MQTT 5.0 or, where the line says so, of 3.1.1 for a rule that only 3.1.1 has. A
clause without its last number (MQTT-2.1.4) is a section whose rule has no number.
"""

from typing import NoReturn

from everlog.base import PeerError, UsageError
from everlog.mqtt.packet_type import FIXED_FLAGS, PacketType
from everlog.mqtt.reasons import Reason

MAX_VARINT = 268_435_455  # four bytes of seven bits: also the longest packet
MAX_STRING_BYTES = 65_535
U16_MAX = 0xFFFF
U32_MAX = 0xFFFF_FFFF


def malformed(message: str, clause: str) -> NoReturn:
    """Refuse a packet that can't be parsed as the specification has it."""
    raise PeerError(Reason.MALFORMED_PACKET, message, clause=clause)


def protocol_error(message: str, clause: str) -> NoReturn:
    """Refuse a packet that can be parsed but says what it may not."""
    raise PeerError(Reason.PROTOCOL_ERROR, message, clause=clause)


class Reader:
    """A cursor over one packet's body (or one section of it); no read passes `end`."""

    __slots__ = ("clause", "data", "end", "pos")

    def __init__(self, data: bytes, pos: int, end: int, clause: str = "MQTT-2.1.4") -> None:
        self.data = data
        self.pos = pos
        self.end = end
        self.clause = clause  # cited when the data end within a value

    def _advance(self, size: int) -> int:
        pos = self.pos
        if size > self.end - pos:
            malformed(f"{size} bytes expected, {self.end - pos} left", self.clause)
        self.pos = pos + size
        return pos

    def u8(self) -> int:
        """Read one byte."""
        return self.data[self._advance(1)]

    def u16(self) -> int:
        """Read a two byte integer."""
        pos = self._advance(2)
        return self.data[pos] << 8 | self.data[pos + 1]

    def u32(self) -> int:
        """Read a four byte integer."""
        pos = self._advance(4)
        return int.from_bytes(self.data[pos : pos + 4], "big")

    def varint(self) -> int:
        """Read a variable byte integer."""
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 21:
                malformed("a variable byte integer of more than four bytes", "MQTT-1.5.5")
        if byte == 0 and shift:
            malformed("a variable byte integer in more bytes than it needs", "MQTT-1.5.5-1")
        return value

    def binary(self) -> bytes:
        """Read binary data with its two byte length."""
        size = self.u16()
        pos = self._advance(size)
        return self.data[pos : pos + size]

    def string(self) -> str:
        """Read a UTF-8 encoded string with its two byte length."""
        raw = self.binary()
        try:
            text = raw.decode()  # strict: also refuses encoded surrogates and over-long forms
        except UnicodeDecodeError:
            malformed("a string that is not well-formed UTF-8", "MQTT-1.5.4-1")
        if 0 in raw:
            malformed("a string with the null character", "MQTT-1.5.4-2")
        return text

    def rest(self) -> bytes:
        """Read everything that is left."""
        pos, self.pos = self.pos, self.end
        return self.data[pos : self.end]

    def section(self, size: int, clause: str) -> "Reader":
        """Return a reader of the next `size` bytes, which this one steps over."""
        if size > self.end - self.pos:
            malformed(f"a section of {size} bytes in {self.end - self.pos}", clause)
        start = self.pos
        self.pos += size
        return Reader(self.data, start, self.pos, clause)

    def finish(self) -> None:
        """Refuse bytes after the packet's last field."""
        if self.pos != self.end:
            malformed(f"{self.end - self.pos} bytes after the packet's last field", "MQTT-2.1.4")


def read_fixed_header(data: bytes, version: int) -> tuple[int, int, int] | None:
    """Return the first byte, the remaining length and the header's own size; None while bytes of it are missing."""
    length = 0
    for index, byte in enumerate(data[1:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index and version == 5:  # 3.1.1 does not ask for the shortest form
                malformed("a remaining length in more bytes than it needs", "MQTT-1.5.5-1")
            return data[0], length, index + 2
    if len(data) >= 5:
        malformed("a remaining length of more than four bytes", "MQTT-1.5.5")
    return None


def u16(value: int) -> bytes:
    """Write a two byte integer."""
    if not 0 <= value <= U16_MAX:
        raise UsageError(f"{value} does not fit a two byte integer")
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    """Write a four byte integer."""
    if not 0 <= value <= U32_MAX:
        raise UsageError(f"{value} does not fit a four byte integer")
    return value.to_bytes(4, "big")


def varint(value: int) -> bytes:
    """Write a variable byte integer in as few bytes as it needs."""  # [MQTT-1.5.5-1]
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= MAX_VARINT:
        raise UsageError(f"{value} does not fit a variable byte integer")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def binary(value: bytes) -> bytes:
    """Write binary data with its two byte length."""
    if len(value) > MAX_STRING_BYTES:
        raise UsageError(f"{len(value)} bytes do not fit a field of at most {MAX_STRING_BYTES}")
    return len(value).to_bytes(2, "big") + value


def string(value: str) -> bytes:
    """Write a UTF-8 encoded string with its two byte length."""
    try:
        raw = value.encode()  # [MQTT-1.5.4-1] strict: refuses surrogates
    except UnicodeEncodeError as error:
        raise UsageError(f"a string that UTF-8 can't encode: {error}") from error
    if 0 in raw:  # [MQTT-1.5.4-2]
        raise UsageError("a string with the null character")
    return binary(raw)


def qos(value: int) -> int:
    """Return a QoS, checked to fit its two bits."""
    if not 0 <= value <= 2:
        raise UsageError(f"no QoS {value}")
    return value


def retain_handling(value: int) -> int:
    """Return a retain handling option, checked to fit its two bits."""
    if not 0 <= value <= 2:
        raise UsageError(f"no retain handling {value}")
    return value


def packet_id(value: int) -> bytes:
    """Write a packet identifier."""
    if not value:  # [MQTT-2.2.1-3] [MQTT-2.2.1-4]
        raise UsageError("packet identifier 0")
    return u16(value)


def frame(kind: PacketType, body: bytes, flags: int = 0) -> bytes:
    """Write a whole packet; `flags` are those of a PUBLISH, every other type has fixed ones."""
    if kind is not PacketType.PUBLISH:
        flags = FIXED_FLAGS[kind][0]
    return bytes((kind << 4 | flags,)) + varint(len(body)) + body
