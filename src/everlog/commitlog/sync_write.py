"""Writes blocks to a file, syncs it and writes a mark to another, without the interpreter lock all the while.

A committer would otherwise have to win the lock back from a busy broker thread between these calls. The primitives are
those of `raw_write`.
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
    """Write all of the blocks, one after the other, then fdatasync if asked; raise OSError if any of it fails.

    Only after that, `mark` is written to the beginning of `mark_fd` if that is a file.
    """
    failed = write_all(fd, position, blocks, sync, mark_fd, mark)
    if failed:
        raise OSError(failed, os.strerror(failed))


def write_blocks_around(
    fd: int, direct_fd: int, position: int, blocks: Sequence[Buffer], buffer: mmap.mmap, sync: bool,
    mark_fd: int, mark: bytes,
) -> None:  # fmt: skip
    """Write and sync like `write_blocks`, but around the page cache; see `raw_write.write_around`."""
    failed = write_around(fd, direct_fd, position, blocks, buffer, sync, mark_fd, mark)
    if failed:
        raise OSError(failed, os.strerror(failed))
