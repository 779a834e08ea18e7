"""The files of streams that are open, of which there are at most so many: the least recently used is closed first.

Closing syncs, so it is done on another thread; whoever wants that stream again meanwhile waits for it, as for a file
that is not open and that another thread reads (`lend`).
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from everlog.base import EverlogError
from everlog.streams.effects import NO_POSITION
from everlog.streams.stream_file import StreamFile, sync_directory
from everlog.streams.stream_state import StreamState

SYNCS = 8  # at a time
MOST_CLOSING = 64  # files that are being closed; at the limit the next one waits for the first


def sync_all(files: list[StreamFile], then: Callable[[StreamFile], None] = lambda file: None) -> None:
    """Sync files, several at a time as a disk does that better, and do something with each; raise the last failure."""

    def work(file: StreamFile) -> EverlogError | None:
        failure: EverlogError | None = None
        for step in (StreamFile.sync, then):
            try:
                step(file)
            except EverlogError as error:
                failure = error
        return failure

    if not files:
        return
    with ThreadPoolExecutor(min(len(files), SYNCS), "everlog-sync") as threads:
        failures = [failure for failure in threads.map(work, files) if failure is not None]
    if failures:
        raise failures[-1]


def file_path(directory: str, name: str) -> str:
    """Return the path of a stream's file below the directory of files."""
    code = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{directory}/{code[:2]}/{code}.db"


