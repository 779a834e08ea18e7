"""A disk in memory for tests that keeps only what was synced: deterministic, and as unkind as a disk may be.

A crash loses any part of what was not synced: writes are torn at any byte and reordered, a file's new length may
survive without its bytes, and new names, renames and removals may each be undone. A sync that fails forgets what it
should have written, although reads still show it.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from everlog.base import StorageError
from everlog.commitlog.ports import Block, Note

PAGE_BYTES = 4096

T = TypeVar("T")
Fault = Callable[[str, str], int | None]  # (kind of call, path) -> errno to fail with, or None
Change = tuple[int, bytes | None]  # a write at a position, or a truncation to it


class SimulatedCrash(BaseException):
    """The machine stopped; not an error that anything handles."""


class _Inode:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.seen = bytearray()  # what reads show
        self.changes: list[Change] = []  # made since the last sync


def _apply(data: bytearray, change: Change) -> None:
    position, block = change
    if len(data) < position + len(block or b""):
        data.extend(bytes(position + len(block or b"") - len(data)))
    if block is None:
        del data[position:]
    else:
        data[position : position + len(block)] = block


class SimulatedFile:
    """An open file of the simulated disk."""

    def __init__(self, disk: "SimulatedDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life

    def _call(self, kind: str) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file was open when the machine stopped")
        self._disk.call(kind, self._path)

    def read_at(self, position: int, size: int) -> bytes:
        self._call("read")
        data = bytes(self._inode.seen[position : position + size])
        self._disk.read_bytes += len(data)
        return data

    read_once = read_at

    def write_at(
        self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
    ) -> None:
        block = b"".join(blocks)
        if padded and self._disk.pads and self._disk.random.random() < 0.5:
            block += bytes(-(position + len(block)) % PAGE_BYTES)
        try:
            self._call("write")
        except OSError:
            self._change((position, block[: self._disk.random.randrange(len(block) + 1)]))
            raise
        self._change((position, block))
        self._disk.tick()
        if note is not None:
            note[0].write_at(0, [note[1]])

    def _change(self, change: Change) -> None:
        self._inode.changes.append(change)
        _apply(self._inode.seen, change)

    def commit_at(
        self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
    ) -> None:
        self.write_at(position, blocks, padded=padded)
        self.sync()
        if note is not None:
            note[0].write_at(0, [note[1]])

    def commit_aside(
        self, aside: Any, position: int, blocks: Sequence[Block], note: Note | None, patience_ns: int
    ) -> bool:
        if self._disk.random.random() >= self._disk.leaves:
            self.commit_at(position, blocks, note)
            return True
        try:
            self.write_at(position, blocks)
            aside.rest = partial(self._commit_rest, note)
        except OSError as error:
            aside.rest = partial(_fail, error)
        return False

    def _commit_rest(self, note: Note | None) -> None:
        self.sync()
        if note is not None:
            note[0].write_at(0, [note[1]])

    def allocate(self, position: int, size: int) -> None:
        try:
            self._call("allocate")
        except OSError:
            self._change((position, bytes(self._disk.random.randrange(size + 1))))
            raise
        self._change((position, bytes(size)))
        self._disk.tick()

    def sync(self) -> None:
        inode = self._inode
        try:
            self._call("sync")
        except OSError:
            inode.changes.clear()
            raise
        self._disk.tick()
        if not self._disk.skips("sync", self._path):
            for change in inode.changes:
                _apply(inode.durable, change)
            inode.changes.clear()
        self._disk.tick()

    def truncate(self, size: int) -> None:
        self._call("truncate")
        self._change((size, None))
        self._disk.tick()

    def size(self) -> int:
        return len(self._inode.seen)

    def mapped(self, size: int) -> memoryview | None:
        return None

    def close(self) -> None:
        pass


def _fail(error: OSError) -> None:
    raise error


class SimulatedAside:
    """What a commit has left to do."""

    rest: Callable[[], None] | None = None

    def end(self) -> None:
        rest, self.rest = self.rest, None
        assert rest is not None, "nothing is under way"
        rest()

    def close(self) -> None:
        assert self.rest is None, "a commit is under way"


class SimulatedLock:
    """A lock that is held until it is released or the machine stops."""

    def __init__(self, disk: "SimulatedDisk", path: str) -> None:
        self._disk, self._path, self._life = disk, path, disk.life
        disk.locks.add(path)

    def release(self) -> None:
        if self._life == self._disk.life:
            self._disk.locks.discard(self._path)


class SimulatedDisk:
    """Files in memory; `crash` stops the machine and starts it again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.read_bytes = 0  # by all reads so far
        self.life = 0
        self.locks: set[str] = set()
        self.crash_after: int | None = None  # so many changes from now, SimulatedCrash is raised in the middle of one
        self.fault: Fault = lambda kind, path: None
        self.skips: Callable[[str, str], bool] = lambda kind, path: False  # a mutant: this sync does nothing
        self.leaves = 0.0  # how likely a commit that need not be waited for takes longer
        self.pads = False  # whether a commit that may end in zeros does so now and then
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._changes: list[tuple[str | None, str | None, _Inode]] = []  # of names: (gone, come, file)

    def call(self, kind: str, path: str) -> None:
        """Fail a call if it is to fail."""
        number = self.fault(kind, path)
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def tick(self) -> None:
        """Stop the machine here if it is time to."""
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise SimulatedCrash

    def make_directory(self, path: str) -> None:
        self.call("mkdir", path)

    def list(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._names if path.rpartition("/")[0] == directory)

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        self.call("open", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimulatedFile(self, path, self._names[path])

    def create(self, path: str) -> SimulatedFile:
        self.call("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "the file exists", path)
        inode = _Inode()
        self._rename(None, path, inode)
        return SimulatedFile(self, path, inode)

    def rename(self, old: str, new: str) -> None:
        self.call("rename", old)
        self._rename(old, new, self._names[old])

    def unlink(self, path: str) -> None:
        self.call("unlink", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._rename(path, None, self._names[path])

    def _rename(self, gone: str | None, come: str | None, inode: _Inode) -> None:
        self._changes.append((gone, come, inode))
        _change_names(self._names, gone, come, inode)
        self.tick()

    def sync_directory(self, directory: str) -> None:
        self.call("sync_directory", directory)
        self.tick()
        if not self.skips("sync_directory", directory):
            for change in self._changes:
                _change_names(self._durable_names, *change)
            self._changes.clear()
        self.tick()

    def aside(self) -> SimulatedAside:
        return SimulatedAside()

    def lock(self, path: str) -> SimulatedLock:
        if path in self.locks:
            raise StorageError(f"{path} is held by this process, which writes to this log")
        return SimulatedLock(self, path)

    def files(self) -> dict[str, bytes]:
        """Return every file as reads show it."""
        return {path: bytes(inode.seen) for path, inode in self._names.items()}

    def put(self, path: str, data: bytes) -> None:
        """Add a durable file with these bytes, as if it had always been there."""
        inode = _Inode()
        inode.durable, inode.seen = bytearray(data), bytearray(data)
        self._names[path] = self._durable_names[path] = inode

    def crash(self) -> None:
        """Stop and start again, with what was synced and a random part of what was not."""
        self.life += 1
        self.locks.clear()
        self.crash_after = None
        for gone, come, inode in self._some(self._changes):
            _change_names(self._durable_names, gone, come, inode)
        self._changes.clear()
        self._names = dict(self._durable_names)
        for inode in self._names.values():
            for change in self._torn(inode.changes, len(inode.durable)):
                _apply(inode.durable, change)
            inode.changes.clear()
            inode.seen = bytearray(inode.durable)

    def _some(self, changes: Sequence[T]) -> Sequence[T]:
        """Return none, all, the first few or any of some changes."""
        kind = self.random.randrange(4)
        if kind == 0 or not changes:
            return ()
        if kind == 1:
            return changes
        if kind == 2:
            return changes[: self.random.randrange(len(changes)) + 1]
        return [change for change in changes if self.random.random() < 0.5]

    def _torn(self, changes: Sequence[Change], length: int) -> Sequence[Change]:
        """Return what survives of a file's changes, cut into pieces."""
        if not changes:
            return ()
        grain = self.random.choice((1, 7, 16, 64, 512, 4096))
        pieces: list[Change] = []
        for position, block in changes:
            if block is None or len(block) <= grain:
                pieces.append((position, block))
            elif position + len(block) > length and self.random.random() < 0.3:  # the length survives, not the bytes
                pieces.append((position + len(block) - 1, b"\0"))
            if block is not None and len(block) > grain:
                pieces += [(position + k, block[k : k + grain]) for k in range(0, len(block), grain)]
        return self._some(pieces)


def _change_names(names: dict[str, _Inode], gone: str | None, come: str | None, inode: _Inode) -> None:
    if gone is not None:
        names.pop(gone, None)
    if come is not None:
        names[come] = inode
