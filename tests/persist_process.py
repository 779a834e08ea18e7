"""`everlog persist serve` in a process of its own: killed, stopped, put to sleep and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PATIENCE_S = 120.0


def loading_first(library: Path) -> str:
    """Return the PYTHONPATH with which a process finds a directory before all else, and then what this one finds."""
    return os.pathsep.join(filter(None, [str(library), os.environ.get("PYTHONPATH")]))


class PersistProcess:
    """A persist server with its data in `directory/NAME`."""

    def __init__(
        self,
        directory: Path,
        bus: str,
        *arguments: str,
        name: str = "streams",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.data = directory / name
        self.log = directory / f"{name}.log"
        self._command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(self.data), "--bus", bus]
        self._command += ["--log-level", "error", *arguments]
        self._variables = os.environ | (variables or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PersistProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._close()

    def begin(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, env=self._variables)

    def await_start(self) -> None:
        """Wait until it says that it serves."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert b" serves " in line, f"the persist server did not start: {self.log.read_text()}"

    def start(self) -> None:
        """Start it and wait until it says that it serves."""
        self.begin()
        self.await_start()

    def kill(self) -> None:
        """Kill it."""
        self._living().kill()
        self._close()

    def sleep(self) -> None:
        """Stop it where it is."""
        self._living().send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self._living().send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop it in order."""
        self._living().send_signal(signal.SIGTERM)
        self.await_end()

    def await_end(self) -> None:
        """Wait until it has ended in order."""
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self.log.read_text()
        self._close()

    def _living(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        assert self._process.poll() is None, f"the persist server ended by itself: {self.log.read_text()}"
        return self._process

    def _close(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
