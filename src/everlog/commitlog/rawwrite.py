"""The primitives that Python does by a few system calls and C by the same without the interpreter lock.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `syncwrite` cimports.
"""

import errno
import mmap
import os
from collections.abc import Sequence

Buffer = bytes | bytearray
PAGE = mmap.PAGESIZE
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


def write_around(
    fd: int, direct_fd: int, position: int, blocks: Sequence[Buffer], buffer: mmap.mmap, carried: int, mark_fd: int,
    mark: bytes,
) -> int:  # fmt: skip
    """Write all blocks without the page cache, sync, then write the mark; 0, or the number of the error.

    `direct_fd` is the same file, opened so that it takes whole pages only. `buffer` begins with the `carried` bytes of
    the page that `position` is in; if these are not all, the rest of that page is written as usual. Zeros fill the last
    page, and what of it is no zeros is at the beginning of the buffer afterwards.
    """
    data = memoryview(b"".join(blocks))
    try:
        if carried != position % PAGE:
            head = data[: PAGE - position % PAGE]
            failed = write_all(fd, position, [bytes(head)], False, -1, b"")
            if failed:
                return failed
            data, position, carried = data[len(head) :], position + len(head), 0
        at = position - carried
        while len(data):
            taken = data[: len(buffer) - carried]
            used = carried + len(taken)
            buffer[carried:used] = bytes(taken)
            data = data[len(taken) :]
            rest = used % PAGE
            whole = used + (PAGE - rest if rest else 0)
            buffer[used:whole] = bytes(whole - used)
            if os.pwritev(direct_fd, [memoryview(buffer)[:whole]], at) != whole:
                return errno.EINVAL
            at, carried = at + whole, 0
            buffer[:rest] = buffer[used - rest : used]
    except OSError as error:
        return error.errno or errno.EIO
    return write_all(fd, 0, [], True, mark_fd, mark)
