"""Writing and syncing by system calls: a few in Python; the same, but without the interpreter lock, in C.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `sync_write` cimports.
"""

import errno
import mmap
import os
from collections.abc import Sequence

Buffer = bytes | bytearray
PAGE = mmap.PAGESIZE
MAX_BLOCKS = 1000  # in one vectored write; the system's limit is 1,024


def write_all(fd: int, position: int, blocks: Sequence[Buffer], sync: bool, mark_fd: int, mark: bytes) -> int:
    """Write all blocks at a position, sync if asked, then write the mark; return 0 or the number of the error."""
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


def write_around(
    fd: int, direct_fd: int, position: int, blocks: Sequence[Buffer], buffer: mmap.mmap, mark_fd: int, mark: bytes
) -> int:
    """Write all blocks around the page cache, sync, then write the mark; return 0 or the number of the error.

    `direct_fd` is the same file, opened so that it takes whole pages only. `buffer` begins with what stands before
    `position` in its page, and afterwards with what stands before the end in that page, which zeros fill.
    """
    data = memoryview(b"".join(blocks))
    rest = position % PAGE
    at = position - rest
    try:
        while len(data):
            taken = data[: len(buffer) - rest]
            used = rest + len(taken)
            buffer[rest:used] = bytes(taken)
            data = data[len(taken) :]
            rest = used % PAGE
            whole = used + -used % PAGE
            buffer[used:whole] = bytes(whole - used)
            if os.pwritev(direct_fd, [memoryview(buffer)[:whole]], at) != whole:
                return errno.EINVAL
            at += whole
            buffer[:rest] = buffer[used - rest : used]
    except OSError as error:
        return error.errno or errno.EIO
    return write_all(fd, 0, [], True, mark_fd, mark)
