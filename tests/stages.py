"""A broker on a stage: a clock that the test moves, and clients that say exactly what they are told to."""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from everlog.commitlog import LogSettings
from everlog.store import LogStore
from tests.brokers import ServedBroker
from tests.cluster_shards import owned_cluster
from tests.memory_log import MemoryLog
from tests.memory_tables import MemoryTables
from tests.raw_client import DEADLINE_S, RawClient


class Stage:
    """A broker, a clock that the test moves, and clients that are closed at the end."""

    def __init__(self, log: MemoryLog | None = None, **settings: Any) -> None:
        self._stack = ExitStack()
        self._below = ExitStack()
        self.now_us = 1_700_000_000_000_000
        if os.environ.get("EVERLOG_TEST_TABLES") == "1":  # the same answers, each after its change is stored
            settings.setdefault("tables", MemoryTables())
        self._store: LogStore | None = None
        if os.environ.get("EVERLOG_TEST_STORE") == "1" and log is None:  # and after it is on disk
            folder = self._below.enter_context(tempfile.TemporaryDirectory())
            self._store = LogStore.open(folder, LogSettings(durability="flush"), shards=1)
        elif os.environ.get("EVERLOG_TEST_CLUSTER") == "1" and log is None:  # and after it is in PostgreSQL
            self._store = owned_cluster(self._below.enter_context(tempfile.TemporaryDirectory()))
        self.running = ServedBroker(self._store or log, now_us=lambda: self.now_us, **settings).__enter__()
        self._stopped = False
        self.port = self.running.port
        self.broker = self.running.broker
        self.inside = self.running.inside

    def client(self, version: int = 5, **options: Any) -> RawClient:
        """A connection on which nothing was said yet."""
        return self._stack.enter_context(RawClient(self.port, version, **options))

    def connected(self, client_id: str = "", version: int = 5, **connect: Any) -> RawClient:
        """A client that is connected."""
        client = self.client(version)
        assert not client.connect(client_id, **connect).reason.is_error
        return client

    def call(self, function: Callable[[], Any]) -> Any:
        """Something on the broker's thread."""
        return self.running.call(function)

    def later(self, seconds: float) -> None:
        """The broker's second hand, so far ahead: what is due by then happens now."""
        self.now_us += int(seconds * 1_000_000)
        self.call(lambda: self.inside.sweep_clients(seconds))

    def until(self, condition: Callable[[], Any]) -> None:
        """Returns when the condition holds on the broker's thread."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.call(condition):
            assert time.monotonic() < deadline, "it did not become so in time"

    def offline(self, client_id: str) -> None:
        """Returns when the broker has seen the client's connection end."""
        self.until(lambda: client_id not in self.inside.connected_ids and not self.inside.is_clearing)

    def stop(self) -> None:
        """Stop the broker; the clients stay to see it."""
        if not self._stopped:
            self._stopped = True
            if isinstance(self.running.log, MemoryLog):
                self.call(self.running.log.commit_now)
            self.running.__exit__()
            if self._store is not None:
                self._store.close()
            self._below.close()

    def close(self) -> None:
        """The clients go, then the broker."""
        self._stack.close()
        self.stop()
