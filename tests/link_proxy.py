"""A proxy between two processes that cuts their connections, or holds back what they send as a lost network does."""

import asyncio
import contextlib


class LinkProxy:
    """Passes on what comes to `address` to `target`, unless it is told otherwise."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._marks: tuple[bytes, ...] = ()
        self.is_stalled = asyncio.Event()

    async def start(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def cut(self, *, refuse: bool = False) -> None:
        """End all connections; and take no others until `release`."""
        self._refuses = refuse
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Let nothing pass in either direction."""
        self._flows.clear()

    def stall_at(self, *marks: bytes) -> None:
        """Pass on half of the next piece that has all these bytes in it, and nothing behind it on that connection."""
        self._marks = marks
        self.is_stalled.clear()

    def release(self) -> None:
        """Let everything pass, what was held too."""
        self._refuses = False
        self._flows.set()

    async def close(self) -> None:
        """End."""
        self.cut(refuse=True)
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self._refuses:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        host, _, port = self.target.rpartition(":")
        try:
            there, to = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._writers |= {writer, to}
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(self._pass(reader, to), self._pass(there, writer))
        finally:
            for one in (writer, to):
                one.transport.abort()
                self._writers.discard(one)
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._flows.wait()
            if self._marks and all(mark in data for mark in self._marks):
                self._marks = ()
                writer.write(data[: len(data) // 2])
                self.is_stalled.set()
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
