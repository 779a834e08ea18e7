"""The journal of a state shard on shared storage: appends gather in memory, one thread commits them in groups.

Implements the `Journal` port of `everlog.streams` over a `Writer`. One group is written at a time, at most one each
`group_s` while there is always something to write: that is what a bucket's PUTs cost. Trouble is tried again for as
long as it lasts, with the same bytes, so that a commit ends as committed or fenced.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from everlog.base import EverlogError, Fenced, Unavailable
from everlog.tiering.journal_format import Record

GROUP_BYTES = 8 << 20  # of effects in one group, unless a single record has more
_CLOSE_S = 5.0  # how long a write may take that is under way when the journal is closed
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0

Done = Callable[[int], None]
Failed = Callable[[EverlogError], None]


class Writer(Protocol):
    """A place that commits groups of records as the owner of one epoch. One thread writes; any may read.

    `Unavailable` means: call the same again. `Fenced` is the end.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int: ...  # the first position that can be read

    @property
    def end(self) -> int: ...  # the position after the last committed record

    def take_over(self) -> None:
        """Fence the owners before; from then on they commit nothing more."""

    def write(self, records: Sequence[Record]) -> int:
        """Commit records and return the committed end."""

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield committed records."""

    def trim(self, below: int) -> None:
        """Let the journal begin later, when the next group is written."""

    def tidy(self) -> object:
        """Delete some of what was trimmed."""

    def interrupt(self) -> None:
        """Make a write that waits on another thread end soon, in doubt."""

    def close(self) -> None:
        """Let go of everything."""


class GroupJournal:
    """The log of one state shard at one epoch, from the takeover until `close`."""

    def __init__(self, writer: Writer, *, name: str, group_s: float, group_bytes: int = GROUP_BYTES) -> None:
        self._writer = writer
        self._group_s = group_s
        self._group_bytes = group_bytes
        self._lock = threading.Condition()
        self._waiting: list[Record] = []  # appended and not committed
        self._waiting_bytes = 0
        self._asked: deque[tuple[int, Done, Failed]] = deque()
        self._trim_below = self._allowed_below = self._trimmed_below = 0  # asked for, allowed, told the writer
        self._is_closing = False
        self._error: EverlogError | None = None  # the end: nothing is committed any more
        self.trouble: EverlogError | None = None  # why commits can't go through just now
        self._writing_since: float | None = None
        try:
            self._take_over()
        except EverlogError:
            writer.close()
            raise
        self._end = self._committed = self._writer.end
        self._thread = threading.Thread(target=self._run, name=f"journal {name}", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The epoch of this owner."""
        return self._writer.epoch

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return self._writer.start

    @property
    def end(self) -> int:
        """The position after the last appended record."""
        return self._end

    @property
    def committed(self) -> int:
        """The position after the last committed record."""
        return self._committed

    def append(self, records: Sequence[Record]) -> int:
        """Append records of (stream name, effect) in this order and return the position of the first."""
        with self._lock:
            if self._error is not None:
                raise self._error
            first = self._end
            self._waiting += records
            self._waiting_bytes += _bytes_of(records)
            self._end += len(records)
            return first

    def commit(self, done: Done, failed: Failed) -> None:
        """Ask that all that was appended so far be committed; one of the two is called."""
        with self._lock:
            error = self._error
            if error is None and (self._asked or self._end > self._committed):
                self._asked.append((self._end, done, failed))
                self._lock.notify_all()
                return
            committed = self._committed
        if error is not None:
            failed(error)
        else:
            done(committed)

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) of committed records from `position` to before `end`."""
        return self._writer.read(position, min(end, self._committed), stream)

    def trim(self, below: int) -> None:
        """Let go of records below a position, as far as that is allowed, once the next group is written."""
        with self._lock:
            self._trim_below = max(self._trim_below, min(below, self._committed))

    def allow_trim(self, below: int) -> None:
        """Allow that records below a position be trimmed: they are in packs, where the next owner finds them.

        Until then nothing is trimmed: files on the disk of one server are of no use to another.
        """
        with self._lock:
            self._allowed_below = max(self._allowed_below, below)

    def writing_s(self, now_s: float) -> float:
        """Return for how long the commit that is under way has been; 0 if there is none."""
        since = self._writing_since
        return 0.0 if since is None else now_s - since

    def close(self) -> None:
        """Commit what was appended, if that is possible now, and end the thread."""
        with self._lock:
            self._is_closing = True
            self._lock.notify_all()
        self._thread.join(_CLOSE_S)
        while self._thread.is_alive():
            self._writer.interrupt()
            self._thread.join(_CLOSE_S)
        self._writer.close()

    def _take_over(self) -> None:
        """Fence the owner before; wait for a bucket that can't be reached for a while, not for ever."""
        for attempt in range(5):
            try:
                return self._writer.take_over()
            except Fenced:
                raise
            except Unavailable as error:
                failure = error
                time.sleep(pause_s(attempt))
        raise failure

    def _run(self) -> None:
        begun = -self._group_s
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._asked or self._is_closing)
                rest = begun + self._group_s - time.monotonic()
                if rest > 0 and not self._is_closing:
                    self._lock.wait(rest)
                    continue
                records = self._group()
                trim_below = min(self._trim_below, self._allowed_below)
            if not records:
                self._end_with(Unavailable("the journal is closed"))
                return
            begun = self._writing_since = time.monotonic()
            try:
                committed = self._write(records, trim_below)
            except EverlogError as error:
                self._end_with(error)
                return
            finally:
                self._writing_since = None
            self._answer(records, committed)
            self._tidy()

    def _group(self) -> list[Record]:
        """Return the records of the next group, which stay in the queue until they are committed."""
        if self._waiting_bytes <= self._group_bytes:
            return self._waiting[:]
        size = count = 0
        for _, effect in self._waiting:
            size += len(effect)
            if count and size > self._group_bytes:
                break
            count += 1
        return self._waiting[:count]

    def _write(self, records: list[Record], trim_below: int) -> int:
        """Commit records however long it takes; while closing, only once."""
        attempt = 0
        while True:
            try:
                if trim_below > self._trimmed_below:
                    self._writer.trim(trim_below)
                    self._trimmed_below = trim_below
                committed = self._writer.write(records)
            except Fenced:
                raise
            except EverlogError as error:
                self.trouble = error
                with self._lock:
                    if self._is_closing:
                        raise Unavailable(
                            "the journal was closed before it could be written", hint=str(error)
                        ) from error
                    self._lock.wait_for(lambda: self._is_closing, pause_s(attempt))
                attempt += 1
            else:
                self.trouble = None
                return committed

    def _answer(self, records: list[Record], committed: int) -> None:
        """Tell everybody whose records are committed."""
        with self._lock:
            del self._waiting[: len(records)]
            self._waiting_bytes -= _bytes_of(records)
            self._committed = committed
            answered = []
            while self._asked and self._asked[0][0] <= committed:
                answered.append(self._asked.popleft()[1])
        for done in answered:
            done(committed)

    def _tidy(self) -> None:
        """Delete what was trimmed; what fails is tried again later."""
        try:
            self._writer.tidy()
        except EverlogError as error:
            self.trouble = error

    def _end_with(self, error: EverlogError) -> None:
        with self._lock:
            self._error = error
            asked, self._asked = list(self._asked), deque()
        for _, _, failed in asked:
            failed(error)


def _bytes_of(records: Sequence[Record]) -> int:
    return sum([len(effect) for _, effect in records])


def pause_s(attempt: int) -> float:
    """Return how long to wait before the next attempt: longer each time, and never the same for two processes."""
    return min(_FIRST_PAUSE_S * float(1 << min(attempt, 10)), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
