"""Sockets by their numbers: one system call each in Python, and the same without an object for each socket in C.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `wire` and `poller` cimport. A negative
result is the number of the error.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

PARTS = 1000  # of one call; the system's limit is 1,024
_NO_ERROR_NUMBER = errno.EIO


def receive_into(fd: int, room: bytearray | memoryview) -> int:
    """Read what has arrived into a buffer; return how much, 0 at the peer's end."""
    try:
        return os.readv(fd, [room])
    except OSError as error:
        return -(error.errno or _NO_ERROR_NUMBER)


def send(fd: int, parts: Sequence[bytes | memoryview], at: int) -> int:
    """Send the parts from a place in the first one on; return how many bytes the socket has taken."""
    try:
        return os.writev(fd, [memoryview(parts[0])[at:], *parts[1:PARTS]])
    except OSError as error:
        return -(error.errno or _NO_ERROR_NUMBER)


def accept(fd: int, addresses: list[Any]) -> int:
    """Take a connection and append its peer's address; return its file number, of a socket that does not wait."""
    listening = socket.socket(fileno=fd)
    try:
        taken, address = listening.accept()
    except OSError as error:
        return -(error.errno or _NO_ERROR_NUMBER)
    finally:
        listening.detach()
    taken.setblocking(False)
    addresses.append(address)
    return taken.detach()


def tuple_of(address: Any) -> Any:
    """Return an address that `accept` has found as the socket module has it."""
    return address


def quick_ack(fd: int) -> int:
    """Have TCP confirm at once what has arrived, where there is such a thing."""
    one = socket.socket(fileno=fd)
    try:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    except (AttributeError, OSError):  # another system, or not TCP
        return -errno.EOPNOTSUPP
    finally:
        one.detach()
    return 0


def close_file(fd: int) -> int:
    """Close a socket."""
    try:
        os.close(fd)
    except OSError as error:  # what the peer said last
        return -(error.errno or _NO_ERROR_NUMBER)
    return 0


def now_ns() -> int:
    """Return a time for measuring how long something takes."""
    return time.monotonic_ns()


def open_epoll() -> Any:
    """Return what waits for many sockets at once."""
    return select.epoll()


def number_of(epoll: Any) -> int:
    """Return its file number."""
    return int(epoll.fileno())


def close_epoll(epoll: Any) -> int:
    """Wait for none of them any more."""
    epoll.close()
    return 0


def change_interest(epoll: Any, fd: int, before: int, mask: int) -> int:
    """Wait for other events of a socket than before; -1 is none, not even errors."""
    try:
        if before == -1:
            epoll.register(fd, mask)
        elif mask == -1:
            epoll.unregister(fd)
        else:
            epoll.modify(fd, mask)
    except OSError as error:
        return -(error.errno or _NO_ERROR_NUMBER)
    return 0


def find_ready(epoll: Any, fds: list[int], masks: list[int], room: int) -> int:
    """Note which sockets have events now and which; return how many."""
    found = epoll.poll(0, room)
    for k, (fd, mask) in enumerate(found):
        fds[k], masks[k] = fd, mask
    return len(found)
