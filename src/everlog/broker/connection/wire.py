"""One client's socket without asyncio in between, with the interface of asyncio's transports that connections use.

What is written gathers until the end of the turn and leaves by one system call. `connection_lost` is called at the end
of a turn too, never from within a read or a write. Owned by the event loop's thread.
"""

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import cython

if not cython.compiled:
    from everlog.broker.connection.raw_socket import (
        PARTS,
        change_interest,
        close_file,
        quick_ack,
        send,
        tuple_of,
    )

    EVERLOG_PARTS = PARTS

IN = 0x01  # EPOLLIN and EPOLLOUT
OUT = 0x04
_NOTHING = -1  # to wait for, not even errors
_GATHER_BYTES = 64 << 10  # leave before the turn's end
_LOW = 4  # writing goes on below such a part of the limit, as in asyncio
_AGAIN = errno.EAGAIN


class TurnEnd:
    """What is left to do at the end of a turn: wires that have bytes to send, and wires that are over."""

    def __init__(self, epoll: Any, ask: Callable[[], object]) -> None:
        self.epoll = epoll
        self.to_send: list[Any] = []
        self.over: list[Any] = []
        self.is_asked = False  # the turn has an end that comes
        self._ask = ask

    def ask(self) -> int:
        """Have the turn ended, once."""
        if not self.is_asked:
            self.is_asked = True
            self._ask()
        return 0


class LentSocket(socket.socket):
    """A socket to look at; the file is another's, and stays open."""

    def __del__(self) -> None:
        self.detach()


class Receiver:
    """Whoever takes what arrives at a wire."""

    def receive_from(self, fd: int) -> int:
        """Read from a socket; return how many bytes, 0 at the peer's end, below 0 the number of an error."""
        raise NotImplementedError


