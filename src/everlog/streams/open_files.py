"""The files of streams that are open, of which there are at most so many: the least recently used is closed first."""

import hashlib
import os
from collections import OrderedDict
from contextlib import suppress

from everlog.base import StorageError
from everlog.streams.stream_file import StreamFile, sync_directory
from everlog.streams.stream_state import StreamState

MOST_OPEN = 1_000  # files, of 2 descriptors and about 100 KB each


class OpenFiles:
    """Open files by name. A file's path is a hash of its stream's name, so no directory is ever listed."""

    def __init__(self, directory: str, most_open: int = MOST_OPEN) -> None:
        self.directory = directory
        self.most_open = most_open
        self.opened = 0  # how many times a file was opened
        self._files: OrderedDict[str, StreamFile] = OrderedDict()

    def path(self, name: str) -> str:
        """Return the path of a stream's file."""
        code = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return f"{self.directory}/{code[:2]}/{code}.db"

    def get(self, state: StreamState, *, create: bool = False) -> StreamFile | None:
        """Return the file of a stream, or None if it has none and none is to be made."""
        file = self._files.get(state.name)
        if file is not None:
            self._files.move_to_end(state.name)
            return file
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
        self.opened += 1
        self._files[state.name] = file
        while len(self._files) > self.most_open:
            self._close(next(iter(self._files)))
        return file

    def opened_file(self, name: str) -> StreamFile | None:
        """Return a stream's file if it is open."""
        return self._files.get(name)

    def remove(self, name: str) -> None:
        """Remove a stream's file."""
        file = self._files.pop(name, None)
        if file is not None:
            file.close()
        self._unlink(self.path(name))

    def _unlink(self, path: str) -> None:
        for one in (path, path + "-wal"):
            with suppress(FileNotFoundError):
                os.unlink(one)
        with suppress(FileNotFoundError):
            sync_directory(os.path.dirname(path))

    def _close(self, name: str) -> None:
        file = self._files.pop(name)
        file.sync()
        file.close()

    def close(self) -> None:
        """Close all files, synced; every one is closed even if one fails."""
        failure: StorageError | None = None
        while self._files:
            try:
                self._close(next(iter(self._files)))
            except StorageError as error:
                failure = error
        if failure is not None:
            raise failure

    def __len__(self) -> int:
        return len(self._files)
