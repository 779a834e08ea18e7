"""Brokers of a cluster as processes, for a measurement: made, started, ended, and their database cleared away."""

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everlog.base import Unavailable
from everlog.bench.load.brokers import STOP_S, answers, free_port
from everlog.bench.load.usage import cpu_of
from everlog.cluster import ClusterDatabase, ClusterStatus, find_cluster, read_status
from everlog.store import shard_of
from everlog.tiering import Database, open_bucket

START_S = 60.0
_COMMITS = 500
_EVERLOG = [sys.executable, "-P", "-m", "everlog"]
_SESSIONS = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """A broker that answers."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Return the processor time that it has taken."""
        return cpu_of(self.process.pid)


class BenchCluster:
    """Brokers, and who of them owns what."""

    def __init__(self, url: str, schema: str, shards: int, folder: Path) -> None:
        self.shards = shards
        self.brokers: list[BrokerProcess] = []
        self._database = ClusterDatabase(url, schema)
        self._folder = folder
        self._bucket = folder / "bucket"
        words = ["cluster", "init", url, "--bucket", str(self._bucket), "--shards", str(shards), "--schema", schema]
        subprocess.run([*_EVERLOG, *words], check=True, stdout=subprocess.DEVNULL)

    def start(self, names: str) -> None:
        """Start brokers, and wait until each of them owns shards."""
        for name in names:
            port = free_port()
            words = ["serve", "--cluster", self._database.url, "--set", f"cluster.schema={self._database.schema}"]
            words += ["--bucket", str(self._bucket), "--name", name, "--port", str(port), "--http-port", "none"]
            words += ["--data", str(self._folder / name)]
            with (self._folder / f"{name}.txt").open("wb") as lines:
                process = subprocess.Popen([*_EVERLOG, *words], stdout=lines, stderr=lines)
            self.brokers.append(BrokerProcess(name, port, process))
        for broker in self.brokers:
            if not answers(broker.port, broker.process):
                words = (self._folder / f"{broker.name}.txt").read_text(errors="replace").splitlines()
                raise Unavailable(f"broker {broker.name} did not start: {' | '.join(words[-3:])}")
        until = time.monotonic() + START_S
        while sum(one.shards > 0 for one in self._status().brokers) < len(self.brokers):
            if time.monotonic() > until:
                raise Unavailable("the brokers did not share the shards")
            time.sleep(0.1)

    def _status(self) -> ClusterStatus:
        return read_status(self._database, find_cluster(self._database, open_bucket(str(self._bucket))))

    def owner_of(self, topic: str) -> BrokerProcess:
        """Return the broker that owns the shard of a topic."""
        shard = shard_of(topic.encode(), self.shards)
        connection = self._database.connect()
        try:
            found = connection.call(
                lambda cursor: cursor.execute(
                    "select name from claims join incarnations on owner = number where thing = %s and is_alive",
                    (f"messages-{shard}",),
                ).fetchone()
            )
        finally:
            connection.close()
        if found is None:
            raise Unavailable(f"nobody owns shard {shard}")
        return next(one for one in self.brokers if one.name == found[0])

    def database_cpu_s(self) -> float:
        """Return the processor time of all connections of the database that are open, if it is on this machine."""
        connection = self._database.connect()
        try:
            found = connection.call(lambda cursor: cursor.execute(_SESSIONS).fetchall())
        finally:
            connection.close()
        return sum(cpu_of(pid) for (pid,) in found)

    def commit_us(self) -> float:
        """Return the median time of a small commit of the database, waited for by one connection."""
        connection, took = self._database.connect(), []
        try:
            for _ in range(_COMMITS):
                began = time.perf_counter()
                connection.call(lambda cursor: cursor.execute("select pg_logical_emit_message(true, 'bench', '')"))
                took.append(1e6 * (time.perf_counter() - began))
        finally:
            connection.close()
        return statistics.median(took)

    def stop(self) -> None:
        """End all brokers."""
        for broker in self.brokers:
            broker.process.terminate()
        for broker in self.brokers:
            try:
                broker.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                broker.process.kill()
                broker.process.wait()


@contextlib.contextmanager
def bench_cluster(url: str, schema: str, shards: int, names: str) -> Iterator[BenchCluster]:
    """Run a cluster for the length of a block, in a schema of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="everlog-bench-cluster-") as folder:
        made = BenchCluster(url, schema, shards, Path(folder))
        try:
            made.start(names)
            yield made
        finally:
            made.stop()
            connection = Database(url, schema)
            drop = f"set local client_min_messages = error; drop schema {schema} cascade".encode()
            connection.transact(lambda cursor: cursor.execute(drop))
            connection.close()
