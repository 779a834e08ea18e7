"""The frames that brokers of a cluster send each other: bytes in, frames out (`docs/formats/links.md`).

Every byte is covered by a check. A stream that is not what it should be is at its end: nothing after it is read.
"""

import struct
from typing import NamedTuple

import crc32c

from everlog.base import EverlogError

MAGIC = b"EL"
VERSION = 1
HEADER_BYTES = 20
MAX_BODY = 512 << 20  # bytes: the largest MQTT message and what goes with it
MAX_FIRST_BODY = 4 << 10  # of a peer that has not said who it is

_Bytes = bytes | bytearray | memoryview
_HEADER = struct.Struct("<2sBBIQ")  # magic, version, kind, size of the body, number
_CHECK = struct.Struct("<I")


class BadFrame(EverlogError):
    """Bytes that are no frame of this version, or more than the peer may send."""


class LinkFrame(NamedTuple):
    """What was sent at once."""

    kind: int
    number: int
    body: bytes


def frame_head(kind: int, number: int, body: _Bytes, rest: _Bytes = b"") -> bytes:
    """Return what stands before a body, which may be in two pieces."""
    size = len(body) + len(rest)
    if size > MAX_BODY:
        raise BadFrame(f"a frame of {size} bytes is too large")
    head = _HEADER.pack(MAGIC, VERSION, kind, size, number)
    check = crc32c.crc32c(body, crc32c.crc32c(head))
    return head + _CHECK.pack(crc32c.crc32c(rest, check) if rest else check)


def encode_link_frame(kind: int, number: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return frame_head(kind, number, body) + body


class LinkDecoder:
    """The frames of one stream. `max_body` may be raised once the peer is known."""

    def __init__(self, max_body: int = MAX_FIRST_BODY) -> None:
        self.max_body = max_body
        self._parts: list[bytes] = []  # of what is not read yet; more than one only in the midst of a frame
        self._held = 0
        self._needed = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is there: never more than was received."""
        return self._held

    def feed(self, data: bytes | memoryview) -> list[LinkFrame]:
        """Return the frames that are whole by now; raise BadFrame, after which the stream is of no use.

        Nothing of the data is kept but copies: one of each body.
        """
        if self._held + len(data) < self._needed:
            self._parts.append(bytes(data))
            self._held += len(data)
            return []
        whole = memoryview(b"".join((*self._parts, data)) if self._held else data)
        frames: list[LinkFrame] = []
        at = 0
        while True:
            size = self._body_size(whole, at)
            if size < 0 or len(whole) - at < HEADER_BYTES + size:
                self._needed = HEADER_BYTES + max(size, 0)
                break
            frames.append(self._frame(whole, at, size))
            at += HEADER_BYTES + size
            if len(frames) == 1 and self.max_body == MAX_FIRST_BODY:
                self._needed = HEADER_BYTES
                break  # who the peer is decides what it may send
        self._parts = [bytes(whole[at:])]
        self._held = len(whole) - at
        return frames

    def _body_size(self, whole: memoryview, at: int) -> int:
        """Return the size of the body of the frame that begins here, -1 if that is not known yet."""
        if len(whole) - at < HEADER_BYTES:
            return -1
        magic, version, _, size, _ = _HEADER.unpack_from(whole, at)
        if magic != MAGIC:
            raise BadFrame("a peer does not speak the protocol of links", hint="give the address of a broker's links")
        if version != VERSION:
            raise BadFrame(f"a frame of version {version}", hint=f"this broker speaks version {VERSION}")
        if size > self.max_body:
            raise BadFrame(f"a frame of {size} bytes, and at most {self.max_body} are taken")
        return int(size)

    def _frame(self, whole: memoryview, at: int, size: int) -> LinkFrame:
        _, _, kind, _, number = _HEADER.unpack_from(whole, at)
        body = bytes(whole[at + HEADER_BYTES : at + HEADER_BYTES + size])
        head = whole[at : at + _HEADER.size]
        if crc32c.crc32c(body, crc32c.crc32c(head)) != _CHECK.unpack_from(whole, at + _HEADER.size)[0]:
            raise BadFrame("a frame was damaged on its way")
        return LinkFrame(kind, number, body)
