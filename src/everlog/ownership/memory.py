"""Ownership in memory, for one process and for tests."""

import threading
import uuid
from collections.abc import Collection, Mapping

from everlog.ownership import rules
from everlog.ownership.ports import Board


class MemoryOwnership:
    """A board that all threads of a process share."""

    def __init__(self) -> None:
        self._board = Board()
        self._beats: dict[int, int] = {}
        self._lock = threading.Lock()

    def join(self, name: str, address: str) -> int:
        """Return a new incarnation for a server."""
        with self._lock:
            self._board = rules.join(self._board, name, address, uuid.uuid4().hex)
            return self._board.incarnations

    def leave(self, incarnation: int) -> None:
        """End an incarnation that is done."""
        with self._lock:
            self._board = rules.end(self._board, incarnation)

    def drain(self, incarnation: int) -> None:
        """Let all see that an incarnation gives away what it owns."""
        with self._lock:
            self._board = rules.drain(self._board, incarnation)

    def beat(self, incarnation: int) -> None:
        """Raise an incarnation's counter."""
        with self._lock:
            rules.living(self._board, incarnation)
            self._beats[incarnation] = self._beats.get(incarnation, 0) + 1

    def beats(self) -> dict[int, int]:
        """Return the counter of each living incarnation."""
        with self._lock:
            return {number: self._beats.get(number, 0) for number in self._board.members}

    def declare_dead(self, incarnation: int, beat: int) -> bool:
        """Overrule an incarnation whose counter is still this one."""
        with self._lock:
            if self._beats.get(incarnation, 0) == beat:
                self._board = rules.end(self._board, incarnation)
            return incarnation not in self._board.members

    def claim(self, things: Collection[str], incarnation: int) -> dict[str, int]:
        """Return the epochs at which an incarnation owns things from now on."""
        with self._lock:
            self._board = rules.claim(self._board, things, incarnation)
            return rules.epochs_of(self._board, things, incarnation)

    def release(self, things: Collection[str], incarnation: int) -> None:
        """Give things up."""
        with self._lock:
            self._board = rules.release(self._board, things, incarnation)

    def place(self, placement: Mapping[str, str], epoch: int) -> None:
        """Store where things should be."""
        with self._lock:
            self._board = rules.place(self._board, placement, epoch)

    def read(self) -> Board:
        """Return all that is stored."""
        return self._board
