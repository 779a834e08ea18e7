"""The client without async: the same objects, whose methods wait. The event loop runs on a thread of its own."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from everlog.base import UsageError
from everlog.client.client import DEFAULT_URL, Client, connect
from everlog.client.errors import not_open
from everlog.client.kv import KV
from everlog.client.queue import Queue
from everlog.client.requester import TIMEOUT_S
from everlog.client.stream import Stream
from everlog.client.watch import Watch
from everlog.streams import Level

T = TypeVar("T")
_END_S = 1.0  # for calls of other threads to end by themselves, when the client is closed


class LoopThread:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everlog-client", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and return its result here; raises UsageError if the thread has ended."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise not_open() from None
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def walk(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an async iterator yields there."""

        async def step() -> T:
            return await anext(items)

        async def close() -> None:
            if inspect.isasyncgen(items):
                await items.aclose()

        try:
            while True:
                try:
                    item = self.wait(step())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            with contextlib.suppress(UsageError):  # at the end of the thread it was closed
                self.wait(close())

    def stop(self) -> None:
        """End the thread, and what still runs there."""
        self.wait(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=_END_S)  # they are told that the client is closed
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class Blocking:
    """A `Client`, `Stream`, `KV`, `Queue` or `Watch` whose methods wait for their result, and whose iterators block."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._wrapped(found) if callable(found) else found

    def __iter__(self) -> Iterator[Any]:
        return self._thread.walk(aiter(self._inner))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if inspect.iscoroutine(result):
                return thread.wait(result)
            if inspect.isasyncgen(result):
                return thread.walk(result)
            return Blocking(thread, result) if isinstance(result, Stream | KV | Queue | Watch) else result

        return call


class BlockingClient:
    """A client for `with`: gives a `Blocking` around the `Client` that `opened` gives for `async with`."""

    def __init__(self, opened: AbstractAsyncContextManager[Client]) -> None:
        self._opened = opened
        self._thread: LoopThread | None = None

    def __enter__(self) -> Blocking:
        thread = LoopThread()
        try:
            client = thread.wait(_enter(self._opened))
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return Blocking(thread, client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        try:
            thread.wait(_leave(self._opened))
        finally:
            thread.stop()


async def _enter(opened: AbstractAsyncContextManager[Client]) -> Client:
    return await opened.__aenter__()


async def _leave(opened: AbstractAsyncContextManager[Client]) -> None:
    await opened.__aexit__(None, None, None)


def connect_blocking(
    url: str = DEFAULT_URL, *, level: Level = Level.FSYNC, timeout_s: float = TIMEOUT_S
) -> BlockingClient:
    """Return a client for one or several addresses of a bus, for `with`."""
    return BlockingClient(connect(url, level=level, timeout_s=timeout_s))
