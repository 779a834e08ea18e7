"""Ten thousand connections, each with a stream of its own, on two servers of which one is killed and one is drained.

The load generator asks again what was not answered. Every connection appends to its own stream, and each good answer is
to another message: in the end a stream has at least as many messages as its connection was told.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from everlog.bench.persist.backlog import BacklogWatch
from everlog.bench.persist.contenders import Contender, Running, start_nats, start_process
from everlog.bench.persist.load_loop import LoadLoop
from everlog.bench.persist.outcome import Outcome
from everlog.bench.persist.questions import EverlogQuestions
from everlog.bench.persist.scale import Scale
from everlog.client import NotFound, connect
from everlog.streams import Level

SHARDS = 16
_NAMES = "ab"
_OUT_BYTES = 1024  # of a connection that has one request under way
_LOST_S = 2  # without an answer, before it is asked again
_CHECKS = 200  # streams that are looked at at once
_WAIT_S = 120.0


class TwoServers(Contender):
    """A NATS server without JetStream, and two persist servers on a directory that they share."""

    name = "everlog-two"

    def start(self, folder: Path, running: Running) -> None:
        """Start all three."""
        start_nats(folder, running, "max_connections: 64K\n")
        for name in _NAMES:
            start_server(folder, running, name)

    def questions(self) -> EverlogQuestions:
        """Return how they are asked."""
        return EverlogQuestions(SHARDS)


def start_server(folder: Path, running: Running, name: str) -> None:
    """Start a persist server, the last of the processes then."""
    command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(folder / name), "--name", name]
    storage = ["--storage", str(folder / "shared"), "--shards", str(SHARDS)]
    start_process(running, [*command, *storage, "--bus", running.url, "--log-level", "error"], b" serves ")


class Fleet:
    """The connections, and what is known of them second by second."""

    def __init__(self, loop: LoadLoop, running: Running, folder: Path, scale: Scale) -> None:
        self._loop = loop
        self._running = running
        self._folder = folder
        self._seconds = scale.fleet_s
        self._second = 0
        self._told = [0] * scale.fleet  # what each connection had been told when it was last told something
        self._silent = [0] * scale.fleet  # for so many seconds it was told nothing
        self.longest = 0
        self.again = 0
        self.resident_mb = 0.0
        self.descriptors = 0

    def each_second(self) -> None:
        """Do what is to be done at this time, and note how servers and connections are."""
        self._second += 1
        for part, happens in ((4, self._kill), (8, self._return), (12, self._drain)):
            if self._second == round(self._seconds * part / 20):
                happens()
        self._look_at_servers()
        for number, link in enumerate(self._loop.links):
            if link.done != self._told[number]:
                self._told[number], self._silent[number] = link.done, 0
                continue
            self._silent[number] += 1
            self.longest = max(self.longest, self._silent[number])
            if link.in_flight and self._silent[number] % _LOST_S == 0:
                link.ask_again()
                self.again += 1
                link.write()

    def _kill(self) -> None:
        self._end(self._running.processes[1], signal.SIGKILL)

    def _return(self) -> None:
        """Start the one that was killed anew."""
        threading.Thread(target=start_server, args=(self._folder, self._running, _NAMES[0])).start()

    def _drain(self) -> None:
        self._end(self._running.processes[1], signal.SIGTERM)

    def _end(self, process: "subprocess.Popen[bytes]", how: int) -> None:
        self._running.ended(process)
        process.send_signal(how)

    def _look_at_servers(self) -> None:
        for process in self._running.processes[1:]:
            self.resident_mb = max(self.resident_mb, resident_mb(process.pid))
            self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{process.pid}/fd")))


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def play(contender: Contender, running: Running, scale: Scale) -> Outcome:
    """Let all connections append for a time in which servers come and go; then count what is there."""
    asked = contender.questions()
    with LoadLoop(running.url) as loop:
        for number in range(scale.fleet):
            one = asked.append(number, scale.size, Level.FSYNC, False)
            loop.ask(loop.connect(out_bytes=_OUT_BYTES), one.requests, one.mark, 1)
        loop.run(_LOST_S)  # files are made
        fleet = Fleet(loop, running, running.folder, scale)
        before, worked, mine, begun = loop.done, running.cpu_s(), time.process_time(), time.monotonic()
        loop.times.clear()
        with BacklogWatch(running.url) as watch:
            loop.run(scale.fleet_s, 0.0, fleet.each_second)
        seconds, done = time.monotonic() - begun, loop.done - before
        cpu_s, load_s = running.cpu_s() - worked, time.process_time() - mine
        for link in loop.links:
            link.stop()
        loop.turn(1.0)
        told = [link.done for link in loop.links]
    lost = asyncio.run(_lost(running.url, told))
    return Outcome(
        done,
        seconds,
        cpu_s,
        load_s,
        loop.times.quantile(0.5) / 1e6,
        loop.times.quantile(0.99) / 1e6,
        0,
        fleet.resident_mb,
        {
            "descriptors": fleet.descriptors,
            "pause_s": fleet.longest,
            "again": fleet.again,
            "lost": lost,
            **watch.figures(),
        },
    )


async def _lost(url: str, told: list[int]) -> int:
    """Return how many messages are missing of those that connections were told to be written."""
    async with connect(url, timeout_s=_WAIT_S) as client:

        async def missing(number: int) -> int:
            try:
                found = (await client.stream(f"bench/{number}").info()).messages
            except NotFound:
                found = 0
            return max(0, told[number] - found)

        lost = 0
        for first in range(0, len(told), _CHECKS):
            lost += sum(await asyncio.gather(*map(missing, range(first, min(first + _CHECKS, len(told))))))
    return lost
