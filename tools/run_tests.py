"""Runs the parts of the tests, two at a time, and names in its last lines what failed.

`tools/run_tests.py [PART ...]`; each part is a run of pytest of its own, whose output is in build/tests/PART.log.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

UNITS = ("tests/unit", "tests/contracts", "tests/fuzz", "tests/properties")
WITHOUT_KERNELS = (
    *(f"tests/unit/{room}" for room in ("app", "bench", "cli", "client", "ownership", "tiering", "web")),
    *(f"tests/contracts/test_{port}.py" for port in ("buckets", "bus", "client", "journal", "ownership", "requests")),
)
PARTS = {  # the longest first
    "system": ["tests", "--ignore=tests/spark", *(f"--ignore={folder}" for folder in UNITS), "-m", "not soak"],
    "units": [*UNITS, "-m", "not soak"],
    "spark": ["tests/spark", "-m", "core"],
    "interpreted": [*UNITS[:3], *(f"--ignore={path}" for path in WITHOUT_KERNELS), "-m", "not soak"],
}
JOBS = 2
TELL_EVERY_S = 30
LOGS = Path("build/tests")
RESULT = re.compile(r"^(tests/\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
SUMMARY = re.compile(r"^(?:FAILED|ERROR) (tests/.*)")


class Part:
    """One run of pytest: how far it is, and in the end what failed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log = LOGS / f"{name}.log"
        self.count = 0
        self.failed: list[str] = []
        self.status: int | None = None
        self.last = ""
        self.process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Run it; what fails is told at once."""
        command = [sys.executable, "-m", "pytest", "-v", "--color=no", *PARTS[self.name]]
        pure = {"EVERLOG_PURE": "1"} if self.name == "interpreted" else {}
        with self.log.open("w") as log, pytest(command, COLUMNS="250", **pure) as self.process:
            for line in self.process.stdout or ():
                log.write(line)
                log.flush()
                self._read(line.rstrip())
        self.status = self.process.returncode

    def _read(self, line: str) -> None:
        if found := RESULT.match(line):
            self.count += 1
            if found[2] in ("FAILED", "ERROR"):
                say(f"{self.name}: {found[2]} {found[1]}")
        elif found := SUMMARY.match(line):
            self.failed.append(found[1])
        self.last = line or self.last

    def failures(self) -> str:
        """Return what pytest says of the failures, or its last lines where it got no further."""
        lines = self.log.read_text(errors="replace").splitlines()
        heads = [number for number, line in enumerate(lines) if re.match(r"=+ (FAILURES|ERRORS) =+$", line)]
        return "\n".join(lines[heads[0] :] if heads else lines[-30:])


def pytest(command: list[str], **variables: str) -> "subprocess.Popen[str]":
    """Start a run whose output can be read."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    return subprocess.Popen(command, env=os.environ | variables, **streams)


def say(text: str) -> None:
    """Print a line, over the line of progress if there is one."""
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True)


def work(waiting: "SimpleQueue[Part]") -> None:
    """Run parts until none is left."""
    while True:
        try:
            part = waiting.get_nowait()
        except Empty:
            return
        part.run()
        say(f"{part.name}: {part.last.strip('= ')}")


def watch(parts: list[Part], threads: list[threading.Thread]) -> None:
    """Show how far the parts are until all have ended."""
    began, told = time.monotonic(), time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        now = time.monotonic()
        line = f"{now - began:4.0f} s  " + ", ".join(f"{one.name} {one.count}" for one in parts if one.status is None)
        if sys.stdout.isatty():
            print(f"\r\033[K{line}", end="", flush=True)
        elif now - told >= TELL_EVERY_S:
            told = now
            say(line)


def end(parts: list[Part], waiting: "SimpleQueue[Part]") -> None:
    """Begin no more parts, and interrupt those that run."""
    while not waiting.empty():
        waiting.get()
    for part in parts:
        if part.process is not None and part.status is None:
            part.process.send_signal(signal.SIGINT)


def main(names: list[str]) -> int:
    """Run the parts, then print all that failed in any of them."""
    LOGS.mkdir(parents=True, exist_ok=True)
    parts = [Part(name) for name in names]
    waiting: SimpleQueue[Part] = SimpleQueue()
    for part in parts:
        waiting.put(part)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where SIGINT was ignored, which the parts would inherit
        signal.signal(number, signal.default_int_handler)
    threads = [threading.Thread(target=work, args=(waiting,)) for _ in range(JOBS)]
    for thread in threads:
        thread.start()
    try:
        watch(parts, threads)
    except KeyboardInterrupt:
        end(parts, waiting)
        return 130
    broken = [part for part in parts if part.status]
    for part in broken:
        say(f"\n{part.name}, see {part.log}:\n{part.failures()}")
    for part in broken:
        for test in part.failed or [f"pytest ended with status {part.status}"]:
            say(f"FAILED in {part.name}: {test}")
    say(f"{sum(part.count for part in parts)} tests, {len(broken)} of {len(parts)} parts failed")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PARTS)))
