"""Writes blocks to a file, syncs it and says so in another, in one stretch without the interpreter lock.

Between these calls a committer would else have to win the interpreter lock back from a busy broker thread each time.
The primitives are `raw_write`'s.
"""

import mmap
import os
from collections.abc import Sequence

import cython

if not cython.compiled:
    from everlog.commitlog.raw_write import Buffer, write_all, write_around


def write_blocks(
    fd: int, position: int, blocks: Sequence[Buffer], sync: bool, mark_fd: int = -1, mark: bytes = b""
) -> None:
    """All of the blocks, one behind the other, then fdatasync if asked; OSError when any of it fails.

    After that, and only then, `mark` is written to the beginning of `mark_fd` if that is a file.
    """
    failed = write_all(fd, position, blocks, sync, mark_fd, mark)
    if failed:
        raise OSError(failed, os.strerror(failed))


def commit_around(
    fd: int, direct_fd: int, position: int, blocks: Sequence[Buffer], buffer: mmap.mmap, mark_fd: int,
    mark: bytes,
) -> None:  # fmt: skip
    """As `write_blocks` with a sync, by `direct_fd` around the page cache; see `raw_write.write_around`."""
    failed = write_around(fd, direct_fd, position, blocks, buffer, mark_fd, mark)
    if failed:
        raise OSError(failed, os.strerror(failed))
