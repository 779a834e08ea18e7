"""A connection over WebSocket for a client that expects a transport: bytes in, bytes out."""

import asyncio
import ssl
from typing import Any

from everlog.base import UsageError


class WebSocketWire(asyncio.Transport):
    """The transport of an asyncio protocol, over a WebSocket; `open_websocket` makes one."""

    def __init__(self, socket: Any, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._socket = socket
        self._protocol = protocol
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, in a message of their own."""
        if data:
            self._out.put_nowait(bytes(data))

    def close(self) -> None:
        """End when everything is sent."""
        self._out.put_nowait(None)

    def abort(self) -> None:
        """End now."""
        for task in self._tasks:
            task.cancel()
        self._socket.transport.abort()

    def is_closing(self) -> bool:
        """Return whether it has ended."""
        return all(task.done() for task in self._tasks)

    def pause_reading(self) -> None:
        """Do nothing: the library's own queue is short."""

    def resume_reading(self) -> None:
        """Do nothing."""

    async def _read(self) -> None:
        error: Exception | None = None
        try:
            async for message in self._socket:
                self._protocol.data_received(message if isinstance(message, bytes) else message.encode())
        except OSError as found:
            error = found
        finally:
            self._tasks[1].cancel()
            self._protocol.connection_lost(error)

    async def _write(self) -> None:
        while (data := await self._out.get()) is not None:
            await self._socket.send(data)
        await self._socket.close()


async def open_websocket(protocol: asyncio.Protocol, url: str, tls: ssl.SSLContext | None, bind: str | None) -> None:
    """Connect a protocol to a broker over WebSocket; raises OSError if that can't be."""
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake
    except ImportError:
        raise UsageError(f"{url} needs the package websockets", hint="pip install 'everlog[web]'") from None
    local = {} if bind is None else {"local_addr": (bind, 0)}
    try:
        opened = await connect(url, subprotocols=["mqtt"], ssl=tls, max_size=None, proxy=None, **local)  # type: ignore[list-item, arg-type]
    except InvalidHandshake as error:
        raise OSError(str(error)) from error
    protocol.connection_made(WebSocketWire(opened, protocol))
