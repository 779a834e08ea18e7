"""A proxy for processes, on a thread of its own: it delays what passes, holds or cuts it, and lets it go on.

What was held is passed on when it is let go, also if whoever sent it is gone by then.
"""

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from types import TracebackType

_WAIT_S = 60.0


@dataclass
class _Flow:
    """One direction of a connection."""

    pieces: "asyncio.Queue[tuple[float, bytes, bool]]" = field(default_factory=asyncio.Queue)  # due, data, is held
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go_on.set()


class FaultProxy:
    """`with FaultProxy(target) as proxy:` passes on what comes to `proxy.port`; any thread may call."""

    def __init__(self, target: int | str) -> None:
        """Take a port, or an address with one."""
        self.target = target if isinstance(target, str) else f"127.0.0.1:{target}"
        self.port = 0
        self.delay_s = 0.0  # of each piece, in both directions
        self.is_held = threading.Event()  # by a mark
        self._marks: tuple[bytes, ...] = ()
        self._both = self._half = False
        self._is_holding = False
        self._refuses = False
        self._flows: list[tuple[_Flow, _Flow]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        assert self._ready.wait(_WAIT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_WAIT_S)

    def hold_at(self, *marks: bytes, both: bool = False, half: bool = False) -> None:
        """Hold from the next piece on that has all these bytes in it, in its direction of its connection, or in both.

        Half of it may pass.
        """
        self.is_held.clear()
        self._both, self._half = both, half
        self._marks = marks

    def cut(self, *, refuse: bool = False) -> None:
        """End all connections; and take no others until `go_on`."""
        self._refuses = refuse
        self._loop.call_soon_threadsafe(self._cut)

    def hold(self) -> None:
        """Let nothing pass on any connection, as a network that is lost."""
        self._loop.call_soon_threadsafe(self._hold_all)

    def go_on(self) -> None:
        """Let everything pass, first what was held."""
        self._marks, self._refuses = (), False
        self._loop.call_soon_threadsafe(self._go_on)

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _hold_all(self) -> None:
        self._is_holding = True
        for pair in self._flows:
            for flow in pair:
                flow.go_on.clear()

    def _go_on(self) -> None:
        self._is_holding = False
        for pair in self._flows:
            for flow in pair:
                flow.go_on.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        host, _, port = self.target.rpartition(":")
        try:
            if self._refuses:
                raise ConnectionRefusedError
            there, to = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        pair = _Flow(), _Flow()
        if self._is_holding:
            for flow in pair:
                flow.go_on.clear()
        self._flows.append(pair)
        self._writers |= {writer, to}
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(
                    self._take(reader, pair, 0),
                    self._pass(pair[0], to),
                    self._take(there, pair, 1),
                    self._pass(pair[1], writer),
                )
        finally:
            self._flows.remove(pair)
            for one in (writer, to):
                one.transport.abort()
                self._writers.discard(one)
            self._tasks.discard(task)

    async def _take(self, reader: asyncio.StreamReader, pair: tuple[_Flow, _Flow], side: int) -> None:
        """Take in what one side sends, to its end."""
        flow = pair[side]
        data = b"-"
        while data:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            due = self._loop.time() + self.delay_s
            if self._marks and all(mark in data for mark in self._marks):
                self._marks = ()
                if self._half:
                    flow.pieces.put_nowait((due, data[: len(data) // 2], False))
                    data = data[len(data) // 2 :]
                for one in pair if self._both else (flow,):
                    one.go_on.clear()
                self.is_held.set()
            flow.pieces.put_nowait((due, data, True))

    async def _pass(self, flow: _Flow, writer: asyncio.StreamWriter) -> None:
        """Pass on what was taken in, when it is due."""
        while True:
            due, data, is_held = await flow.pieces.get()
            await asyncio.sleep(due - self._loop.time())
            if is_held:
                await flow.go_on.wait()
            if not data:
                raise ConnectionResetError  # both directions end
            writer.write(data)
            await writer.drain()
