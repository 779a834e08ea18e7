"""Requests that prepare a case: each is asked once."""

import time

from everlog.bench.persist.contenders import Running
from everlog.bench.persist.load_loop import LoadLoop
from everlog.bench.persist.questions import Asked

WAIT_S = 120.0
_EACH_S = 0.1  # JetStream takes the longer to make a stream the more it has


def ask_all(running: Running, asked: Asked, in_flight: int = 1) -> None:
    """Ask each request once; the first until somebody answers."""
    for attempt in range(100):
        with LoadLoop(running.url) as loop:
            link = loop.connect()
            loop.ask(link, asked.requests, asked.mark, in_flight)
            loop.budget.left = len(asked.requests)
            is_first = len(asked.requests) == 1 and attempt < 99
            deadline = time.monotonic() + (0.3 if is_first else WAIT_S + _EACH_S * len(asked.requests))
            loop.push()
            while link.done + link.refused < len(asked.requests) and time.monotonic() < deadline:
                loop.turn(0.01)
            if link.done >= len(asked.requests):
                return
