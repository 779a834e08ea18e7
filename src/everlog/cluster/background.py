"""Work beside the turns of the event loop that ends with its owner: tasks, and threads that make one call at a time."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Background:
    """The tasks and threads of one owner on the event loop's thread."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: list[ThreadPoolExecutor] = []

    def thread(self, name: str) -> ThreadPoolExecutor:
        """Return a thread of its own."""
        made = ThreadPoolExecutor(1, name)
        self._threads.append(made)
        return made

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something from now on, until it is done or the owner ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End all tasks; threads can still be used."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """Let the threads end when they are done with what they were asked."""
        for thread in self._threads:
            thread.shutdown(wait=False)
