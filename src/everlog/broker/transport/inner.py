"""A connection for a part of this process that is a client of the broker: no port, no password, no rules."""

import asyncio
import socket

from everlog.broker.auth import INNER_USER
from everlog.broker.connection import Connections


class _Trusted:
    """What stands in for the certificate of a peer that is this process itself."""

    def user(self, transport: asyncio.BaseTransport) -> str | None:
        """Return the user that may do everything, and that nobody else can be."""
        return INNER_USER

    def still_trusts(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether it is still trusted: always."""
        return True


async def connect_inside(connections: Connections) -> socket.socket:
    """Return the client's end of a new connection; called on the broker's event loop."""
    ours, theirs = socket.socketpair()
    poller = connections.poller()
    if poller is not None:
        ours.setblocking(False)
        poller.add(ours.detach(), None, connections.new(_Trusted()))
        return theirs
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: connections.new(_Trusted()), ours)
    return theirs
