"""The event loop that a broker runs on: what is called there soon, from any thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class OwnLoop:
    """The loop, once `begin` was called on it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self.takes_to_end: Callable[[Callable[[], None]], bool] = lambda call: False  # calls it after this turn's reads

    def begin(self) -> asyncio.AbstractEventLoop:
        """Take the loop that runs, and return it."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        return self._loop

    def soon(self, call: Callable[[], None]) -> object:
        """Have something called in the next turn, from the loop's own thread."""
        assert self._loop is not None
        return self._loop.call_soon(call)

    def at_end(self, call: Callable[[], None]) -> object:
        """Have something called after all that is read in this turn: at its end, or in the next turn."""
        return self.takes_to_end(call) or self.soon(call)

    def wake(self, call: Callable[[], None]) -> None:
        """Have something called on the loop's thread, from any."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended while a commit was under way
            if threading.get_ident() == self._thread:
                self._loop.call_soon(call)
            else:
                self._loop.call_soon_threadsafe(call)
