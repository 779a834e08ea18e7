"""Writing and syncing by system calls: a few in Python; the same, but without the interpreter lock, in C.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `sync_write` and `aside` cimport.
"""

import errno
import mmap
import os
import threading
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview
PAGE = mmap.PAGESIZE
MAX_BLOCKS = 1000  # in one vectored write; the system's limit is 1,024


def write_all(fd: int, position: int, blocks: Sequence[Buffer], sync: bool, mark_fd: int, mark: bytes) -> int:
    """Write all blocks at a position, sync if asked, then write the mark; return 0 or the number of the error."""
    rest: list[Buffer] = [block for block in blocks if block]
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
    fd: int, direct_fd: int, position: int, blocks: Sequence[Buffer], buffer: mmap.mmap, sync: bool, mark_fd: int,
    mark: bytes,
) -> int:  # fmt: skip
    """Write all blocks around the page cache, sync if asked, then write the mark; return 0 or the number of the error.

    `direct_fd` is the same file, opened so that it takes whole pages only. `buffer` begins with what stands before
    `position` in its page, and afterwards with what stands before the end in that page, which zeros fill. In C, whole
    pages of a block that begins at the same place of a page in memory as in the file are written from where they are;
    all else passes through the buffer.
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
    return write_all(fd, 0, [], sync, mark_fd, mark)


class AsideThread:
    """A thread that writes and syncs one thing at a time; in C, it never needs the interpreter lock."""

    def __init__(self) -> None:
        self.failed = 0
        self._begun = threading.Semaphore(0)
        self._done = threading.Event()
        self._task: tuple[int, int, Sequence[Buffer], int, bytes] | None = None
        threading.Thread(target=self._run, name="everlog-sync", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            if self._task is None:
                return
            fd, position, blocks, mark_fd, mark = self._task
            self.failed = write_all(fd, position, blocks, True, mark_fd, mark)
            self._done.set()

    def begin(self, task: tuple[int, int, Sequence[Buffer], int, bytes] | None) -> None:
        """Hand over what to write; None ends the thread."""
        self._done.clear()
        self._task = task
        self._begun.release()

    def wait(self, wait_ns: int) -> bool:
        """Return whether it is done, at the latest after that time; a negative one is for ever."""
        return self._done.wait(None if wait_ns < 0 else wait_ns / 1e9)


def start_aside() -> AsideThread:
    """Start a thread for `begin_aside`; OSError if that can't be."""
    return AsideThread()


def begin_aside(
    thread: AsideThread, fd: int, position: int, blocks: Sequence[Buffer], mark_fd: int, mark: bytes, wait_ns: int
) -> bool:
    """Have a thread do what `write_all` does; return whether it is done, at the latest after `wait_ns`.

    Blocks and mark must stay where they are until it is done, and nothing else may be begun before.
    """
    thread.begin((fd, position, blocks, mark_fd, mark))
    return thread.wait(wait_ns)


def wait_aside(thread: AsideThread) -> None:
    """Wait until what was begun is done."""
    thread.wait(-1)


def failed_aside(thread: AsideThread) -> int:
    """Return 0 or the number of the error of what is done."""
    return thread.failed


def end_aside(thread: AsideThread) -> None:
    """End a thread that has nothing to do."""
    thread.begin(None)
