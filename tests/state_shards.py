"""State shards for tests: a journal in memory that commits when told to and survives crashes, and a caller.

`JournalDisk` is what outlives a crash; `MemoryJournal` is one owner's view of it. `Owner` puts a shard on it and asks
it things, one turn each.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everlog.base import EverlogError, Fenced, StorageError
from everlog.streams import (
    Answer,
    Call,
    Config,
    Configure,
    FeedEvent,
    Kind,
    Level,
    Message,
    Reply,
    Set,
    ShardSettings,
    StateShard,
)

SECOND_US = 1_000_000


class JournalDisk:
    """Committed records, and the epoch of the last owner."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.trimmed: list[tuple[str, bytes]] = []  # what no owner can read any more
        self.start = 0
        self.epoch = 0


class MemoryJournal:
    """A journal of one owner; with `manual`, `commit_now` commits what commits were asked for."""

    def __init__(self, disk: JournalDisk, *, manual: bool = False) -> None:
        disk.epoch += 1
        self.epoch = disk.epoch
        self.manual = manual
        self.commits = 0  # how many groups were committed
        self.trims: list[int] = []
        self._disk = disk
        self._new: list[tuple[str, bytes]] = []
        self._base = len(disk.records)
        self._asked: list[tuple[int, Callable[[int], None], Callable[[EverlogError], None]]] = []

    @property
    def start(self) -> int:
        return self._disk.start

    @property
    def end(self) -> int:
        return self._base + len(self._new)

    @property
    def committed(self) -> int:
        return self._base

    def append(self, records: Sequence[tuple[str, bytes]]) -> int:
        if self._disk.epoch != self.epoch:
            raise Fenced("another owner has the shard")
        first = self.end
        self._new += records
        return first

    def commit(self, done: Callable[[int], None], failed: Callable[[EverlogError], None]) -> None:
        self._asked.append((self.end, done, failed))
        if not self.manual:
            self.commit_now()

    def commit_now(self, upto: int | None = None) -> None:
        """Commit what was asked for, or only up to a position."""
        asked, self._asked = self._asked, []
        if self._disk.epoch != self.epoch:
            for _, _, failed in asked:
                failed(Fenced("another owner has the shard"))
            return
        end = asked[-1][0] if asked else self._base
        end = end if upto is None else min(end, upto)
        count = max(0, end - self._base)
        if count:
            self.commits += 1
        self._disk.records += self._new[:count]
        self._base += count
        self._new = self._new[count:]
        for wanted, done, failed in asked:
            if wanted <= self._base:
                done(self._base)
            else:
                self._asked.append((wanted, done, failed))

    def crash(self, survivors: int) -> None:
        """Lose what is not committed, except for the first few."""
        if self._disk.epoch == self.epoch:
            self._disk.records += self._new[:survivors]
        self._new = []

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        if position < self._disk.start:
            raise StorageError(f"position {position} is below {self._disk.start}")
        for at in range(position, min(end, self._base)):
            name, effect = self._disk.records[at]
            if stream is None or name == stream:
                yield at, name, effect

    def trim(self, below: int) -> None:
        self.trims.append(below)
        for at in range(self._disk.start, below):
            self._disk.trimmed.append(self._disk.records[at])
            self._disk.records[at] = ("", b"")
        self._disk.start = max(self._disk.start, below)

    def close(self) -> None:
        self._asked.append((self.end, lambda end: None, lambda error: None))
        self.commit_now()


class TestClock:
    """A clock that a test sets."""

    __test__ = False

    def __init__(self, now_us: int = 1_000 * SECOND_US) -> None:
        self.time_us = now_us
        self.is_believed = True

    def now_us(self) -> int:
        return self.time_us

    def due_us(self) -> int:
        return self.time_us if self.is_believed else 0


class Owner:
    """A shard on a journal, and somebody who asks it."""

    def __init__(
        self,
        directory: Path,
        journal: Any = None,
        *,
        clock: TestClock | None = None,
        manual: bool = False,
        settings: ShardSettings | None = None,
        archive: Any = None,
        tier: Any = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.disk = JournalDisk()
        if isinstance(journal, JournalDisk):
            self.disk, journal = journal, None
        self.journal = journal or MemoryJournal(self.disk, manual=manual)
        self.clock = clock or TestClock()
        self.directory = directory
        self.events: list[FeedEvent] = []
        self.posted: list[Callable[[], None]] = []
        self.shard = StateShard(
            self.journal,
            str(directory),
            self.clock,
            post=self.posted.append,
            run=lambda work: work(),
            settings=settings,
            archive=archive,
            tier=tier,
        )
        self.run_posted()

    def run_posted(self) -> None:
        """Make the calls that were posted to the shard's thread."""
        while self.posted:
            self.posted.pop(0)()

    def follow(self, *names: str) -> None:
        """Gather the events of these streams."""
        self.shard.follow(dict.fromkeys(names), self.events.extend)

    def ask(self, request: Any, **more: Any) -> list[Answer]:
        """Ask without a turn; the answers come into the list that is returned."""
        answers: list[Answer] = []
        self.shard.handle(Call(request, **more), answers.append)
        return answers

    def turn(self) -> None:
        """Make a turn, with what was posted by it."""
        self.shard.turn()
        self.run_posted()

    def do(self, request: Any, **more: Any) -> Any:
        """Ask, make a turn, and return the answer."""
        answers = self.ask(request, **more)
        while not answers and (self.shard._turn.records or self.posted):
            self.turn()
        assert len(answers) == 1, answers
        return answers[0]

    def result(self, request: Any, **more: Any) -> Any:
        """Return the result of a request that is done."""
        answer = self.do(request, **more)
        assert isinstance(answer, Reply), answer
        return answer.result

    def refusal(self, request: Any, **more: Any) -> Any:
        """Return the failure of a request that is not done."""
        answer = self.do(request, **more)
        assert not isinstance(answer, Reply), answer
        return answer

    def series(self, request: Any, **more: Any) -> list[Any]:
        """Return all results of a request that has a series of answers."""
        found: list[Any] = []
        self.shard.handle_series(Call(request, **more), found.append)
        self.turn()
        assert len(found) == 1
        if not hasattr(found[0], "__next__"):
            return found
        answers = list(found[0])
        assert [one.is_last for one in answers] == [False] * (len(answers) - 1) + [True], answers
        return [one.result if isinstance(one, Reply) else one for one in answers]

    def add(self, stream: str, *values: bytes, level: Level = Level.FSYNC) -> list[int]:
        """Append values, in one turn, and return their seqs."""
        answers = [self.ask(Set(stream, Message(value), level=level)) for value in values]
        self.turn()
        return [one[0].result.seq for one in answers]  # type: ignore[union-attr]

    def configure(self, stream: str, kind: Kind = Kind.STREAM, **limits: Any) -> None:
        """Set the limits of a stream."""
        self.result(Configure(stream, kind, Config(**limits)))

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, then do what it demands."""
        self.clock.time_us += int(seconds * SECOND_US)
        self.shard.tick()
        self.run_posted()
        self.turn()

    def reopen(self, *, is_clean: bool = True, survivors: int = 0, **more: Any) -> "Owner":
        """Close the shard, or let its process die, and let the next owner open it.

        What a killed process had not committed is lost, but for the first `survivors`; the files have what they have.
        """
        if is_clean:
            self.shard.close()
        else:
            self.journal.crash(survivors)
            self.shard.abandon()
        more.setdefault("settings", self.shard.settings)
        return Owner(self.directory, self.disk, clock=self.clock, **more)
