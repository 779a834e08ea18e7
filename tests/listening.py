"""Listeners on the broker of a test, and what to poll with."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from everlog.broker import Listener, Listening, listen
from tests.brokers import RunningBroker

T = TypeVar("T")


def on_loop(running: RunningBroker, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the broker's thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, running._loop).result(20)


@contextmanager
def opened(running: RunningBroker, *listeners: Listener) -> Iterator[Listening]:
    """The listeners open on the broker, until the block ends."""
    listening = on_loop(running, listen(running.broker.connections, listeners))
    try:
        yield listening
    finally:
        running.call(listening.close)


def eventually(condition: Callable[[], T], what: str, seconds: float = 20) -> T:
    """The first true value that the condition has; an assertion when it never has one."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
