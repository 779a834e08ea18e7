"""Threads that wait for an offset to be committed; each is woken once, when its own offset is."""

import threading
from collections.abc import Callable


class Waiters:
    """The threads that wait, each for an offset; at most one entry per thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.waiting: list[tuple[int, threading.Lock]] = []

    def wait(self, offset: int, ready: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `wake` is called for the offset, unless it is ready already; return at a timeout."""
        gate = threading.Lock()
        gate.acquire()
        entry = (offset, gate)
        with self._guard:
            if ready():  # looked at under the guard, so a wake can't come in between
                return
            self.waiting.append(entry)
        if not gate.acquire(timeout=-1 if timeout is None else timeout):
            with self._guard:
                if entry in self.waiting:
                    self.waiting.remove(entry)

    def wake(self, committed: int | None = None) -> None:
        """Wake those whose offset is committed, or all; what they look at must have been set before."""
        if not self.waiting:
            return
        with self._guard:
            if committed is None:
                woken, self.waiting = self.waiting, []
            else:
                woken = [entry for entry in self.waiting if entry[0] <= committed]
                if woken:
                    self.waiting = [entry for entry in self.waiting if entry[0] > committed]
        for _, gate in woken:
            gate.release()
