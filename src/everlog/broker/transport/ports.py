"""The listening sockets of a plain TCP listener, which the poller takes connections from."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from logging import WARNING
from typing import Any, Protocol

from everlog.broker.connection import Poller, Port
from everlog.broker.events import event as report

_log = logging.getLogger("everlog.broker")


class Place(Protocol):
    """What is needed of a listener to open its sockets."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def backlog(self) -> int: ...


class Ports:
    """The open sockets, with what `Listening` needs of asyncio's servers."""

    def __init__(self, poller: Poller, ports: list[Port]) -> None:
        self._poller = poller
        self._ports = ports

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return [port.listening for port in self._ports]

    def close(self) -> None:
        """Take no more connections."""
        for port in self._ports:
            self._poller.deafen(port)

    async def wait_closed(self) -> None:
        """Return at once: `close` waits for nothing."""


async def open_ports(poller: Poller, place: Place, make: Callable[[], Any]) -> Ports:
    """Listen at every address that a host name stands for, or raise OSError and at none."""
    found = await asyncio.get_running_loop().getaddrinfo(
        place.host or None, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    ports: list[Port] = []
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            try:
                listening = socket.create_server(address, family=family, backlog=place.backlog)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:  # such as IPv6 where it is switched off
                    continue
                raise
            listening.setblocking(False)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
            ports.append(Port(listening, make, _no_file))
    except OSError:
        for port in ports:
            port.listening.close()
        raise
    for port in ports:
        poller.listen(port)
    return Ports(poller, ports)


def _no_file() -> None:
    report(_log, "limit", WARNING, limit="files", peer="unknown")
