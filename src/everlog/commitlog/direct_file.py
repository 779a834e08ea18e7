"""Direct I/O on a file, around the page cache: for large writes and for what is read once.

Through the page cache, a large write costs a copy and a new page of memory for each page of the file; on a virtual
machine whose host takes free memory back, a new page can cost more than everything else that is done with the messages
in it. Files and disks that can't do direct I/O say so once, and are written and read as usual from then on. Slow disks
are read as usual too, since there a second reader gains most by what the first one left in memory, and so are writes
to them that need no sync, since the system may do them later.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from time import perf_counter

from everlog.commitlog.ports import Block
from everlog.commitlog.sync_write import write_blocks_around

LARGE_BYTES = 128 << 10  # smaller pieces are as quick through the page cache, and stay in it for readers
_WRITE_ROOM = 1 << 20
_READ_ROOM = 8 << 20
_SLOW_READ, _SLOW_WRITE = 256e6, 100e6  # bytes a second
_PROBE_BYTES = 32 << 20  # read or written before a disk may be called slow
_AGAIN_BYTES = 256 << 20  # left to the page cache before a slow disk is tried again
_PAGE = mmap.PAGESIZE
_UNABLE = frozenset((errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS))

_CACHESTAT = 451  # the number of Linux's system call, since 6.5

_libc = ctypes.CDLL(None)
_own = threading.local()


def _buffer(room: int) -> mmap.mmap:
    """Return this thread's buffer, page-aligned and with at least so much room."""
    buffer: mmap.mmap | None = getattr(_own, "buffer", None)
    if buffer is None or len(buffer) < room:
        buffer = _own.buffer = mmap.mmap(-1, room)
    return buffer


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written", "gone", "gone_lately"))


def is_cached(fd: int, position: int, size: int) -> bool:
    """Return whether at least half of a range is in the page cache, or the system does not tell."""
    found = _Pages()
    if sys.platform != "linux" or _libc.syscall(
        _CACHESTAT, fd, ctypes.byref(_Range(position, size)), ctypes.byref(found), 0
    ):
        return True
    return bool(2 * found.cached * _PAGE >= size)


class Pace:
    """The pace at which a disk was read or written around the page cache."""

    def __init__(self, slow: float) -> None:
        self.slow = slow  # bytes a second
        self.moved_bytes = 0
        self.seconds = 0.0
        self._left_bytes = 0

    @property
    def is_slow(self) -> bool:
        """Whether to go through the page cache is better."""
        return self.moved_bytes >= _PROBE_BYTES and self.moved_bytes < self.slow * self.seconds

    def add(self, size: int, seconds: float) -> None:
        """Count what was read or written."""
        self.moved_bytes += size
        self.seconds += seconds

    def leave(self, size: int) -> None:
        """Count what a slow disk was spared; after much of it, find out again whether it is slow."""
        self._left_bytes += size
        if self._left_bytes >= _AGAIN_BYTES:
            self.moved_bytes = self._left_bytes = 0
            self.seconds = 0.0


# Of this process; threads that count at the same time may lose a count.
read_pace = Pace(_SLOW_READ)
unsynced_pace = Pace(_SLOW_WRITE)  # of writes that nobody waits to see synced


class DirectFile:
    """Another descriptor of an open file, opened when first used, and the end of what was written by it."""

    def __init__(self, fd: int) -> None:
        self._plain = fd
        self._fd = -1
        self._able = hasattr(os, "O_DIRECT")
        self._end = -1  # the end of the last direct write
        self._carry = b""  # of the last page written, what lies before `_end`

    def write(self, position: int, blocks: Sequence[Block], sync: bool, mark_fd: int, mark: bytes) -> bool:
        """Write, sync if asked, mark, with zeros up to a page's end; return False if that can't be done directly."""
        size = sum(map(len, blocks))
        if size < LARGE_BYTES or not self._opened():
            return False
        if not sync and unsynced_pace.is_slow:
            unsynced_pace.leave(size)
            return False
        buffer = _buffer(_WRITE_ROOM)
        carried = position % _PAGE
        if self._end != position:
            self._carry = os.pread(self._plain, carried, position - carried)
        self._end = -1
        buffer[:carried] = self._carry
        begun = perf_counter()
        try:
            write_blocks_around(self._plain, self._fd, position, blocks, buffer, sync, mark_fd, mark)
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
            self._able = False
            return False
        if not sync:
            unsynced_pace.add(size, perf_counter() - begun)
        self._end = position + size
        self._carry = buffer[: self._end % _PAGE]
        return True

    def read(self, position: int, size: int) -> bytes | None:
        """Return up to `size` bytes, fewer only at the end of the file; None if they can't be read directly."""
        if read_pace.is_slow or not self._opened():
            return None
        parts = []
        end = position + size
        while position < end:
            start = position - position % _PAGE
            room = min(_READ_ROOM, end - start + -(end - start) % _PAGE)
            buffer = _buffer(room)
            begun = perf_counter()
            try:
                got = start + os.preadv(self._fd, [memoryview(buffer)[:room]], start)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
                self._able = False
                return None
            read_pace.add(got - start, perf_counter() - begun)
            if got <= position:
                break
            parts.append(buffer[position - start : min(got, end) - start])
            position = min(got, end)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _opened(self) -> bool:
        if self._fd < 0 and self._able:
            try:
                access = fcntl.fcntl(self._plain, fcntl.F_GETFL) & os.O_ACCMODE
                self._fd = os.open(f"/proc/self/fd/{self._plain}", access | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                self._able = False
        return self._able

    def close(self) -> None:
        """Close the descriptor; once is enough."""
        fd, self._fd, self._able = self._fd, -1, False
        if fd >= 0:
            os.close(fd)
