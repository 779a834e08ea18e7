"""Ownership in a bucket or a shared directory: a ledger of boards, each a numbered object that is created once.

Whoever creates the next number has made its change; whoever finds it taken reads it and decides again. An entry is the
whole board (`docs/formats/ownership.md`), so only the newest counts and old ones can go. A process that slept may
create a number that was deleted long ago: it looks at the milestones after each change (`NumberedObjects`).

Beats are objects beside the ledger that their own incarnation alone replaces.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec
from msgspec import Struct

from everlog.base import StorageError
from everlog.ownership import rules
from everlog.ownership.ports import Board
from everlog.tiering import Bucket, NumberedObjects, block_of, milestones_above

VERSION = 1
_KEPT = 512  # entries, for who looks into a past takeover


class _Entry(Struct, frozen=True):
    version: int
    nonce: str  # no two writers make the same entry, so each knows its own
    board: Board


class LedgerOwnership:
    """Ownership stored below a folder of a bucket; any thread may call."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._folder = folder
        self._entries = NumberedObjects(bucket, f"{folder}/ledger")
        self._lock = threading.RLock()
        self._board = Board()
        self._end = 0  # the number after the newest entry that was read
        self._is_found = False
        self._looks = 0
        self._tidied = 0
        self._counters: dict[int, int] = {}

    def join(self, name: str, address: str) -> int:
        """Return a new incarnation for a server."""
        token = uuid.uuid4().hex
        board = self._change(lambda board: rules.join(board, name, address, token))
        return next(member.incarnation for member in board.members.values() if member.token == token)

    def leave(self, incarnation: int) -> None:
        """End an incarnation that is done."""
        self._change(lambda board: rules.end(board, incarnation))
        self._bucket.delete(self._beat_name(incarnation))

    def drain(self, incarnation: int) -> None:
        """Let all see that an incarnation gives away what it owns."""
        self._change(lambda board: rules.drain(board, incarnation))

    def beat(self, incarnation: int) -> None:
        """Raise an incarnation's counter."""
        rules.living(self.read(), incarnation)
        with self._lock:
            self._counters[incarnation] = count = self._counters.get(incarnation, 0) + 1
        self._bucket.put(self._beat_name(incarnation), b"%d" % count)

    def beats(self) -> dict[int, int]:
        """Return the counter of each living incarnation."""
        if not self._is_found:
            self.read()
        return {incarnation: self._beat_of(incarnation) for incarnation in self._board.members}

    def declare_dead(self, incarnation: int, beat: int) -> bool:
        """Overrule an incarnation whose counter is still this one."""
        if self._beat_of(incarnation) != beat:
            return incarnation not in self.read().members
        self._change(lambda board: rules.end(board, incarnation))
        self._bucket.delete(self._beat_name(incarnation))
        return True

    def claim(self, things: Collection[str], incarnation: int) -> dict[str, int]:
        """Return the epochs at which an incarnation owns things from now on."""
        board = self._change(lambda board: rules.claim(board, things, incarnation))
        return rules.epochs_of(board, things, incarnation)

    def release(self, things: Collection[str], incarnation: int) -> None:
        """Give things up."""
        self._change(lambda board: rules.release(board, things, incarnation))

    def place(self, placement: Mapping[str, str], epoch: int) -> None:
        """Store where things should be."""
        self._change(lambda board: rules.place(board, placement, epoch))

    def read(self) -> Board:
        """Return the newest board."""
        with self._lock:
            if not self._is_found:
                self._jump()
                self._is_found = True
            while True:
                data = self._entries.get(self._end)
                if data is not None:
                    self._take(data)
                elif self._is_left_behind():
                    self._jump()
                else:
                    return self._board

    def _is_left_behind(self) -> bool:
        """Return whether one of the milestones above is there; each look takes another, as nearly all are in vain."""
        above = milestones_above(self._end)
        self._looks += 1
        return self._entries.has(above[self._looks % len(above)])

    def _change(self, rule: Callable[[Board], Board]) -> Board:
        """Make a change to the newest board, whoever else changes it meanwhile, and return the board it made."""
        with self._lock:
            while True:
                board = self.read()
                changed = rule(board)
                if changed is board:
                    return board
                data = msgspec.json.encode(_Entry(VERSION, uuid.uuid4().hex, changed))
                other = self._entries.create(self._end, data)
                if other is not None:
                    self._take(other)
                elif self._entries.is_passed(self._end):
                    self._jump()  # the number was given and deleted before, or others went on: look what holds now
                else:
                    self._take(data)
                    self._tidy()
                    return changed

    def _take(self, data: bytes) -> None:
        """Take in the entry with the number `_end`."""
        try:
            entry = msgspec.json.decode(data, type=_Entry)
        except msgspec.DecodeError as error:
            name = self._entries.name(self._end)
            raise StorageError(f"{name} is no board: {error}", hint="restore it from a backup") from None
        if entry.version != VERSION:
            raise StorageError(f"board version {entry.version} is not known", hint="use a newer Everlog")
        self._board = entry.board
        self._end += 1

    def _jump(self) -> None:
        """Go on behind numbers that were deleted."""
        end = self._entries.find_end(self._end)
        if end > self._end:
            self._end = end - 1  # the newest, which is never deleted while it is the newest

    def _tidy(self) -> None:
        """Delete old entries, each time that a milestone has made that possible."""
        if block_of(self._end) != self._tidied:
            self._tidied = block_of(self._end)
            self._entries.delete_below(self._end - _KEPT, self._end)
            for found in list(self._bucket.find(f"{self._folder}/beats")):
                if int(found.name.rpartition("/")[2]) not in self._board.members:
                    self._bucket.delete(found.name)

    def _beat_name(self, incarnation: int) -> str:
        return f"{self._folder}/beats/{incarnation}"

    def _beat_of(self, incarnation: int) -> int:
        data = self._bucket.get(self._beat_name(incarnation))
        return int(data) if data else 0
