"""A client of the persistence service over any bus."""

from types import TracebackType

from everlog.bus import Bus, Welcome, make_bus
from everlog.client.kv import KV
from everlog.client.named import MessageIds
from everlog.client.requester import TIMEOUT_S, Requester
from everlog.client.stream import Stream
from everlog.streams import Level

DEFAULT_URL = "mqtt://127.0.0.1:1883"


class Client:
    """Streams and key-value stores by name. `async with`, or `open` and `close`, bracket its life."""

    def __init__(self, bus: Bus, *, level: Level = Level.FSYNC, timeout_s: float = TIMEOUT_S) -> None:
        self._requester = Requester(bus, timeout_s)
        self._ids = MessageIds()
        self._level = level

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and find a server."""
        await self._requester.open()

    async def close(self) -> None:
        """Leave."""
        await self._requester.close()

    def stream(self, name: str, level: Level | None = None) -> Stream:
        """Return a stream; nothing is sent yet."""
        return Stream(self._requester, self._ids, name, self._level if level is None else level)

    def kv(self, name: str, level: Level | None = None) -> KV:
        """Return a key-value store; nothing is sent yet."""
        return KV(self._requester, self._ids, name, self._level if level is None else level)

    def shard_of(self, name: str) -> int:
        """Return the state shard of a name."""
        return self._requester.shard_of(name)

    async def servers(self, wait_s: float = 0.5) -> list[Welcome]:
        """Return all servers that answer within a time."""
        return await self._requester.greet(wait_s, all=True)


def connect(url: str = DEFAULT_URL, *, level: Level = Level.FSYNC, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client for one or several addresses of a bus, for `async with`: see `make_bus`."""
    return Client(make_bus(url), level=level, timeout_s=timeout_s)
