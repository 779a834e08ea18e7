"""Small commits beside the thread that asks for them, which goes on with other things if one takes too long.

A thread of the operating system writes and syncs; it needs no interpreter lock, so that handing over costs a few
microseconds. One commit at a time, asked for and ended by one thread at a time. Where such a thread can't be had, a
commit is done at once.
"""

import os
from collections.abc import Sequence

import cython

if not cython.compiled:
    from everlog.commitlog.raw_write import Buffer, begin_aside, end_aside, failed_aside, start_aside, wait_aside


class Aside:
    """The thread, started with the first commit."""

    def __init__(self) -> None:
        self._is_started = False
        self._is_under_way = False
        self._blocks: Sequence[Buffer] = ()  # of what is under way
        self._mark = b""

    def begin(
        self, fd: int, position: int, blocks: Sequence[Buffer], mark_fd: int, mark: bytes, patience_ns: int
    ) -> bool:
        """Write the blocks, sync, write the mark; return whether that was done in time, else `end` must be called.

        Raise OSError if any of it fails.
        """
        if not self._is_started:
            self._thread = start_aside()
            self._is_started = True
        self._blocks, self._mark, self._is_under_way = blocks, mark, True
        if not begin_aside(self._thread, fd, position, blocks, mark_fd, mark, patience_ns):
            return False
        self._ended()
        return True

    def end(self) -> None:
        """Wait for what is under way; raise OSError if it fails."""
        if self._is_under_way:
            wait_aside(self._thread)
            self._ended()

    def _ended(self) -> int:
        self._blocks, self._mark, self._is_under_way = (), b"", False
        failed = failed_aside(self._thread)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return 0

    def close(self) -> None:
        """End the thread, after what is under way."""
        if self._is_started:
            if self._is_under_way:
                wait_aside(self._thread)
            self._is_started = self._is_under_way = False
            end_aside(self._thread)

    def __del__(self) -> None:
        self.close()
