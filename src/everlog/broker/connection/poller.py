"""Plain TCP connections of one event loop, by an epoll of our own that the loop looks at as if it were one socket.

A turn reads once from each socket that has something, as far as its time goes; the rest comes first in the next turn.
At its end everything leaves that was written in it, and connections that are over are let go of. Others who write, such
as a commit that wakes acks, have such an end called soon. Owned by the event loop's thread.
"""

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from typing import Any

import cython

if not cython.compiled:
    from everlog.broker.connection.raw_socket import (
        accept,
        change_interest,
        close_epoll,
        close_file,
        find_ready,
        now_ns,
        number_of,
        open_epoll,
    )
    from everlog.broker.connection.wire import TurnEnd, Wire

    _ROOM = 512

_TURN_NS = 1_000_000  # for the reads of a turn; others on the loop wait meanwhile
_SEND_NS = 2_000_000  # for sending what was written
_LET_GO_NS = 500_000  # for telling protocols that their connections are gone
_NEVER = 1 << 62
_MANY = 8  # sockets that have something at once: when these are read a turn looks for more
_IN = 0x01  # EPOLLIN
_ACCEPTED_A_TURN = 64
_SHORT_S = 0.5  # until the next try after the system had no file or memory for a connection
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Port:
    """A listening socket, and what makes a protocol for each connection to it."""

    def __init__(self, listening: socket.socket, make: Callable[[], Any], on_short: Callable[[], None]) -> None:
        self.listening = listening
        self.fd = listening.fileno()
        self.make = make
        self.on_short = on_short  # told when the system has no file or memory for a connection
        self.again: asyncio.TimerHandle | None = None


