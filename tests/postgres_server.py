"""A PostgreSQL server of Debian's package, in a process of its own, for the tests of a run."""

import atexit
import os
import signal
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg

from everlog.bench.cluster import postgres


class PostgresServer(postgres.PostgresServer):
    """A server which a test may kill or freeze and let go on."""

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

    def promote(self) -> None:
        """Make a standby a primary."""
        self.call("pg_ctl", "promote", "-w", "-D", str(self.data))

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in listed.split()]


class ReplicatedServers:
    """A primary that acknowledges only what its standby has."""

    def __init__(self) -> None:
        self.primary = PostgresServer("synchronous_standby_names=*", "fsync=off")
        self.standby = PostgresServer("fsync=off", standby_of=self.primary)

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
