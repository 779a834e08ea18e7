"""A thread that runs a step whenever it is woken: no timer, no polling."""

import threading
from collections.abc import Callable


class Worker:
    """Runs `step` once a wake, and again as long as `step` says that there may be more."""

    def __init__(self, name: str, step: Callable[[], bool], gave_up: Callable[[Exception], None]) -> None:
        self._step = step
        self._gave_up = gave_up
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ask for a step; cheap when one is asked for already."""
        if not self._wanted.is_set():
            self._wanted.set()

    def stop(self) -> None:
        """Finish the step at hand and end."""
        self._stopping = True
        self._wanted.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wanted.wait()
                self._wanted.clear()
                while not self._stopping and self._step():
                    pass
        except Exception as error:  # noqa: BLE001 - the thread is the edge that gives up
            self._gave_up(error)
