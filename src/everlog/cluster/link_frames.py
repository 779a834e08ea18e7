"""The frames that brokers of a cluster send each other: bytes in, frames out (`docs/formats/links.md`).

Every byte is covered by a check. A stream that is not what it should be is at its end: nothing after it is read.
"""

import struct
from typing import NamedTuple

import crc32c
import cython

from everlog.base import EverlogError

if not cython.compiled:
    from everlog.base.memory import Buffer, check_of, get32, get64, part, pointer

MAGIC = b"EL"
VERSION = 1
HEADER_BYTES = 20
MAX_BODY = 512 << 20  # bytes: the largest MQTT message and what goes with it
MAX_FIRST_BODY = 4 << 10  # of a peer that has not said who it is

_Bytes = bytes | bytearray | memoryview
_HEADER = struct.Struct("<2sBBIQ")  # magic, version, kind, size of the body, number
_CHECK = struct.Struct("<I")

# The same as numbers of C.
_MAGIC_0, _MAGIC_1 = MAGIC
_VERSION = VERSION
_HEADER_BYTES = HEADER_BYTES
_CHECKED_BYTES = 16  # of the header

_QUICK_BYTES = 256 << 10  # are checked in 20 µs; to let another thread run meanwhile would take longer than that


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
    check = check_quickly(body, crc32c.crc32c(head))
    return head + _CHECK.pack(check_quickly(rest, check) if rest else check)


def check_quickly(data: _Bytes, before: int = 0) -> int:
    """Return the CRC-32C of bytes; the interpreter's lock is let go of for large ones only."""
    return crc32c.crc32c(data, before, 0 if len(data) < _QUICK_BYTES else -1)


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

    def feed(self, data: Buffer, size: int = -1) -> list[LinkFrame]:
        """Return the frames that are whole by now; raise BadFrame, after which the stream is of no use.

        Nothing of the data, whose first `size` bytes count if that is given, is kept but copies: one of each body.
        """
        size = len(data) if size < 0 else size
        if self._held + size < self._needed:
            self._hold(data, 0, size)
            return []
        whole, end = data, self._held + size
        if self._held:
            whole = b"".join((*self._parts, memoryview(data)[:size]))
            self._parts, self._held = [], 0
        raw = pointer(whole)
        frames: list[LinkFrame] = []
        at = 0
        while True:
            body = self._body_size(raw, at, end)
            if body < 0 or end - at < _HEADER_BYTES + body:
                self._needed = _HEADER_BYTES + max(body, 0)
                break
            frames.append(self._frame(raw, at, body))
            at += _HEADER_BYTES + body
            if len(frames) == 1 and self.max_body == MAX_FIRST_BODY:
                self._needed = _HEADER_BYTES
                break  # who the peer is decides what it may send
        self._hold(whole, at, end)
        return frames

    def _hold(self, data: Buffer, start: int, stop: int) -> int:
        """Keep bytes that are to be read with those that follow."""
        if stop > start:
            self._parts.append(part(pointer(data), start, stop))
            self._held += stop - start
        return 0

    def _body_size(self, raw: Buffer, at: int, end: int) -> int:
        """Return the size of the body of the frame that begins here, -1 if that is not known yet."""
        if end - at < _HEADER_BYTES:
            return -1
        if raw[at] != _MAGIC_0 or raw[at + 1] != _MAGIC_1:
            raise BadFrame("a peer does not speak the protocol of links", hint="give the address of a broker's links")
        if raw[at + 2] != _VERSION:
            raise BadFrame(f"a frame of version {raw[at + 2]}", hint=f"this broker speaks version {VERSION}")
        size = get32(raw, at + 4)
        if size > self.max_body:
            raise BadFrame(f"a frame of {size} bytes, and at most {self.max_body} are taken")
        return size

    def _frame(self, raw: Buffer, at: int, size: int) -> LinkFrame:
        start = at + _HEADER_BYTES
        check = check_of(raw, start, size, check_of(raw, at, _CHECKED_BYTES, 0))
        if check != get32(raw, at + _CHECKED_BYTES):
            raise BadFrame("a frame was damaged on its way")
        return LinkFrame(raw[at + 3], get64(raw, at + 8), part(raw, start, start + size))