class OpenFiles:
    """Open files by name. A file's path is a hash of its stream's name, so no directory is ever listed.

    `run` does work on another thread; `failed` is told, there, when a file can't be closed.
    """

    def __init__(
        self,
        directory: str,
        most_open: int,
        run: Callable[[Callable[[], None]], None],
        failed: Callable[[EverlogError], None],
    ) -> None:
        self.directory = directory
        self.most_open = most_open
        self.opened = 0  # how many times a file was opened
        self._run = run
        self._failed = failed
        self._files: OrderedDict[str, StreamFile] = OrderedDict()
        self._closing: OrderedDict[str, StreamFile] = OrderedDict()
        self._gate = threading.Lock()  # guards what is lent, and that it is not opened
        self._lent: dict[str, threading.Event] = {}
        self.touched: dict[str, None] | None = None  # names of files that were opened or closed, if anybody asks

    def path(self, name: str) -> str:
        """Return the path of a stream's file."""
        return file_path(self.directory, name)

    def get(self, state: StreamState, *, create: bool = False) -> StreamFile | None:
        """Return the file of a stream, or None if it has none and none is to be made."""
        file = self._files.get(state.name)
        if file is not None:
            self._files.move_to_end(state.name)
            return file
        self._wait_closed(state.name)
        with self._given_back(state.name):
            file = self._open(state, create)
            if file is None:
                return None
            self._files[state.name] = file
        self.opened += 1
        if self.touched is not None:
            self.touched[state.name] = None
        while len(self._files) > self.most_open:
            self._evict(next(iter(self._files)))
        return file

    def _open(self, state: StreamState, create: bool) -> StreamFile | None:
        path = self.path(state.name)
        if not create and not os.path.exists(path):
            return None
        file = StreamFile(path, state.name, state.born, state.kind, create=create)
        if file.is_stale:  # of a stream of this name that was removed
            file.close()
            self._unlink(path)
            if not create:
                return None
            file = StreamFile(path, state.name, state.born, state.kind, create=True)
        return file

    def applied_of(self, state: StreamState) -> int:
        """Return up to where a stream's file has its records, or NO_POSITION; it is open then, if there is room for it.

        For the time when a shard is opened: nobody else has files then.
        """
        path = self.path(state.name)
        if state.name in self._files or len(self._files) >= self.most_open or not os.path.exists(path):
            return NO_POSITION
        try:
            file = StreamFile(path, state.name, state.born, state.kind, create=False)
        except EverlogError:  # whoever asks for the stream is told
            return NO_POSITION
        if file.is_stale:
            file.close()
            return NO_POSITION
        self._files[state.name] = file
        self.opened += 1
        if self.touched is not None:
            self.touched[state.name] = None
        return file.applied

    def is_open(self, name: str) -> bool:
        """Return whether a stream's file is open."""
        return name in self._files

    def is_busy(self, name: str) -> bool:
        """Return whether a stream's file is being synced, closed or copied just now: whoever uses it would wait."""
        closing = self._closing.get(name)
        if closing is not None and not closing.closed.is_set():
            return True
        file = self._files.get(name)
        return name in self._lent if file is None else file.lock.locked()

    def unsynced_file(self, name: str) -> StreamFile | None:
        """Return a stream's file if it is open, or is just being closed."""
        return self._files.get(name) or self._closing.get(name)

    def remove(self, name: str) -> None:
        """Remove a stream's file."""
        self._wait_closed(name)
        with self._given_back(name):
            file = self._files.pop(name, None)
            if file is not None:
                file.close()
            self._unlink(self.path(name))

    def is_idle(self, name: str) -> bool:
        """Return whether a stream's file is not open, not being closed and not lent."""
        closing = self._closing.get(name)
        if closing is not None and closing.closed.is_set():
            del self._closing[name]
            closing = None
        return closing is None and name not in self._files and name not in self._lent

    def discard(self, name: str) -> None:
        """Remove an idle file that a pack has: that it comes back after a power cut does no harm."""
        path = self.path(name)
        for one in (path + "-wal", path):
            with suppress(FileNotFoundError):
                os.unlink(one)

    def place(self, name: str, fetched: str) -> None:
        """Make a file that was fetched, and that is synced, the file of a stream which has none open."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path + "-wal"):  # of the file that was there; it must never be taken for one of this
            os.unlink(path + "-wal")
            sync_directory(os.path.dirname(path))
        os.replace(fetched, path)

    @contextmanager
    def lend(self, name: str) -> Iterator[StreamFile | None]:
        """Have a stream's file for reading on another thread: the open one (use its lock), or None.

        In the second case it stays closed meanwhile, and the caller may open it.
        """
        with self._gate:
            file = self._files.get(name) or self._closing.get(name)
            is_lent = file is None or file.is_closed
            if is_lent:
                self._lent[name] = threading.Event()
        try:
            if is_lent and file is not None:
                file.closed.wait()
            yield None if is_lent else file
        finally:
            if is_lent:
                with self._gate:
                    self._lent.pop(name).set()

    @contextmanager
    def _given_back(self, name: str) -> Iterator[None]:
        """Wait until a file is not lent, and lend none meanwhile."""
        while True:
            self._gate.acquire()
            back = self._lent.get(name)
            if back is None:
                break
            self._gate.release()
            back.wait()
        try:
            yield
        finally:
            self._gate.release()

    def _unlink(self, path: str) -> None:
        for one in (path, path + "-wal"):
            with suppress(FileNotFoundError):
                os.unlink(one)
        with suppress(FileNotFoundError):
            sync_directory(os.path.dirname(path))

    def _evict(self, name: str) -> None:
        """Have a file closed on another thread."""
        if len(self._closing) >= MOST_CLOSING:
            self._wait_closed(next(iter(self._closing)))
        with self._gate:
            file = self._closing[name] = self._files.pop(name)
        if self.touched is not None:
            self.touched[name] = None
        self._run(lambda: self._close(file))

    def _close(self, file: StreamFile) -> None:
        try:
            file.sync()
            file.close()
        except EverlogError as error:
            self._failed(error)
        finally:
            file.closed.set()

    def _wait_closed(self, name: str) -> None:
        file = self._closing.pop(name, None)
        if file is not None:
            file.closed.wait()

    def close(self) -> None:
        """Close all files, synced; every one is closed even if one fails."""
        while self._closing:
            self._wait_closed(next(iter(self._closing)))
        files = list(self._files.values())
        self._files.clear()
        sync_all(files, StreamFile.close)

    def __len__(self) -> int:
        return len(self._files)
