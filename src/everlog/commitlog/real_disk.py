"""The real disk: files of the operating system, and a lock that names its holder."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import cast

from everlog.base import StorageError
from everlog.commitlog import ports
from everlog.commitlog.aside import Aside
from everlog.commitlog.direct_file import LARGE_BYTES, DirectFile, is_cached
from everlog.commitlog.ports import Block, Note
from everlog.commitlog.sync_write import write_blocks

_ZEROS = bytes(64 << 10)


class RealFile:
    """A file descriptor, closed when nothing refers to it any more, so that a reader outlives a merge or removal."""

    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._direct = DirectFile(self._fd)

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""
        return self._read(position, size)

    def _read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_once(self, position: int, size: int) -> bytes:
        """Read like `read_at`, but leave the page cache as it is."""
        if size >= LARGE_BYTES and not is_cached(self._fd, position, size):
            data = self._direct.read(position, size)
            if data is not None:
                return data
        return self._read(position, size)

    def write_at(
        self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
    ) -> None:
        """Write all of the blocks, one after the other, then the note."""
        self._write(position, blocks, note, padded, False)

    def commit_at(
        self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
    ) -> None:
        """Write, sync and write the note in one stretch without the interpreter lock."""
        self._write(position, blocks, note, padded, True)

    def _write(self, position: int, blocks: Sequence[Block], note: Note | None, padded: bool, sync: bool) -> None:
        mark_fd, mark = (-1, b"") if note is None else (note[0]._fd, note[1])  # type: ignore[attr-defined]
        if not padded or not self._direct.write(position, blocks, sync, mark_fd, mark):
            write_blocks(self._fd, position, blocks, sync, mark_fd, mark)

    def commit_aside(
        self, aside: ports.Aside, position: int, blocks: Sequence[Block], note: Note | None, patience_ns: int
    ) -> bool:
        """Write, sync and write the note in a thread that needs no interpreter lock."""
        mark_fd, mark = (-1, b"") if note is None else (note[0]._fd, note[1])  # type: ignore[attr-defined]
        return cast(Aside, aside).begin(self._fd, position, blocks, mark_fd, mark, patience_ns)

    def allocate(self, position: int, size: int) -> None:
        """Write zeros rather than allocate: blocks marked as unwritten cost a sync as much as new ones."""
        whole, rest = divmod(size, len(_ZEROS))
        write_blocks(self._fd, position, [*([_ZEROS] * whole), _ZEROS[:rest]], False)

    def sync(self) -> None:
        """Make what was written durable."""
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return how many bytes the file has."""
        return os.fstat(self._fd).st_size

    def mapped(self, size: int) -> memoryview | None:
        """Return the first bytes of the file, mapped."""
        return memoryview(mmap.mmap(self._fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")

    def close(self) -> None:
        """Close the descriptors; once is enough."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._direct.close()
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


class ScannedFile(RealFile):
    """A file whose large ranges are read once."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""
        return self.read_once(position, size)


class RealLock:
    """An flock on a file that says who holds it; it is gone with the process, however that ends."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StorageError(
                f"{path} is held by process {holder}, which writes to this log",
                hint="stop that process, or open the log read-only",
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let another writer in; once is enough."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """Files of the operating system."""

    file: type[RealFile] = RealFile

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it that are missing, durably."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(os.path.abspath(path))
        self.make_directory(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.sync_directory(above)

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(directory)

    def open(self, path: str, *, write: bool = False) -> RealFile:
        """Open an existing file."""
        return self.file(path, os.O_RDWR if write else os.O_RDONLY)

    def create(self, path: str) -> RealFile:
        """Create a file and open it."""
        return self.file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def rename(self, old: str, new: str) -> None:
        """Put a file in another's place."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        """Make changes of names durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> RealLock:
        """Take the writer's lock."""
        return RealLock(path)

    def aside(self) -> Aside:
        """Return a thread for small commits, not yet started."""
        return Aside()


class ScannedDisk(RealDisk):
    """A disk for readers that scan much of a log, and not soon again."""

    file = ScannedFile
