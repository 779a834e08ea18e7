"""Writes blocks to a file, and syncs it, in one stretch without the interpreter lock.

Between a write and a sync the committer would else have to win the interpreter lock back from a busy broker thread.
"""

import os
from collections.abc import Sequence

MAX_BLOCKS = 1000  # of one vectored write; the system's limit is 1,024


def write_blocks(fd: int, position: int, blocks: Sequence[bytes | bytearray | memoryview], sync: bool) -> None:
    """All of the blocks, one behind the other, then fdatasync if asked; OSError when any of it fails."""
    for first in range(0, len(blocks), MAX_BLOCKS):
        rest = list(blocks[first : first + MAX_BLOCKS])
        while rest:
            written = os.pwritev(fd, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest[0])
                del rest[0]
            if written:
                rest[0] = memoryview(rest[0])[written:]
    if sync:
        os.fdatasync(fd)
