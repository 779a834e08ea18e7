"""The system calls of the load generator: one socket's read and write, and the clock.

Never compiled itself: the `.pxd` beside it holds an inline C twin of each, which the kernels cimport. Sockets are
non-blocking; an error of a connection is its end, as far as a load generator cares.
"""

import os
import time

from everlog.base.memory import Buffer

NOTHING = -1  # would have to wait
GONE = 0  # the connection has ended


def receive(fd: int, target: bytearray, start: int, size: int) -> int:
    """Read at most `size` bytes to a place in a buffer; return how many, NOTHING or GONE."""
    try:
        return os.readv(fd, [memoryview(target)[start : start + size]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return GONE


def transmit(fd: int, source: Buffer, start: int, size: int) -> int:
    """Write a range of a buffer; return how many bytes of it went out, NOTHING or GONE."""
    try:
        return os.write(fd, memoryview(source)[start : start + size])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return GONE


def now_ns() -> int:
    """Return the time of the monotonic clock."""
    return time.monotonic_ns()