class Poller:
    """Reads from sockets that are ready, and ends turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = open_epoll()
        self._end = TurnEnd(self._epoll, self._end_soon)
        self._sockets: list[Any] = []  # wires and ports, by file number
        self._count = 0  # events that were found
        self._next = 0  # of them
        self._until = 0
        self._is_reading = False  # within the reads of a turn, whose end is still to come
        self._is_called_soon = False
        self._ends: list[Callable[[], object]] = []  # what is called then
        self.turn_ns = _TURN_NS
        self.is_closed = False
        if not cython.compiled:
            self._fds, self._masks = [0] * _ROOM, [0] * _ROOM
        loop.add_reader(number_of(self._epoll), self.turn)

    # Sockets

    def listen(self, port: Port) -> None:
        """Take connections at a listening socket, which does not wait."""
        self._put(port.fd, port)
        change_interest(self._epoll, port.fd, -1, _IN)

    def deafen(self, port: Port) -> None:
        """Take no more connections there, and close it."""
        if port.fd < 0:
            return
        if port.again is not None:
            port.again.cancel()
        elif not self.is_closed:
            change_interest(self._epoll, port.fd, _IN, -1)
        self._sockets[port.fd] = None
        port.fd = -1
        port.listening.close()

    def add(self, fd: int, address: Any, protocol: Any) -> None:
        """Look after a connected socket, which does not wait and is the poller's own from here on."""
        wire = Wire(self._end, fd, address, protocol, protocol.reader)
        self._put(fd, wire)
        try:
            protocol.connection_made(wire)
        except Exception as error:  # noqa: BLE001 - of one connection, reported
            self._broken(wire, error)
        if not wire.is_over:
            wire.begin()

    def _put(self, fd: int, one: Any) -> int:
        sockets = self._sockets
        while len(sockets) <= fd:
            sockets.append(None)
        sockets[fd] = one
        return 0

    def close(self) -> None:
        """Close all that is still open."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(number_of(self._epoll))
        for one in self._sockets:
            if isinstance(one, Wire):
                one.abort()
        while self._end.over:
            self._let_go(_NEVER)
        close_epoll(self._epoll)

    # Turns

    def turn(self) -> None:
        """Read from all sockets that have something, as long as a turn may take."""
        if self.is_closed:
            return
        self._is_reading = self._end.is_asked = True  # the end comes below
        self._until = now_ns() + self.turn_ns
        if self._next >= self._count:
            self._find()
        while self._next < self._count:
            k = self._next
            self._next = k + 1
            self._ready(self._fds[k], self._masks[k])
            if now_ns() >= self._until:
                break
            if self._next == self._count >= _MANY:  # more have come meanwhile, most likely, and one commit is for all
                self._find()
        self._is_reading = False
        while self._ends:
            self._call(self._ends.pop(0))
        self._finish()

    def _find(self) -> int:
        self._next = 0
        self._count = find_ready(self._epoll, self._fds, self._masks, _ROOM)
        return 0

    def _call(self, call: Callable[[], object]) -> int:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - reported, as of any call of the loop
            self._report(error, None)
        return 0

    def at_end(self, call: Callable[[], object]) -> bool:
        """Have something called when this turn has read, before what was written leaves; False if it does not read."""
        if self._is_reading:
            self._ends.append(call)
        return self._is_reading

    def _ready(self, fd: int, mask: int) -> int:
        """Take one socket's turn; its number may be another's by now, who then has nothing to read."""
        one = self._sockets[fd] if fd < len(self._sockets) else None
        if isinstance(one, Wire):
            wire = one
            try:
                wire.ready(mask)
            except Exception as error:  # noqa: BLE001 - of one connection, reported
                self._broken(wire, error)
        elif one is not None:
            self._accept(one)
        return 0

    def _accept(self, port: Port) -> int:
        """Take some of the connections that wait."""
        addresses: list[Any] = []
        for _ in range(_ACCEPTED_A_TURN):
            fd = accept(port.fd, addresses)
            if fd < 0:
                if -fd in _SHORT:
                    self._short(port)
                break  # most often there are no more; a peer that has given up is not one of ours
            address = addresses.pop()
            try:
                protocol = port.make()
            except Exception as error:  # noqa: BLE001 - of one connection, reported
                close_file(fd)
                self._report(error, None)
                break
            self.add(fd, address, protocol)
            if now_ns() >= self._until or port.fd < 0:
                break
        return 0

    def _short(self, port: Port) -> int:
        """Try again later: those who connect wait meanwhile, and others are served."""
        change_interest(self._epoll, port.fd, _IN, -1)
        port.again = self._loop.call_later(_SHORT_S, self._try_again, port)
        port.on_short()
        return 0

    def _try_again(self, port: Port) -> None:
        port.again = None
        if not self.is_closed:
            change_interest(self._epoll, port.fd, -1, _IN)

    # Ends of turns

    def _end_soon(self) -> None:
        if not self._is_called_soon:  # it may have been asked for before a turn that has had its own end
            self._is_called_soon = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Send what was written, and let go of connections that are over, as far as there is time."""
        self._is_called_soon = False
        if not self.is_closed:
            self._finish()

    def _finish(self) -> int:
        end = self._end
        end.is_asked = True
        if end.to_send:
            self._send(now_ns() + _SEND_NS)
        if end.over:
            self._let_go(now_ns() + _LET_GO_NS)
            self._send(now_ns() + _LET_GO_NS)
        end.is_asked = False
        if end.to_send or end.over:
            end.ask()
        return 0

    def _send(self, until: int) -> int:
        waiting = self._end.to_send
        done = 0
        while done < len(waiting):  # which may grow
            wire = waiting[done]
            done += 1
            try:
                wire.send_now()
            except Exception as error:  # noqa: BLE001 - of one connection, reported
                self._broken(wire, error)
            if now_ns() >= until:
                break
        del waiting[:done]
        return 0

    def _let_go(self, until: int) -> int:
        """Tell the protocols of connections that are over that these are gone."""
        over = self._end.over
        done = 0
        while done < len(over):  # which may grow
            wire = over[done]
            done += 1
            self._sockets[wire.fd] = None
            try:
                wire.finish()
            except Exception as error:  # noqa: BLE001 - of one connection, reported
                self._broken(wire, error)
            if now_ns() >= until:
                break
        del over[:done]
        return 0

    def _broken(self, wire: Wire, error: Exception) -> int:
        """End a connection whose protocol has failed, as asyncio does."""
        self._report(error, wire)
        wire.abort()
        return 0

    def _report(self, error: Exception, wire: Any) -> None:
        self._loop.call_exception_handler(
            {"message": "a connection's protocol has failed", "exception": error, "transport": wire}
        )


def new_poller(loop: asyncio.AbstractEventLoop) -> Poller | None:
    """Return a poller of a loop, or None where the system or the loop has no such thing."""
    if not hasattr(select, "epoll"):
        return None
    try:
        return Poller(loop)
    except (NotImplementedError, OSError):
        return None
