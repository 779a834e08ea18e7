"""The frames that travel over a bus between clients and persist servers: a header of 16 bytes, then a body.

Bodies are whatever the two ends agree on; here they are bytes. A frame that is larger than the bus allows travels as
parts and counts when all of them are there. `docs/formats/persist-protocol.md` describes the format.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from everlog.base import EverlogError

VERSION = 1
HEADER_BYTES = 16
MAX_FRAME = 32 << 20  # bytes of a frame that travels in parts; larger values are uploaded and read piece by piece
MAX_WINDOW = 0x7FFF
LAST = AGAIN = 0x8000  # in `flags`: the last reply or part; send again from that number on

_HEADER = struct.Struct("<BBHIQ")  # version, kind, flags, number, id
_GROUP = struct.Struct("<I")


class FrameKind(IntEnum):
    """What a frame is."""

    REQUEST = 1  # number: how many replies may come before a credit
    CREDIT = 2  # number: of the next reply that is wanted; flags: how many from there on, AGAIN if one was missed
    CANCEL = 3
    REPLY = 4  # number: counts the replies to one request; flags: LAST
    PART = 5  # number: of the part; flags: LAST; the body begins with the number of the frame that it is a part of
    EVENTS = 6
    HELLO = 7
    WELCOME = 8
    UP = 9
    MOVES = 10


class BadFrame(EverlogError):
    """Bytes that are no frame of this version."""


class Frame(NamedTuple):
    """A frame."""

    kind: FrameKind
    id: int
    number: int = 0
    flags: int = 0
    body: bytes = b""


_KINDS = {int(kind): kind for kind in FrameKind}


def encode_frame(kind: FrameKind, id: int, number: int = 0, flags: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(VERSION, kind, flags, number, id) + body


def decode_frame(data: bytes) -> Frame:
    """Return the frame that bytes are; raises BadFrame."""
    if len(data) < HEADER_BYTES:
        raise BadFrame(f"a frame of {len(data)} bytes")
    version, code, flags, number, id = _HEADER.unpack_from(data)
    if version != VERSION:
        raise BadFrame(f"a frame of version {version}", hint=f"this side speaks version {VERSION}")
    kind = _KINDS.get(code)
    if kind is None:
        raise BadFrame(f"a frame of kind {code}")
    return Frame(kind, id, number, flags, data[HEADER_BYTES:])


def split_frame(data: bytes, max_bytes: int) -> list[bytes]:
    """Return the frame itself, or its parts if it is larger than a message may be."""
    if len(data) <= max_bytes:
        return [data]
    _, _, _, number, id = _HEADER.unpack_from(data)
    step = max_bytes - HEADER_BYTES - _GROUP.size
    starts = range(0, len(data), step)
    return [
        encode_frame(
            FrameKind.PART, id, part, LAST if part == len(starts) - 1 else 0, _GROUP.pack(number) + data[at : at + step]
        )
        for part, at in enumerate(starts)
    ]


class _Parts:
    """The parts of one frame that are there."""

    __slots__ = ("count", "parts", "size", "touched")

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.count = 0  # 0: the last has not come
        self.size = 0
        self.touched = 0.0


class Assembly:
    """Frames that arrive in parts, of many senders. Beyond its limit the one that waited longest is given up."""

    def __init__(self, max_bytes: int = 256 << 20, patience_s: float = 30.0) -> None:
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._waiting: dict[tuple[str, int, int], _Parts] = {}
        self.held_bytes = 0

    def add(self, sender: str, frame: Frame, now: float) -> bytes | None:
        """Take a part; return the bytes of the whole frame once all parts are there."""
        if len(frame.body) < _GROUP.size:
            raise BadFrame("a part without the number of its frame")
        key = (sender, frame.id, _GROUP.unpack_from(frame.body)[0])
        known = self._waiting.pop(key, None) or _Parts()
        self._waiting[key] = known  # now the one that waits shortest
        known.touched = now
        if frame.number not in known.parts:
            piece = frame.body[_GROUP.size :]
            known.parts[frame.number] = piece
            known.size += len(piece)
            self.held_bytes += len(piece)
        if frame.flags & LAST:
            known.count = frame.number + 1
        if known.size > MAX_FRAME or (known.count and len(known.parts) > known.count):
            self._drop(key)
            raise BadFrame("parts that make no frame")
        if known.count and len(known.parts) == known.count:
            self._drop(key)
            if max(known.parts) != known.count - 1:
                raise BadFrame("parts that make no frame")
            return b"".join(known.parts[number] for number in range(known.count))
        while self.held_bytes > self._max_bytes:
            self._drop(next(iter(self._waiting)))
        return None

    def sweep(self, now: float) -> None:
        """Give up frames of which nothing came for a while."""
        for key in [key for key, known in self._waiting.items() if now - known.touched > self._patience_s]:
            self._drop(key)

    def _drop(self, key: tuple[str, int, int]) -> None:
        self.held_bytes -= self._waiting.pop(key).size
