"""The primitive that Python does by three system calls and C by the same three without the interpreter lock.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `syncwrite` cimports.
"""

import errno
import os
from collections.abc import Sequence

Buffer = bytes | bytearray
MAX_BLOCKS = 1000  # of one vectored write; the system's limit is 1,024


def write_all(fd: int, position: int, blocks: Sequence[Buffer], sync: bool, mark_fd: int, mark: bytes) -> int:
    """Write all blocks at a position, sync if asked, then write the mark; 0, or the number of the error."""
    rest: list[Buffer | memoryview] = [block for block in blocks if block]
    try:
        while rest:
            written = os.pwritev(fd, rest[:MAX_BLOCKS], position)
            if not written:
                return errno.EIO
            position += written
            done = 0
            while done < len(rest) and written >= len(rest[done]):
                written -= len(rest[done])
                done += 1
            del rest[:done]
            if written:
                rest[0] = memoryview(rest[0])[written:]
        if sync:
            os.fdatasync(fd)
        if mark_fd >= 0 and os.pwrite(mark_fd, mark, 0) != len(mark):
            return errno.EIO
    except OSError as error:
        return error.errno or errno.EIO
    return 0
