"""What may leave a connection only after something is on disk, and whatever is sent behind it, in order."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everlog.broker.outgoing import Outgoing
    from everlog.broker.persistence import Persistence


class Outbox:
    """Bytes with the batch of the tables that each waits for; the connection has one while it is not empty."""

    __slots__ = ("_connection", "_entries", "_persistence", "_ticket", "bytes", "full", "has_connack")

    def __init__(self, connection: "Outgoing", persistence: "Persistence") -> None:
        self._connection = connection
        self._persistence = persistence
        self._entries: deque[tuple[int, bytes]] = deque()
        self._ticket = 0
        self.bytes = 0
        self.full = False
        self.has_connack = False

    def wait(self) -> None:
        """What is added from now on waits for all that is marked by now."""
        ticket = self._persistence.ticket()
        if ticket != self._ticket:
            self._ticket = ticket
            self._persistence.when_durable(self._release)

    def add(self, data: bytes) -> None:
        """Bytes that leave in their turn; beyond the output limit the session is handed nothing more."""
        self._entries.append((self._ticket, data))
        self.bytes += len(data)
        if self.bytes > self._connection.broker.limits.output_bytes and not self.full:
            self.full = True
            self._connection.pause_writing()

    def _release(self) -> None:
        saved = self._persistence.saved
        ready = []
        while self._entries and self._entries[0][0] <= saved:
            ready.append(self._entries.popleft()[1])
        self.has_connack = self.has_connack and not ready
        data = b"".join(ready)
        self.bytes -= len(data)
        self._connection.released(self, data, self._ticket <= saved)
