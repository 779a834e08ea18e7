"""A bucket in a directory, which may be shared by several machines (NFS): no locks, and nothing that a cache may hide.

An object is written under a name of its own, synced, and linked to its name, which fails if that is taken. A file
system over a network may make a link and lose the answer, and then says that the name is taken when it is asked again:
if both names are the same file, this call made it. A client of NFS remembers listings, and names that were not there;
a change of its own in that folder makes it ask the server again, so a name counts as free only after such a change.

A directory that was there once and is gone, or is another one, is not made again: it was unmounted, and what is written
in its place would be seen by nobody else.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from everlog.base import StorageError, Unavailable
from everlog.tiering.ports import StoredObject

T = TypeVar("T")

_TEMPORARY = ".tmp-"
_PASSING = {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.EHOSTDOWN, errno.ENOLCK}
_PIECE_BYTES = 4 << 20
_ATTEMPTS = 100  # an object that is neither there nor may be made is being deleted just now
_HINT = "check that the directory is mounted, writable and has space"


class DirectoryBucket:
    """Objects as files below a directory; any thread and any process may call."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._inode = 0  # of the directory, once it was seen

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one, whose content is returned."""
        path = self._path(name)
        for _ in range(_ATTEMPTS):
            if self._attempt(lambda: self._link(path, data)):
                return None
            there = self._attempt(lambda: self._read(path, 0, -1))
            if there is not None:
                return None if there == data else there
        raise Unavailable(f"{path} can neither be made nor read", hint=_HINT)

    def put(self, name: str, data: bytes) -> None:
        """Make or replace an object."""
        path = self._path(name)
        self._attempt(lambda: self._replace(path, [data]))

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file."""
        target = self._path(name)
        with open(path, "rb") as file:
            self._attempt(lambda: self._replace(target, iter(lambda: file.read(_PIECE_BYTES), b"")))

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None."""
        return self._look(self._path(name), 0, -1)

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return a part of an object, or None if there is none."""
        return self._look(self._path(name), start, size)

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a folder."""
        top = self._path(prefix) if prefix else self.directory
        for folder, _, files in self._attempt(lambda: list(os.walk(top))):
            for file in sorted(files):
                path = Path(folder) / file
                if not file.startswith(_TEMPORARY):
                    with contextlib.suppress(OSError):  # deleted meanwhile
                        state = path.stat()
                        name = path.relative_to(self.directory).as_posix()
                        yield StoredObject(name, state.st_size, state.st_mtime)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._attempt(lambda: self._path(name).unlink(missing_ok=True))

    def _path(self, name: str) -> Path:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise StorageError(f"{name!r} can't be the name of an object")
        return self.directory / name

    def _attempt(self, act: Callable[[], T]) -> T:
        """Do something with files; say what went wrong, and whether it may pass."""
        try:
            self._check_mounted()
            return act()
        except OSError as error:
            kind = Unavailable if error.errno in _PASSING else StorageError
            raise kind(f"{self.directory}: {error}", hint=_HINT) from error

    def _check_mounted(self) -> None:
        """Raise if the directory is not the one that it was."""
        try:
            inode = self.directory.stat().st_ino
        except FileNotFoundError:
            inode = 0
        if self._inode and inode != self._inode:
            raise Unavailable(f"{self.directory} is not the directory that it was", hint=_HINT)
        self._inode = inode

    def _link(self, path: Path, data: bytes) -> bool:
        """Return whether this call gave the file its name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._write(path.parent, [data])
        try:
            try:
                os.link(temporary, path)
            except FileExistsError:
                if not os.path.samestat(temporary.stat(), path.stat()):
                    return False
            _sync(path.parent)
        except FileNotFoundError:  # its holder deleted it since
            return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return True

    def _replace(self, path: Path, pieces: Iterable[bytes]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._write(path.parent, pieces)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def _write(self, folder: Path, pieces: Iterable[bytes]) -> Path:
        """Write a synced file under a name that nobody else has."""
        path = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return path

    def _look(self, path: Path, start: int, size: int) -> bytes | None:
        found = self._attempt(lambda: self._read(path, start, size))
        if found is None and self._attempt(lambda: _refresh(path.parent)):
            found = self._attempt(lambda: self._read(path, start, size))
        return found

    def _read(self, path: Path, start: int, size: int) -> bytes | None:
        """Return a part of a file, or all of it from a position if the size is negative; None if it is not there."""
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(size)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _refresh(folder: Path) -> bool:
    """Make the system forget which names the folder did not have; return whether there is a folder."""
    path = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
    except FileNotFoundError:
        return False
    path.unlink(missing_ok=True)
    return True


def _sync(folder: Path) -> None:
    """Make new names durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
