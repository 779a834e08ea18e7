"""Brokers of a cluster in processes of their own, on a real database and a bucket in a directory; and what they have
stored, read without them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from everlog.bench.load.brokers import free_port
from everlog.cluster import ClusterDatabase, ShardHistory
from everlog.commitlog import HEADER_BYTES, read_segment
from everlog.mqtt import Connack
from everlog.store import shard_of
from everlog.tiering import open_bucket
from tests.postgres_server import new_schema, shared_server
from tests.raw_client import RawClient

PATIENCE_S = 120.0
_EVERLOG = [sys.executable, "-m", "everlog"]


class ClusterProcess:
    """One broker, which a test may kill, stop and start again."""

    def __init__(self, cluster: "ProcessCluster", name: str, *flags: str, url: str | None = None) -> None:
        self.name = name
        self.clients: list[RawClient] = []
        self.connacks: dict[str, Connack] = {}  # of each client id, the last one
        self.is_frozen = False
        self.is_over = False  # its cluster is gone: nobody waits for it any more
        self.port = free_port()
        self.lines = cluster.folder / f"{name}.txt"
        self._command = [
            *_EVERLOG,
            "serve",
            "--cluster",
            url or cluster.url,
            "--set",
            f"cluster.schema={cluster.schema}",
        ]
        self._command += ["--bucket", str(cluster.bucket), "--name", name, "--port", str(self.port)]
        self._command += ["--data", str(cluster.folder / name), "--set", "http.port=none"]
        for setting in (*cluster.settings, *flags):
            self._command += ["--set", setting]
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it; it is not awaited."""
        with self.lines.open("ab") as lines:
            self.process = subprocess.Popen(
                self._command, stdout=lines, stderr=lines, env={**os.environ, "PYTHONFAULTHANDLER": "1"}
            )

    def client(self, client_id: str, *, clean_start: bool = True, **connect: Any) -> RawClient:
        """Return a client that is connected, once the broker listens and has its client id."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, self.lines.read_text()
            assert time.monotonic() < deadline, self.lines.read_text()
            with socket.socket() as trial:
                listens = trial.connect_ex(("127.0.0.1", self.port)) == 0
            if listens:
                client = RawClient(self.port, 5, deadline_s=PATIENCE_S)
                self.clients.append(client)
                self.connack = self.connacks[client_id] = client.connect(client_id, clean_start, **connect)
                if not self.connack.reason.is_error:
                    return client
                client.close()  # its session is not free yet
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it where it is, as a machine that hangs."""
        self.is_frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on as if nothing had been."""
        self.process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def drain(self) -> int:
        """End it in order, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


class ProcessCluster:
    """`with ProcessCluster(folder, shards) as cluster:`; `add` starts a broker."""

    def __init__(
        self, folder: Path, shards: int, *settings: str, url: str | None = None, schema: str | None = None
    ) -> None:
        """Make a cluster, or with `schema` use the one that is there."""
        self.folder, self.bucket = folder, folder / "bucket"
        self.url, self.schema = url or shared_server().url, schema or new_schema()
        self.settings, self.shards = settings, shards
        self.brokers: list[ClusterProcess] = []
        self._run("init", self.url, "--bucket", str(self.bucket), "--shards", str(shards), check=True)

    def _run(self, *words: str, check: bool = False) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run([*_EVERLOG, "cluster", *words, "--schema", self.schema], check=check, capture_output=True)

    def __enter__(self) -> "ProcessCluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for broker in self.brokers:
            broker.is_over = True
        for broker in self.brokers:
            for client in broker.clients:
                client.close()
            if broker.process.poll() is None:
                broker.kill()
            if kind is not None:
                print(f"--- {broker.name}\n{broker.lines.read_text()[-8000:]}")

    def add(self, name: str, *flags: str, url: str | None = None) -> ClusterProcess:
        """Start one more broker, with settings of its own, or another way to the database."""
        broker = ClusterProcess(self, name, *flags, url=url)
        broker.start()
        self.brokers.append(broker)
        return broker

    def status(self) -> dict[str, Any]:
        """Return what `everlog cluster status` says."""
        found: dict[str, Any] = json.loads(self._run("status", self.url, "--json").stdout)
        return found

    def until_spread(self, count: int) -> None:
        """Wait until so many brokers own all shards, each about as many: no more of them are on their way."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            owners = self.owners()
            counts = Counter(owners.values())
            is_even = len(counts) == count and max(counts.values()) - min(counts.values()) <= 1
            if len(owners) == self.shards and is_even:
                return
            assert time.monotonic() < deadline, owners
            time.sleep(0.05)

    def owners(self) -> dict[int, str]:
        """Return the living owner of each shard, as the database has it now."""
        found = self.rows(
            "select thing, name from claims join incarnations on owner = number "
            "where is_alive and starts_with(thing, 'messages-')"
        )
        return {int(thing.rpartition("-")[2]): name for thing, name in found}

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return what the database has now."""
        options = f"-c search_path={self.schema}"
        with psycopg.connect(self.url, autocommit=True, options=options, connect_timeout=20) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def topics(self, count: int = 1) -> dict[int, list[str]]:
        """Return topics of each shard."""
        found: dict[int, list[str]] = {shard: [] for shard in range(self.shards)}
        number = 0
        while any(len(one) < count for one in found.values()):
            topic = f"t/{number}"
            mine = found[shard_of(topic.encode(), self.shards)]
            if len(mine) < count:
                mine.append(topic)
            number += 1
        return found

    def contents(self) -> dict[tuple[int, int], bytes]:
        """Return each batch that is committed, by shard and offset, as anybody may read it."""
        database, bucket = ClusterDatabase(self.url, self.schema), open_bucket(str(self.bucket))
        found: dict[tuple[int, int], bytes] = {}
        for shard in range(self.shards):
            history = ShardHistory(database, bucket, shard)
            at = history.start()
            while (stretch := history.read(at)) is not None:
                for body in stretch.bodies:
                    base, count = int.from_bytes(body[16:24], "little"), int.from_bytes(body[24:28], "little")
                    found[shard, base] = body
                    at = base + count
            history.close()
        return found

    def copy_of(self, name: str) -> dict[tuple[int, int], bytes]:
        """Return each batch in a broker's own files."""
        found: dict[tuple[int, int], bytes] = {}
        for path in sorted((self.folder / name / "copy").glob("shard-*/*")):
            data = path.read_bytes()
            if path.suffix == ".log" and len(data) > HEADER_BYTES:
                shard = int(path.parent.name.rpartition("-")[2])
                found.update({(shard, base): body for base, _, body in read_segment(data, path.name)[1]})
        return found

    def differences(self) -> list[str]:
        """Return where a broker's copy has other bytes than the cluster, or some that the cluster has not."""
        true = self.contents()
        return [
            f"{broker.name}: shard {place[0]} has something else at {place[1]}"
            for broker in self.brokers
            for place, body in self.copy_of(broker.name).items()
            if true.get(place) != body
        ]
