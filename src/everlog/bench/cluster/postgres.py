"""A PostgreSQL server of Debian's package, in a process and a directory of its own that are gone afterwards."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from everlog.base import Unavailable

_START_S = 30.0


def binaries() -> Path | None:
    """Where PostgreSQL's programs are; None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class PostgresServer:
    """A server with an empty database, or a standby of another server."""

    def __init__(self, *settings: str, standby_of: Self | None = None) -> None:
        found = binaries()
        if found is None:
            raise Unavailable("PostgreSQL is missing", hint="run tools/install-servers")
        self.bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="everlog-postgres-"))
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            shutil.chown(self.folder, self.user, self.user)
        self.data = self.folder / "data"
        self.settings = settings
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"
        if standby_of is None:
            self.call("initdb", "-D", str(self.data), "-A", "trust", "-E", "UTF8", "-N", "-U", self.user)
        else:
            source = ("-h", "127.0.0.1", "-p", str(standby_of.port), "-U", self.user)
            self.call("pg_basebackup", "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "-N", *source)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        arguments = [word for setting in (*options, *self.settings) for word in ("-c", setting)]
        until_s = time.monotonic() + _START_S
        self.process = self._popen("postgres", "-D", str(self.data), *arguments)
        while True:
            ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if self.process.poll() is not None:  # processes of the one before may not be quite gone
                if time.monotonic() > until_s:
                    raise Unavailable("PostgreSQL did not start")
                self.process = self._popen("postgres", "-D", str(self.data), *arguments)
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server and remove its files."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the user that the server has."""
        if self._popen(program, *arguments).wait() != 0:
            raise Unavailable(f"{program} failed")

    def _popen(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(self.bin / program), *arguments],
            user=self.user if os.getuid() == 0 else None,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
        )


@contextlib.contextmanager
def synchronous_pair() -> Iterator[str]:
    """Run a primary that syncs and waits for a standby that syncs, for the length of a block; return its address."""
    with contextlib.ExitStack() as parts:
        primary = PostgresServer("synchronous_standby_names=*")
        parts.callback(primary.stop)
        standby = PostgresServer(standby_of=primary)
        parts.callback(standby.stop)
        yield primary.url
