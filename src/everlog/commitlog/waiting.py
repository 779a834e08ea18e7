"""Threads that wait for an offset to be committed: each is woken once, when its own offset is, and not before."""

import threading
from collections.abc import Callable


class Waiters:
    """Who waits, and for which offset. As many as there are threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[tuple[int, threading.Lock]] = []

    def wait(self, offset: int, ready: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `wake` is called for the offset, or it is ready already; a timeout just returns."""
        gate = threading.Lock()
        gate.acquire()
        entry = (offset, gate)
        with self._guard:
            if ready():  # looked at under the guard, so a wake can't come in between
                return
            self._waiting.append(entry)
        if not gate.acquire(timeout=-1 if timeout is None else timeout):
            with self._guard:
                if entry in self._waiting:
                    self._waiting.remove(entry)

    def wake(self, committed: int | None = None) -> None:
        """Wake those whose offset is committed; without an offset, all. What they look at has been set before."""
        if not self._waiting:
            return
        with self._guard:
            if committed is None:
                woken, self._waiting = self._waiting, []
            else:
                woken = [entry for entry in self._waiting if entry[0] <= committed]
                if woken:
                    self._waiting = [entry for entry in self._waiting if entry[0] > committed]
        for _, gate in woken:
            gate.release()
