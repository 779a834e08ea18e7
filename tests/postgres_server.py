"""A PostgreSQL server of Debian's package, in a process of its own, for the tests of a run."""

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg


def binaries() -> Path | None:
    """Where PostgreSQL's programs are; None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class PostgresServer:
    """A server with an empty database, which a test may kill and start again."""

    def __init__(self, *settings: str) -> None:
        self.bin = binaries()
        assert self.bin is not None, "PostgreSQL is missing: run tools/install-servers"
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
        self._make()
        self.start()

    def _make(self) -> None:
        self._call("initdb", "-D", str(self.data), "-A", "trust", "-E", "UTF8", "-N", "-U", self.user)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        arguments = [word for setting in (*options, *self.settings) for word in ("-c", setting)]
        until_s = time.monotonic() + 30
        self.process = self._popen("postgres", "-D", str(self.data), *arguments)
        while True:
            ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if self.process.poll() is not None:  # processes of the one before may not be quite gone
                assert time.monotonic() < until_s, "PostgreSQL did not start"
                self.process = self._popen("postgres", "-D", str(self.data), *arguments)
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server as a crash would."""
        self.process.send_signal(signal.SIGSTOP)  # so that it starts no more children
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it where it is: connections stay, and nothing is answered."""
        for process in (self.process.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on as if nothing had been."""
        for process in (*self._children(), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its files."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    def _call(self, program: str, *arguments: str) -> None:
        assert self._popen(program, *arguments).wait() == 0

    def _popen(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        assert self.bin is not None
        return subprocess.Popen(
            [str(self.bin / program), *arguments],
            user=self.user if os.getuid() == 0 else None,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
        )


class StandbyServer(PostgresServer):
    """A standby of another server."""

    def __init__(self, primary: PostgresServer, *settings: str) -> None:
        self._primary = primary
        super().__init__(*settings)

    def _make(self) -> None:
        source = ("-h", "127.0.0.1", "-p", str(self._primary.port), "-U", self.user)
        self._call("pg_basebackup", "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "-N", *source)

    def promote(self) -> None:
        """Make it a primary."""
        self._call("pg_ctl", "promote", "-w", "-D", str(self.data))


class ReplicatedServers:
    """A primary that acknowledges only what its standby has."""

    def __init__(self) -> None:
        self.primary = PostgresServer("synchronous_standby_names=*", "fsync=off")
        self.standby = StandbyServer(self.primary, "fsync=off")

    def is_waiting(self) -> bool:
        """Whether a commit waits for the standby."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            query = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
            return connection.execute(query).fetchone() != (0,)

    def until_waiting(self) -> None:
        """Return when a commit waits for the standby."""
        while not self.is_waiting():
            pass

    def stop(self) -> None:
        """End both."""
        self.standby.stop()
        self.primary.stop()


@cache
def shared_server() -> PostgresServer:
    """Start the one server that tests share which don't harm it; what they write may be lost in a power cut."""
    server = PostgresServer("fsync=off", "max_connections=50")
    atexit.register(server.stop)
    return server


def new_schema() -> str:
    """Return a name for a schema that no test had."""
    return f"test_{uuid.uuid4().hex[:12]}"
