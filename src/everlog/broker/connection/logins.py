"""The checks of passwords: in a few threads, in the queue's order, and only for clients that are still there."""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging import ERROR

from everlog.broker.auth import Admission, Attempt, KnownLogins, LoginQueue, Security, source_of
from everlog.broker.connection.connection import Connection
from everlog.broker.events import event as report
from everlog.mqtt import Connect, LongList, Reason, State

_THREADS = 4  # passwords checked at a time, each with 19 MiB of memory
_ATTEMPT_BYTES = 1024  # of an attempt besides its texts and its will
_GONE_PER_TURN = 100  # clients found gone; then others have their turn
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)  # Linux has it
_TCP_ESTABLISHED = 1
_log = logging.getLogger("everlog.broker")


class Logins:
    """The logins under way; owned by the event loop's thread."""

    def __init__(
        self,
        security: Security,
        max_waiting: int,
        max_bytes: int,
        verified: Callable[[Connection, Admission], None],
        refused: Callable[[Connection], None],
    ) -> None:
        self._security = security
        self._verified = verified
        self._refused = refused
        self._queue: LoginQueue[Connection] = LoginQueue(max_waiting, max_bytes)
        self._known = KnownLogins()
        self._threads = ThreadPoolExecutor(_THREADS, "everlog-verify")
        self._running = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue) + self._running

    def close(self) -> None:
        """Check no more passwords."""
        self._closed = True
        self._threads.shutdown(wait=False)

    def add(self, connection: Connection) -> None:
        """Have the password of a CONNECT checked; `verified` or `refused` is called once with its client."""
        packet = connection.connect
        assert packet is not None
        one = Attempt(connection, source_of(connection.peer), packet.user_name or "", _size(packet))
        for client in self._queue.add(one, (one.source, one.name) in self._known):
            self._refused(client)
        self._go_on()

    def forget(self, connection: Connection) -> None:
        """Check nothing for a client that is gone."""
        self._queue.remove(connection)

    def _go_on(self) -> None:
        """Begin the next checks, as far as threads are free."""
        gone = 0
        while self._running < _THREADS and not self._closed and (one := self._queue.take()) is not None:
            packet = one.client.connect
            if packet is None or one.client.state is not State.CONNECTING:
                continue
            if is_gone(one.client):
                one.client.output.transport.abort()  # what it has left behind unread hides its end
                gone += 1
                if gone == _GONE_PER_TURN:
                    asyncio.get_running_loop().call_soon(self._go_on)
                    return
                continue
            self._running += 1
            check = partial(self._security.verify, one.name, packet.password or b"")
            asked = asyncio.get_running_loop().run_in_executor(self._threads, check)
            asked.add_done_callback(partial(self._checked, one, self._security.generation))

    def _checked(self, one: Attempt[Connection], generation: int, asked: "asyncio.Future[Admission]") -> None:
        self._running -= 1
        if asked.cancelled() or self._closed:
            return
        connection, error = one.client, asked.exception()
        try:
            if connection.state is not State.CONNECTING:
                return  # it has left, or took too long
            if error is not None:  # such as no memory for the hash
                report(_log, "login_failed", ERROR, peer=connection.peer, user=one.name, reason=repr(error))
                connection.close(Reason.SERVER_UNAVAILABLE, "the password can't be checked now")
                return
            if generation != self._security.generation:  # other users are in force by now
                self.add(connection)
                return
            admission = asked.result()
            if admission.admitted:
                self._known.add(one.source, one.name)
            self._verified(connection, admission)
        finally:
            self._go_on()


def is_gone(connection: Connection) -> bool:
    """Return whether a peer has ended its connection, also where that is behind bytes that nobody reads yet."""
    wire = connection.output.transport.get_extra_info("socket")
    if wire is None or _TCP_INFO is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return bool(wire.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _TCP_ESTABLISHED)
    except OSError:
        return True


def _size(packet: Connect) -> int:
    """Return about the memory that a CONNECT holds while it waits."""
    size = _ATTEMPT_BYTES + len(packet.client_id) + len(packet.user_name or "") + len(packet.password or b"")
    will = packet.will
    if will is not None:
        size += len(will.topic) + len(will.payload)
        pairs = will.properties.user_properties
        size += (
            len(pairs.raw) if isinstance(pairs, LongList) else sum(200 + len(key) + len(value) for key, value in pairs)
        )
    return size
