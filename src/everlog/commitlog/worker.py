"""A thread that runs a step whenever it is woken; it wakes by itself only while there is something to try again."""

import contextlib
import threading
from collections.abc import Callable


class Worker:
    """A thread that runs `step` once for a wake, and again as long as `step` says that there may be more.

    `rest_s` says after how many seconds it runs without a wake; None for never.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        gave_up: Callable[[Exception], None],
        rest_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._step = step
        self._gave_up = gave_up
        self._rest_s = rest_s
        self._gate = threading.Lock()  # open when a step is wanted; an Event costs several times as much
        self._gate.acquire()
        self._wanted = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ask for a step; cheap when one is asked for already."""
        if not self._wanted:
            self._wanted = True
            with contextlib.suppress(RuntimeError):  # two at once: the first has opened it
                self._gate.release()

    def stop(self) -> None:
        """Finish the current step and end the thread."""
        self._stopping = True
        with contextlib.suppress(RuntimeError):
            self._gate.release()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                rest_s = self._rest_s()
                self._gate.acquire(timeout=-1 if rest_s is None else rest_s)
                self._wanted = False  # before the step, so that what is wanted during it is not forgotten
                while not self._stopping and self._step():
                    pass
        except Exception as error:  # noqa: BLE001 - the thread is the edge that gives up
            self._gave_up(error)
