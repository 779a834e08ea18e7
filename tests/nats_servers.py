"""A NATS server (core, no JetStream) in a process of its own, stopped and started again on the same port."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from everlog.bench.load.brokers import free_port

PROGRAM = shutil.which("nats-server", path="/usr/local/sbin:/usr/sbin:/usr/bin:/usr/local/bin")
needs_nats = pytest.mark.skipif(PROGRAM is None, reason="needs nats-server: run tools/install-servers")


class NatsServer:
    """`with NatsServer(directory) as server:`; `config` is more of its configuration."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = directory / f"nats-{self.port}.conf"
        self._config.write_text(f'host: "127.0.0.1"\nport: {self.port}\n{config}\n')
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [str(PROGRAM), "-c", str(self._config)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "nats-server does not listen"
                assert self._process.poll() is None, "nats-server ended"
                time.sleep(0.01)

    def stop(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