class Wire:
    """A socket that a poller looks after."""

    def __init__(self, end: TurnEnd, fd: int, address: Any, protocol: Any, receiver: Receiver) -> None:
        self.fd = fd
        self.is_over = False  # nothing is read or written any more; `connection_lost` was called, or will be
        self._end = end
        self._address = address
        self._protocol = protocol
        self._receiver = receiver
        self._parts: list[Any] | None = None  # that wait to be sent
        self._at = 0  # in the first of them
        self._unsent = 0  # bytes of all
        self._high = _GATHER_BYTES
        self._interest = _NOTHING  # as the poller has it
        self._error = 0
        self._is_reading = True
        self._is_closing = False
        self._is_blocked = False  # the socket takes no more, until the poller says so
        self._is_gathered = False  # it is in `to_send`
        self._is_full = False  # the protocol was told to pause

    def begin(self) -> None:
        """Read from now on."""
        failed = self._want(IN)
        if failed < 0:
            self._lose(-failed)

    # What the poller calls

    def ready(self, mask: int) -> int:
        """Read once, and go on sending, as the poller has found that it can be done."""
        if self.is_over:
            return 0
        if mask != OUT:
            if self._is_reading and not self._is_closing:
                size = self._receiver.receive_from(self.fd)
                if size <= 0:
                    self._read_ended(size)
            elif mask & IN and self._interest & IN:  # what comes waits
                self._want(self._interest & ~IN)
        if mask & ~IN and not self.is_over:
            if self._is_blocked:
                self._is_blocked = False
                self.send_now()
            elif mask & OUT:
                if self._interest & OUT:
                    self._want(self._interest & ~OUT)
            elif not self._is_reading:  # both sides have ended, which can't be left out otherwise
                self._want(_NOTHING)
        return 0

    def _read_ended(self, size: int) -> int:
        """Close at the peer's end, or end with the error of a read."""
        if size == 0:
            self.close()
        elif size != -_AGAIN and not self.is_over:
            self._lose(-size)
        return 0

    def send_now(self) -> int:
        """Send what has gathered, as far as the socket takes it."""
        self._is_gathered = False
        if self.is_over or self._is_blocked:
            return 0
        while self._unsent:
            parts = self._parts
            assert parts is not None
            count = len(parts)
            sent = send(self.fd, parts, self._at)
            if sent < 0 and sent != -_AGAIN:
                self._lose(-sent)
                return 0
            if sent > 0:
                self._unsent -= sent
                if self._unsent:
                    self._drop(parts, sent)
            if sent < 0 or (self._unsent and count <= EVERLOG_PARTS):
                self._is_blocked = True
                if not self._interest & OUT or self._interest == _NOTHING:
                    self._want(OUT if self._interest == _NOTHING else self._interest | OUT)
                break
        if self._unsent == 0:
            self._parts = None
            self._at = 0
            if self._is_closing:
                self._lose(0)
        if self._is_full and self._unsent <= self._high // _LOW and not self._is_closing:
            self._is_full = False
            self._protocol.resume_writing()
        return 0

    def _drop(self, parts: list[Any], sent: int) -> int:
        """Forget what was sent of the parts."""
        done = 0
        sent += self._at
        while sent >= len(parts[done]):
            sent -= len(parts[done])
            done += 1
        del parts[:done]
        self._at = sent
        return 0

    def finish(self) -> None:
        """Tell the protocol that the connection is gone, and close the socket."""
        protocol, self._protocol, self._receiver = self._protocol, None, None  # type: ignore[assignment]
        try:
            if protocol is not None:
                protocol.connection_lost(OSError(self._error, os.strerror(self._error)) if self._error else None)
        finally:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                close_file(fd)

    def _want(self, interest: int) -> int:
        if interest == self._interest:
            return 0
        failed = change_interest(self._end.epoll, self.fd, self._interest, interest)
        self._interest = interest
        return failed

    def _lose(self, error: int) -> int:
        """End the connection; its protocol is told at the end of the turn."""
        if self.is_over:
            return 0
        self.is_over = self._is_closing = True
        self._error = error
        self._parts = None
        self._unsent = 0
        self._want(_NOTHING)
        self._end.over.append(self)
        self._end.ask()
        return 0

    # What the connection calls, as of a transport

    def write(self, data: bytes) -> int:
        """Send bytes at the end of the turn, or as soon as the peer has read what was sent before."""
        if self._is_closing or not data:
            return 0
        if self._parts is None:
            self._parts = [data]
        else:
            self._parts.append(data)
        self._unsent += len(data)
        if not self._is_blocked:
            if self._unsent > self._high or self._unsent > _GATHER_BYTES:
                self.send_now()
            elif not self._is_gathered:
                self._is_gathered = True
                self._end.to_send.append(self)
                self._end.ask()
        if self._unsent > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()
        return 0

    def send_parts(self, parts: list[Any]) -> int:
        """Send parts at once, behind what was written; return how many bytes the socket has taken."""
        if self._unsent:
            self.send_now()
        if self._is_closing or self._unsent or self._is_blocked:
            return 0
        sent = send(self.fd, parts, 0)
        return sent if sent > 0 else 0  # whoever writes the rest meets the error

    def get_write_buffer_size(self) -> int:
        """Return how many bytes have not been sent yet."""
        return self._unsent

    def set_write_buffer_limits(self, high: int) -> None:
        """Have the protocol told to pause when more than so many bytes wait."""
        self._high = high

    def pause_reading(self) -> None:
        """Leave what comes where it is."""
        self._is_reading = False  # the poller forgets it when something comes

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        if not self._is_closing and (self._interest == _NOTHING or not self._interest & IN):
            self._want(IN if self._interest == _NOTHING else self._interest | IN)

    def close(self) -> None:
        """Read no more, and end when all is sent that was written."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._unsent == 0:
            self._lose(0)
            return
        if not self._is_blocked:
            self.send_now()
        if not self.is_over and self._interest != _NOTHING:
            self._want(OUT)

    def abort(self) -> None:
        """End at once."""
        self._lose(0)

    def is_closing(self) -> bool:
        """Return whether the connection has ended or is about to."""
        return self._is_closing

    def confirm_receipt(self) -> int:
        """Have TCP confirm at once what has arrived."""
        return 0 if self.is_over else quick_ack(self.fd)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the peer, or the socket, whose owner stays this."""
        if name == "peername":
            return tuple_of(self._address)
        if name == "socket" and self.fd >= 0:
            return LentSocket(fileno=self.fd)
        return default
