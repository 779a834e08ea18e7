"""Writes blocks to a file, syncs it and says so in another, in one stretch without the interpreter lock.

Between these calls a committer would else have to win the interpreter lock back from a busy broker thread each time.
The primitive is `rawwrite`'s.
"""

import os
from collections.abc import Sequence

import cython

if not cython.compiled:
    from everlog.commitlog.rawwrite import Buffer, write_all


def write_blocks(
    fd: int, position: int, blocks: Sequence[Buffer], sync: bool, mark_fd: int = -1, mark: bytes = b""
) -> None:
    """All of the blocks, one behind the other, then fdatasync if asked; OSError when any of it fails.

    After that, and only then, `mark` is written to the beginning of `mark_fd` if that is a file.
    """
    failed = write_all(fd, position, blocks, sync, mark_fd, mark)
    if failed:
        raise OSError(failed, os.strerror(failed))
