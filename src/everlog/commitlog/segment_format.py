"""The parts of a segment file that are not batches: its header, and the frame before each batch.

The layout is in `docs/formats/segment.md`. A frame's check is salted with a number that clients never see and covers
the frame's own position, so that nothing inside a payload, and nothing that was moved, can pass for a frame: after
damage the next frame is found by looking for one.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import crc32c

from everlog.base import StorageError
from everlog.commitlog.frame_header import frame_bytes

MAGIC = b"EVLS"
VERSION = 1
HEADER_BYTES = 128  # two equal copies, so that one damaged byte loses nothing
FRAME_MAGIC = b"EVLF"
FRAME_BYTES = 32

PREVIOUS_SYNCED = 0x01  # header flag: the segment before this one was synced whole when this one was created
THINNED = 0x02  # header flag: records of shorter-lived topics were emptied
AFTER_SYNC = 0x80000000  # frame flag, in the count: all before this frame was synced when it was written

_COPY = struct.Struct("<4sHHQQQIIQQHHI")
_FRAME = struct.Struct("<4sIQQII")
_SALT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Origin:
    """Which store and shard a log is, and the epoch of the owner that writes it; all 0 if nobody has said."""

    store: int = 0
    shard: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"shard {self.shard} of store {self.store:016x}"


NOBODY = Origin()


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment file says about itself; `generation` counts how often it was rewritten."""

    base_offset: int
    created_us: int
    salt: int
    generation: int = 0
    flags: int = 0
    previous_end: int = 0  # where the records before it ended when it was created; 0 if there were none, or not known
    origin: Origin = NOBODY  # whose it is; segments that were written before there was this do not say

    def to_bytes(self) -> bytes:
        """Return both copies of the header."""
        copy = self._body() + struct.pack("<I", self.check)
        return copy + copy

    def _body(self) -> bytes:
        begin = (self.flags, self.base_offset, self.created_us, self.salt, self.generation, self.origin.epoch)
        return _COPY.pack(MAGIC, VERSION, *begin, self.previous_end, self.origin.store, self.origin.shard, 0, 0)[:-4]

    @property
    def check(self) -> int:
        """The check of the fields, which also binds a side file to this very file."""
        return int(crc32c.crc32c(self._body()))

    def belongs(self, base_offset: int, salt: int) -> bool:
        """Return whether this is the segment of that offset in the shard with that salt, 0 if it is not known."""
        return self.base_offset == base_offset and salt in (0, self.salt)

    def is_foreign(self, origin: Origin) -> bool:
        """Return whether this is a segment of another store or shard, if both say whose they are."""
        mine, theirs = (origin.store, origin.shard), (self.origin.store, self.origin.shard)
        return bool(origin.store and self.origin.store) and mine != theirs


def read_header(data: bytes | memoryview, path: str) -> SegmentHeader | None:
    """Return the header in a file's first bytes, or None if neither copy is whole; refuse an unknown version."""
    for start in (0, _COPY.size):
        copy = data[start : start + _COPY.size]
        if len(copy) < _COPY.size or copy[:4] != MAGIC:
            continue
        _, version, flags, base, created, salt, *rest, check = _COPY.unpack(copy)
        if crc32c.crc32c(copy[:-4]) != check:
            continue
        if version != VERSION:
            raise StorageError(
                f"{path}: segment format version {version} is not known to this version of Everlog",
                hint="open it with a newer Everlog",
            )
        generation, epoch, previous_end, store, shard, _ = rest
        return SegmentHeader(base, created, salt, generation, flags, previous_end, Origin(store, shard, epoch))
    return None


class Frame(NamedTuple):
    """What stands before a batch: where, which offsets, how many bytes follow."""

    position: int
    base_offset: int
    size: int
    records: int
    after_sync: bool

    def to_bytes(self, salt: int) -> bytes:
        """Return the frame as it is written."""
        count = self.records | AFTER_SYNC if self.after_sync else self.records
        return frame_bytes(self.position, self.base_offset, self.size, count, salted(salt))

    @property
    def end(self) -> int:
        """Where the batch ends and the next frame stands."""
        return self.position + FRAME_BYTES + self.size


def read_frame(data: bytes | memoryview, start: int, position: int, salt: int) -> Frame | None:
    """Return the frame in `data` at `start`, which is `position` in its file, or None."""
    if len(data) - start < FRAME_BYTES:
        return None
    magic, check, at, base, size, count = _FRAME.unpack_from(data, start)
    if (
        magic != FRAME_MAGIC
        or at != position
        or check != crc32c.crc32c(data[start + 8 : start + FRAME_BYTES], salted(salt))
    ):
        return None
    return Frame(at, base, size, count & ~AFTER_SYNC, bool(count & AFTER_SYNC))


def find_frame(data: bytes, start: int, position: int, salt: int) -> Frame | None:
    """Return the first frame in `data` from `start` on; `data` begins in its file at `position`, a multiple of 8."""
    at = start
    while (at := data.find(FRAME_MAGIC, at)) >= 0:
        if at % 8 == 0 and (frame := read_frame(data, at, position + at, salt)) is not None:
            return frame
        at += 1
    return None


@lru_cache(16)
def salted(salt: int) -> int:
    """Return the check of the salt, with which the check of a frame begins."""
    return int(crc32c.crc32c(_SALT.pack(salt)))
