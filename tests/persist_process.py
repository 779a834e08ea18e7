"""`everlog persist serve` in a process of its own, killed and started again on the same data and bus."""

import signal
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 120.0


class PersistProcess:
    """A persist server with its data in `directory/streams`."""

    def __init__(self, directory: Path, bus: str, *arguments: str) -> None:
        self.data = directory / "streams"
        self._command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(self.data), "--bus", bus]
        self._command += ["--log-level", "error", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PersistProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._close()

    def start(self) -> None:
        """Start it and wait until it says that it serves."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert b" serves " in self._process.stdout.readline(), "the persist server did not start"

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        assert self._process.poll() is None, "the persist server ended by itself"
        self._process.kill()
        self._close()

    def stop(self) -> None:
        """Stop it in order."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
