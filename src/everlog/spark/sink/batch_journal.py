"""The journal of a batch on its way to a broker: its rows, and how far they are published.

A directory of the application holds the rows that tasks staged and a file that says which of them are the batch. Once
that file names a batch, the batch is these rows: if Spark computes it again, the new rows are discarded. The file is
replaced as a whole and is durable before anything relies on it.
"""

import fcntl
import os
from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from everlog.base import StorageError, Unavailable, UsageError
from everlog.spark.file_sync import sync_path

STATE, LOCK = "state.json", "lock"
VERSION = 1


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: its files in order, how many rows the broker has for certain, and whether it is complete."""

    batch: int
    files: list[str]
    received: int = 0
    begun: bool = False  # rows after `received` may have been sent
    complete: bool = False
    version: int = VERSION
    seen: dict[str, int] = {}  # by state shard: the position that was seen before the rows behind `received` were sent


def app_directory(staging: str, app: str) -> str:
    """Return the directory of an application."""
    return f"{staging}/{quote(app, safe='')}"


class BatchJournal:
    """The directory of an application, held by one process at a time."""

    def __init__(self, staging: str, app: str) -> None:
        self.app = app
        self.directory = app_directory(staging, app)
        os.makedirs(self.directory, exist_ok=True)
        self._lock = os.open(f"{self.directory}/{LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Unavailable(
                f"another process publishes as {app} now", hint='give each program an "app" of its own'
            ) from None
        self.state = self._read()

    def take(self, batch: int, files: Iterable[str]) -> bool:
        """Make a batch of files, unless it is known already; returns whether there is something to publish.

        A batch that is under way goes on as it began; one that was left unfinished must be finished first.
        """
        state = self.state
        if state is not None and (batch < state.batch or (batch == state.batch and state.complete)):
            if not state.complete:
                raise UsageError(
                    f"batch {batch} of {self.app} comes after batch {state.batch}, which is not published yet",
                    hint="numbers of batches go up; use another app for another run",
                )
            self.sweep()
            return False
        if state is None or state.complete:
            self._write(State(batch=batch, files=list(files), seen=state.seen if state is not None else {}))
        elif state.batch != batch:
            raise UsageError(
                f"batch {state.batch} of {self.app} is published in part, and batch {batch} comes",
                hint=f"write batch {state.batch} again, or remove {self.directory} to give it up",
            )
        self.sweep()
        return True

    def paths(self) -> list[str]:
        """Return the paths of the batch's files; raises StorageError if one is missing."""
        assert self.state is not None
        paths = [f"{self.directory}/{name}" for name in self.state.files]
        for path in paths:
            if not os.path.exists(path):
                raise StorageError(
                    f"{path} was staged by a task and is not there",
                    hint='every worker and the driver must see the same directory: name it with the option "staging"',
                )
        return paths

    def begin(self) -> None:
        """Note that rows are going to be sent."""
        assert self.state is not None
        if not self.state.begun:
            self._write(msgspec.structs.replace(self.state, begun=True))

    def receive(self, rows: int, seen: dict[str, int] | None = None) -> None:
        """Note that the receiver has the rows up to this number, and what positions of its shards were seen."""
        assert self.state is not None
        self._write(msgspec.structs.replace(self.state, received=rows, seen=seen or {}))

    def look(self, seen: dict[str, int]) -> None:
        """Note what positions of state shards were seen, and that rows are going to be sent."""
        assert self.state is not None
        self._write(msgspec.structs.replace(self.state, seen=seen, begun=True))

    def complete(self) -> None:
        """Note that all rows are published."""
        assert self.state is not None
        self._write(msgspec.structs.replace(self.state, files=[], complete=True))
        self.sweep()

    def close(self) -> None:
        """Release the directory."""
        os.close(self._lock)

    def sweep(self) -> None:
        """Remove the files of attempts that failed and of batches that are published."""
        kept = set(self.state.files if self.state is not None else ())
        for name in os.listdir(self.directory):
            if name.endswith(".arrow") and name not in kept:
                os.unlink(f"{self.directory}/{name}")

    def _read(self) -> State | None:
        path = f"{self.directory}/{STATE}"
        try:
            with open(path, "rb") as file:
                state = msgspec.json.decode(file.read(), type=State)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StorageError(f"{path}: {error}") from None
        if state.version != VERSION:
            raise StorageError(f"{path}: version {state.version} is not known", hint="go on with a newer Everlog")
        return state

    def _write(self, state: State) -> None:
        path = f"{self.directory}/{STATE}"
        with open(f"{path}.tmp", "wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        sync_path(self.directory)
        self.state = state
