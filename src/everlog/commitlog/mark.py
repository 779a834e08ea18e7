"""The mark: how far the log is committed, for readers in other processes and as a hint after a crash.

The layout is in `docs/formats/segment.md`. Slot 0 is overwritten after every commit and never synced: what it says was
true when it was written, so after a crash it is a lower bound, or unreadable. Slots 1 and 2 are written in turn and
synced, so that one of them is always whole: they hold the salt, what was committed at the last clean stop, and how far
offsets may have been given out by a log that does not sync each commit.
"""

import struct
from typing import NamedTuple

import crc32c

from everlog.base import StorageError
from everlog.commitlog.frame_header import mark_bytes
from everlog.commitlog.ports import File

MAGIC = b"EVLM"
VERSION = 1
SLOT_BYTES = 72
SLOT_SPACING = 512  # one slot per sector, so that writing one never touches another
MARK_BYTES = 2 * SLOT_SPACING + SLOT_BYTES

_SLOT = struct.Struct("<4sHHQQQQQQQI")
_CHECK = struct.Struct("<I")


class Mark(NamedTuple):
    """Offsets below `committed` are committed; they end at `position` of the segment that begins at `segment`."""

    sequence: int = 0
    committed: int = 0
    segment: int = 0
    position: int = 0
    layout: int = 0  # grows when a segment is added, merged or removed
    reserved: int = 0  # offsets below this may have been given out
    salt: int = 0
    synced: bool = False  # whether what is committed is also synced

    def to_bytes(self) -> bytes:
        """Return the mark as the bytes of a slot."""
        return mark_bytes(*self)


def read_slot(data: bytes, slot: int, path: str) -> Mark | None:
    """Return the mark in a slot, or None if it is not whole; refuse an unknown version."""
    raw = data[SLOT_SPACING * slot : SLOT_SPACING * slot + SLOT_BYTES]
    if len(raw) < SLOT_BYTES or raw[:4] != MAGIC or crc32c.crc32c(raw[:-4]) != _CHECK.unpack(raw[-4:])[0]:
        return None
    _, version, synced, sequence, committed, segment, position, layout, reserved, salt, _ = _SLOT.unpack_from(raw)
    if version != VERSION:
        raise StorageError(f"{path}: mark version {version} is not known", hint="open it with a newer Everlog")
    return Mark(sequence, committed, segment, position, layout, reserved, salt, bool(synced))


class MarkFile:
    """The mark of a shard that is being written."""

    def __init__(self, file: File, durable: Mark | None, salt: int) -> None:
        self.file = file
        self._durable = durable or Mark(salt=salt)
        self.salt = self._durable.salt
        self.reserved = self._durable.reserved  # offsets below this may be given out without another sync of the mark

    def publish(self, mark: Mark) -> None:
        """Write a mark for readers, without a sync."""
        self.file.write_at(0, [mark.to_bytes()])

    def keep(self, mark: Mark) -> None:
        """Make a mark durable beside the last durable one."""
        sequence = self._durable.sequence + 1
        kept = mark._replace(sequence=sequence, salt=self.salt)
        self.file.commit_at(SLOT_SPACING * (1 + sequence % 2), [kept.to_bytes()])  # never over the last one
        self._durable = kept
        self.reserved = kept.reserved

    def keep_again(self) -> None:
        """Make the mark that was found durable again, since its writer may have been killed before the sync."""
        self.file.commit_at(SLOT_SPACING * (1 + self._durable.sequence % 2), [self._durable.to_bytes()])

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


def read_marks(data: bytes, path: str) -> tuple[Mark | None, Mark | None]:
    """Return the mark in slot 0 and the durable one of a mark file's bytes."""
    slots = [read_slot(data, slot, path) for slot in range(3)]
    durable = max((mark for mark in slots[1:] if mark is not None), key=lambda mark: mark.sequence, default=None)
    return slots[0], durable
