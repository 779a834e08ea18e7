"""Ways to get ownership and journals wrong, each by one thought; the simulation must notice."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace
from tests.crash.cluster_world import Ways
from tests.simulated_world import Process

from everlog.base import Fenced, Unavailable
from everlog.ownership import Board, LedgerOwnership, Suspicion
from everlog.tiering import JournalWriter
from everlog.tiering.journal_format import HEADER_BYTES, ObjectHeader, encode_batch


class Blind(Suspicion):
    """Counts the time in which it could not look."""

    def __init__(self) -> None:
        super().__init__(gap_s=1e9)

    def interrupt(self) -> None:
        pass


class ForgottenEpochs(LedgerOwnership):
    """Forgets a thing when it is released."""

    def release(self, things: Collection[str], incarnation: int) -> None:
        def drop(board: Board) -> Board:
            gone = {thing for thing in things if thing in board.owned_by(incarnation)}
            kept = {thing: claim for thing, claim in board.claims.items() if thing not in gone}
            return replace(board, claims=kept) if gone else board

        self._change(drop)


class BeatByClock(LedgerOwnership):
    """Tells the time of its wall clock instead of counting."""

    me: Process

    def beat(self, incarnation: int) -> None:
        self._counters[incarnation] = int(self.me.wall_s() * 1000) - 1
        super().beat(incarnation)


class WallSuspicion(Suspicion):
    """Compares the time that others tell with its own wall clock."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._told: Mapping[int, int] = {}

    def observe(self, asked_s: float, answered_s: float, beats: Mapping[int, int]) -> None:
        super().observe(asked_s, answered_s, beats)
        self._told = beats

    def dead(self) -> dict[int, int]:
        now = self._process.wall_s() * 1000
        return {incarnation: beat for incarnation, beat in self._told.items() if beat and now - beat > 5000}


class LeaseOnly(JournalWriter):
    """Looks who owns the journal, then writes: no fence, and nothing that a later write could run into (M10)."""

    def take_over(self) -> None:
        self._check(self.reader.follow())

    def write(self, records: Sequence[tuple[str, bytes]]) -> int:
        last = self.reader.follow()
        if last is not None and last.epoch > self.epoch:
            raise Fenced("replaced")
        header, data = self._object(last, encode_batch(records, self.end, self._now_us()), len(records))
        self._numbers._bucket.put(self._numbers.name(header.number), data)
        self.reader.see(header, data)
        return header.end


class NoFence(JournalWriter):
    """Creates each number once, but begins to write only when it has something to write."""

    def take_over(self) -> None:
        self._check(self.reader.follow())


class ListingTrusted(JournalWriter):
    """Takes the newest object of a listing for the newest that there is."""

    def take_over(self) -> None:
        newest = max((number for number, _ in self._numbers.listed()), default=-1)
        if newest >= 0:
            self.reader.see(self.reader.header(newest))
            self._check(self.reader.last)
        header, _ = self._object(self.reader.last, b"", 0)
        while self._numbers.create(header.number, header.encode()) is not None:
            header = dataclasses.replace(header, number=header.number + 1)
        self.reader.see(header)


class LostIsFailed(JournalWriter):
    """Takes a lost reply for a write that was not made, and makes it again."""

    def write(self, records: Sequence[tuple[str, bytes]]) -> int:
        try:
            return super().write(records)
        except Fenced:
            raise
        except Unavailable:
            self._pending = None
            last = self.reader.follow()
            if last is not None and last.epoch > self.epoch:
                raise Fenced("replaced") from None
            raise


class FencesTrimmed(JournalWriter):
    """Deletes fences like all other objects."""

    def tidy(self) -> int:
        last = self.reader.last
        assert last is not None
        return self._numbers.delete_below(last.start_number, last.number)


class TrimmedBeforeTold(JournalWriter):
    """Deletes before an object that tells where the journal begins is committed, and whatever the milestones say."""

    def tidy(self) -> int:
        if self._start is None:
            return 0
        doomed = [number for number, size in self._numbers.listed() if number < self._start[0] and size > HEADER_BYTES]
        for number in doomed:
            self._numbers._bucket.delete(self._numbers.name(number))
        return len(doomed)


class AnyEpoch(JournalWriter):
    """Takes over whatever epoch it finds."""

    def _check(self, last: ObjectHeader | None) -> None:
        pass


MUTANTS = {
    "dead after one second": Ways(suspicion=lambda process: Suspicion(patience_s=1.0)),
    "blind time counts": Ways(suspicion=lambda process: Blind()),
    "epochs begin again after a release": Ways(ownership=ForgottenEpochs),
    "beats by the wall clock": Ways(ownership=BeatByClock, suspicion=WallSuspicion),
    "the lease is looked at": Ways(writer=LeaseOnly),
    "a takeover writes nothing": Ways(writer=NoFence),
    "a listing is trusted": Ways(writer=ListingTrusted),
    "a lost reply is a failure": Ways(writer=LostIsFailed),
    "fences are trimmed": Ways(writer=FencesTrimmed),
    "trimmed before that is told": Ways(writer=TrimmedBeforeTold),
    "any epoch takes over": Ways(writer=AnyEpoch),
}
