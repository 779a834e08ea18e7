"""A bucket in a directory, which may be shared by several machines (NFS): no locks, and nothing that a cache may hide.

An object is written under a name of its own, synced, and linked to its name, which fails if that is taken. A file
system over a network may make a link and lose the answer, and then says that the name is taken when it is asked again:
if both names are the same file, this call made it. A client of NFS remembers listings, and names that were not there;
a change of its own in that folder makes it ask the server again, so a name counts as free only after such a change.

A directory that was there once and is gone, or is another one, is not made again: it was unmounted, and what is written
in its place would be seen by nobody else. So each call opens the directory, looks whether it is the one it was, and
names everything from there on: what happens to the directory's own name meanwhile leads nowhere else.

Large objects are written around the page cache where the system can: they are synced before they get their name, and
hardly ever read here again, so a copy of each page would only cost time and the memory of what is read.
"""

import contextlib
import errno
import fcntl
import mmap
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
_PAGE = mmap.PAGESIZE
_LARGE_BYTES = 256 << 10  # written around the page cache from this size on
_AROUND = getattr(os, "O_DIRECT", 0)
_UNABLE = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}  # says a file, a disk or a buffer that can't do that
_ATTEMPTS = 100  # an object that is neither there nor may be made is being deleted just now
_HINT = "check that the directory is mounted, writable and has space"


class DirectoryBucket:
    """Objects as files below a directory; any thread and any process may call."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._inode = 0  # of the directory, once it was seen

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one, whose content is returned."""
        _check(name)
        for _ in range(_ATTEMPTS):
            if self._make(lambda top: _link(top, name, data)):
                return None
            there = self._attempt(lambda top: _read(top, name, 0, -1))
            if there is not None:
                return None if there == data else there
        raise Unavailable(f"{self.directory / name} can neither be made nor read", hint=_HINT)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace an object."""
        _check(name)
        self._make(lambda top: _replace(top, name, [data]))

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file."""
        _check(name)
        with open(path, "rb") as file:
            self._make(lambda top: _replace(top, name, iter(lambda: file.read(_PIECE_BYTES), b"")))

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None."""
        return self.get_range(name, 0, -1)

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return a part of an object, or None if there is none."""
        _check(name)
        found = self._attempt(lambda top: _read(top, name, start, size))
        if found is None and self._attempt(lambda top: _refresh(top, name)):
            found = self._attempt(lambda top: _read(top, name, start, size))
        return found

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a folder."""
        if prefix:
            _check(prefix)
        yield from self._attempt(lambda top: list(_walk(top, prefix))) or ()

    def delete(self, name: str) -> None:
        """Delete an object."""
        _check(name)
        self._attempt(lambda top: _unlink(top, name))

    def _make(self, act: Callable[[int], T]) -> T:
        """Do something below the directory, which is made if nobody has seen it yet."""
        if not self._inode:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{self.directory}: {error}", hint=_HINT) from error
        made = self._attempt(act)
        if made is None:
            raise self._is_another()
        return made

    def _attempt(self, act: Callable[[int], T]) -> T | None:
        """Do something below the directory, if there is one; say what went wrong, and whether it may pass."""
        try:
            top = self._open()
            if top is None:
                return None
            try:
                return act(top)
            finally:
                os.close(top)
        except OSError as error:
            kind = Unavailable if error.errno in _PASSING else StorageError
            raise kind(f"{self.directory}: {error}", hint=_HINT) from error

    def _open(self) -> int | None:
        """Return a descriptor of the directory, or None if it was never there; raise if it is not what it was."""
        try:
            top = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._inode:
                raise self._is_another() from None
            return None
        inode = os.fstat(top).st_ino
        if self._inode not in (0, inode):
            os.close(top)
            raise self._is_another()
        self._inode = inode
        return top

    def _is_another(self) -> Unavailable:
        return Unavailable(f"{self.directory} is not the directory that it was", hint=_HINT)


def _check(name: str) -> None:
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise StorageError(f"{name!r} can't be the name of an object")


# Of all that follows, `top` is a descriptor of the bucket's directory, and names are below it.


def _link(top: int, name: str, data: bytes) -> bool:
    """Return whether this call gave the file its name."""
    _make_folder(top, name)
    temporary = _write(top, name, [data])
    try:
        try:
            os.link(temporary, name, src_dir_fd=top, dst_dir_fd=top)
        except FileExistsError:
            if not os.path.samestat(os.stat(temporary, dir_fd=top), os.stat(name, dir_fd=top)):
                return False
        _sync(top, name)
    except FileNotFoundError:  # its holder deleted it since
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=top)
    return True


def _replace(top: int, name: str, pieces: Iterable[bytes | memoryview]) -> bool:
    _make_folder(top, name)
    temporary = _write(top, name, pieces)
    try:
        os.replace(temporary, name, src_dir_fd=top, dst_dir_fd=top)
    except OSError:
        _unlink(top, temporary)
        raise
    _sync(top, name)
    return True


def _write(top: int, name: str, pieces: Iterable[bytes | memoryview]) -> str:
    """Write a synced file beside a name, and return its own, which nobody else has."""
    temporary = _temporary(name)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640, dir_fd=top)
    try:
        for piece in pieces:
            view = memoryview(piece)
            view = view[_write_around(fd, view) :]
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        _unlink(top, temporary)
        raise
    finally:
        os.close(fd)
    return temporary


def _write_around(fd: int, view: memoryview) -> int:
    """Write whole pages from the front around the page cache, as far as that can be done; return how many bytes."""
    size = len(view) - len(view) % _PAGE
    if size < _LARGE_BYTES or not _AROUND:
        return 0
    done, flags = 0, fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _AROUND)
        while done < size:
            done += os.write(fd, view[done:size])
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def _read(top: int, name: str, start: int, size: int) -> bytes | None:
    """Return a part of a file, or all of it from a position if the size is negative; None if it is not there."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(fd, "rb", buffering=0) as file:
        file.seek(start)
        if size < 0:
            return file.readall()
        pieces, left = [], size
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


def _walk(top: int, prefix: str) -> Iterator[StoredObject]:
    with contextlib.suppress(FileNotFoundError):  # there is no such folder
        for folder, _, files, fd in os.fwalk(prefix or ".", dir_fd=top):
            for file in sorted(files):
                if not file.startswith(_TEMPORARY):
                    with contextlib.suppress(OSError):  # deleted meanwhile
                        state = os.stat(file, dir_fd=fd)
                        yield StoredObject(os.path.normpath(f"{folder}/{file}"), state.st_size, state.st_mtime)


def _refresh(top: int, name: str) -> bool:
    """Make the system forget which names the folder of a name did not have; return whether there is a folder."""
    temporary = _temporary(name)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640, dir_fd=top))
    except FileNotFoundError:
        return False
    _unlink(top, temporary)
    return True


def _unlink(top: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=top)


def _make_folder(top: int, name: str) -> None:
    """Make the folders of a name, below a directory that is there."""
    folder = os.path.dirname(name)
    if folder:
        try:
            os.mkdir(folder, dir_fd=top)
        except FileExistsError:
            return
        except FileNotFoundError:
            _make_folder(top, folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=top)


def _temporary(name: str) -> str:
    """Return a name beside another that nobody else has."""
    return os.path.join(os.path.dirname(name), f"{_TEMPORARY}{uuid.uuid4().hex}")


def _sync(top: int, name: str) -> None:
    """Make the name of an object durable."""
    fd = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
