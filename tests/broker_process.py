"""`everlog serve` in a process of its own, killed and started again on the same data and port."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from everlog.bench.load.brokers import free_port
from everlog.bench.load.slow_sync import slow_syncs
from tests.raw_client import RawClient

PATIENCE_S = 120.0  # for what a busy machine with a slow disk does at once otherwise


class BrokerProcess:
    """A broker with its data in `directory/data`; each sync of that takes `sync_ms` longer. Arguments are flags.

    One that `may_stall` does so in syncs, as `slow_syncs` has it.
    """

    def __init__(self, directory: Path, *arguments: str, sync_ms: int = 0, may_stall: bool = False) -> None:
        self.port = free_port()
        self.data = directory / "data"
        self._command = [sys.executable, "-m", "everlog", "serve", "--port", str(self.port), "--data", str(self.data)]
        self._command += ["--http-port", "none", *arguments]
        slow = slow_syncs(directory, self.data, sync_ms) if sync_ms or may_stall else {}
        self._environment = {**os.environ, **slow, "PYTHONFAULTHANDLER": "1"}
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            print(f"the broker's status is {self._process.poll()}")
            self._process.send_signal(signal.SIGABRT)  # it says where it stands, on standard error
        elif self._process.poll() is None:
            self.stop()
        self._process.wait()

    def start(self) -> None:
        """Start it; it is not awaited."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, env=self._environment)

    def client(self, version: int = 5) -> RawClient:
        """A connection to it, once it listens; the CONNECT is the caller's."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return RawClient(self.port, version, deadline_s=PATIENCE_S)
            assert self._process.poll() is None, "the broker ended by itself"
            assert time.monotonic() < deadline, "the broker does not listen"
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, number: int) -> None:
        """Send a signal to it; it must be running."""
        assert self._process.poll() is None, "the broker ended by itself"
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, also where it is stopping already."""
        self._process.kill()
        assert self._process.wait() in (0, -signal.SIGTERM, -signal.SIGKILL)

    def stop(self) -> None:
        """Stop it in order."""
        self.send(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0
