"""The longest turn of a loop is told from outside, in the process that waits by epoll."""

import os
import subprocess
import sys
from pathlib import Path

from everlog.bench.load.turn_clock import TurnClock, turn_clock

TURNS = """
import select, time
events = select.epoll()
for worked_s in (0.0, 0.05, 0.01):
    events.poll(0)
    until = time.thread_time() + worked_s
    while time.thread_time() < until:
        pass
events.poll(0)
"""


def test_the_longest_turn_is_told(tmp_path: Path) -> None:
    environment = os.environ | turn_clock(tmp_path)
    subprocess.run([sys.executable, "-c", TURNS], env=environment, check=True)
    clock = TurnClock(environment["TURN_CLOCK_FILE"])
    found = clock.read()
    assert found["turns"] == 3
    assert 50 <= found["cpu_ms"] <= found["wall_ms"] + 1
    clock.reset()
    assert clock.read() == {"cpu_ms": 0.0, "wall_ms": 0.0, "turns": 0}
