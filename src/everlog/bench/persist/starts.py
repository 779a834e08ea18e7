"""How long a server takes to begin again with many streams: from the start of its process to the first answer."""

import time

from everlog.bench.persist.asking import ask_all
from everlog.bench.persist.contenders import Contender, Running
from everlog.bench.persist.outcome import Outcome
from everlog.bench.persist.questions import Asked
from everlog.bench.persist.scale import Scale
from everlog.streams import Level

_FLIGHT = 64


def start_again(contender: Contender, running: Running, scale: Scale) -> Outcome:
    """Make streams of one message each, end the processes in order, and start them on the same directory."""
    asked = contender.questions()
    ask_all(running, asked.begin(scale.started))
    calls = [asked.append(number, scale.size, Level.FSYNC, False) for number in range(scale.started)]
    ask_all(running, Asked([one.requests[0] for one in calls], calls[0].mark), _FLIGHT)
    running.stop()
    begun = time.monotonic()
    contender.start(running.folder, running)
    ask_all(running, calls[scale.started // 2])
    return Outcome(1, time.monotonic() - begun, running.cpu_s(), 0.0, resident_mb=running.resident_mb())
