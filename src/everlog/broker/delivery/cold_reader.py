"""Reads from the cold tier on behalf of the event loop: in threads, one at a time for each session.

A result is kept until the session has taken all of it, so a small window does not read the same again and again. There
are places for as many results as `max_bytes` has room for. Who has none waits in line, gives its place up after each
result while others wait, and loses a result that it does not take for a second or two: it is read again then. Owned by
the event loop's thread; threads call only the cold store and `wake`.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from typing import Any

from everlog.base import Records, gather, row_column
from everlog.broker.delivery.history import History
from everlog.broker.events import event
from everlog.sessions import Session
from everlog.store import Begin, ColdStore, Found, Lost, Positions, ReadResult
from everlog.topics import Filter

_THREADS = 4  # reads at a time, of all sessions; the others wait
_LOOKUPS = 16  # lookups of beginnings by one session at a time; more are refused
_READ_RECORDS = 8192
_READ_BYTES = 1 << 20  # kept for one session until it has taken them
_PLACE_BYTES = 2 << 20  # what such a result was measured to take, with what reading it leaves behind
_log = logging.getLogger("everlog.broker")

Places = dict[
    str, tuple[Positions, Positions] | None
]  # beginning as the client wrote it -> where it is, and the first offsets there are


@dataclass(slots=True)
class _Question:
    """A read that a session asked for, and its `result` once there is one."""

    shard: int
    at: int
    filters: tuple[Filter, ...]
    result: ReadResult | None = None
    is_idle: bool = False  # not looked at since the last `retry`


class ColdReader:
    """The threads that read. `wake` has a call made on the event loop's thread, where `arrived` is called too."""

    def __init__(
        self,
        cold: ColdStore,
        history: History,
        wake: Callable[[Callable[[], None]], None],
        max_bytes: int = 64 << 20,
    ) -> None:
        self.arrived: Callable[[Session], None] = lambda session: None
        self.failures = 0
        self.waits = 0  # times that a session had to wait for a place
        self._places = max(1, max_bytes // _PLACE_BYTES)
        self._line: dict[Session, Callable[[], None]] = {}  # who waits for a place, and how it goes on
        self._admitting = False
        self._cold = cold
        self._history = history
        self._wake = wake
        self._questions: dict[Session, _Question] = {}
        self._again: dict[Session, dict[tuple[int, int], Records] | None] = {}  # None until it is looked up
        self._looking: set[Session] = set()  # those of them that have a place
        self._failed: dict[Session, Callable[[], None]] = {}  # and how to try again
        self._lookups: dict[Session, int] = {}
        self._pool = ThreadPoolExecutor(_THREADS, "everlog-cold")

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def forget(self, session: Session) -> None:
        """Drop what was found for a session that has caught up or lost its connection."""
        for known in (self._questions, self._again, self._failed, self._line):
            known.pop(session, None)
        self._looking.discard(session)
        self._let_in()

    def retry(self) -> None:
        """Repeat what has failed, and take places from those who do not use them; called once a second."""
        if self._line:
            self._questions = {
                session: one for session, one in self._questions.items() if one.result is None or not one.is_idle
            }
            self._let_in()
        for question in self._questions.values():
            question.is_idle = question.result is not None
        failed, self._failed = self._failed, {}
        for ask_again in failed.values():
            ask_again()

    # Where a replay begins

    def find_places(self, session: Session, asked: dict[str, Begin], then: Callable[[Places], None]) -> None:
        """Have `then` called with where these beginnings are, None for those that can't be found now."""
        under_way = self._lookups.get(session, 0)
        if under_way >= _LOOKUPS:
            then(dict.fromkeys(asked))
            return
        self._lookups[session] = under_way + 1

        def look() -> Places:
            return {text: self._history.begins_in_cold(begin) for text, begin in asked.items()}

        def found(done: "Future[Places]") -> None:
            self._lookups[session] -= 1
            if not self._lookups[session]:
                del self._lookups[session]
            then(self._outcome(done) or dict.fromkeys(asked))

        self._ask(look, found)

    # Reading on

    def read(
        self, session: Session, shard: int, at: int, filters: tuple[Filter, ...], log_start: int
    ) -> ReadResult | None:
        """Return records from an offset below the log's start, or None: `arrived` is called once they are read."""
        question = self._questions.get(session)
        if question is not None and question.result is None:
            return None
        if question is not None and question.shard == shard and question.filters == filters:
            assert question.result is not None
            if question.at <= at < question.result.positions[0]:
                question.is_idle = False
                return _from(question.result, question.at, at)
        had_one = self._questions.pop(session, None) is not None
        if (had_one and self._line) or not self._has_place():
            self._wait(session, partial(self.arrived, session))
            return None
        question = self._questions[session] = _Question(shard, at, filters)

        def answered(done: "Future[ReadResult]") -> None:
            if self._questions.get(session) is not question:
                return
            question.result = self._outcome(done)
            if question.result is None:
                del self._questions[session]
                self._failed[session] = partial(self.arrived, session)
                self._let_in()
            else:
                self.arrived(session)

        self._ask(partial(self._read, shard, at, filters, log_start), answered)
        return None

    def _read(self, shard: int, at: int, filters: tuple[Filter, ...], log_start: int) -> ReadResult:
        """Read from the cold store, in a thread; what neither it nor the log has is lost."""
        if at >= self._cold.end(shard):
            self._cold.refresh()
        if at >= self._cold.end(shard):
            return ReadResult([], (log_start,), False, (Lost(shard, at, log_start),))
        return self._cold.read(shard, at, filters, _READ_RECORDS, _READ_BYTES)

    # What was under way

    def find_again(self, session: Session, positions: Sequence[tuple[int, int]], filters: tuple[Filter, ...]) -> None:
        """Look up messages under way (shard, offset) that are no longer in the log, to be sent again."""
        self._again[session] = None
        if not self._has_place():
            self._wait(session, partial(self._look_again, session, positions, filters))
        else:
            self._look_again(session, positions, filters)

    def _look_again(self, session: Session, positions: Sequence[tuple[int, int]], filters: tuple[Filter, ...]) -> None:
        self._again[session] = None
        self._looking.add(session)

        def found(done: "Future[dict[tuple[int, int], Records]]") -> None:
            if session not in self._again:
                return
            self._again[session] = self._outcome(done)
            if self._again[session] is None:
                self._failed[session] = partial(self._look_again, session, positions, filters)
            else:
                self.arrived(session)

        self._ask(partial(self._find, positions, filters), found)

    def is_looking(self, session: Session) -> bool:
        """Return whether what is to be sent again is still being looked up."""
        return session in self._again and self._again[session] is None

    def again(self, session: Session, shard: int, offset: int) -> Records | None:
        """Return a message that was looked up, as a batch of its own, or None."""
        return (self._again.get(session) or {}).get((shard, offset))

    def forget_again(self, session: Session) -> None:
        """Drop what was looked up, since all of it was sent again."""
        if self._again.pop(session, None) is not None:
            self._looking.discard(session)
            self._let_in()

    def _find(self, positions: Sequence[tuple[int, int]], filters: tuple[Filter, ...]) -> dict[Any, Records]:
        found: dict[tuple[int, int], Records] = {}
        for shard in {shard for shard, _ in positions}:
            offsets = sorted(offset for place, offset in positions if place == shard)
            wanted, at = set(offsets), offsets[0]
            while at <= offsets[-1]:
                result = self._cold.read(shard, at, filters, _READ_RECORDS, _READ_BYTES)
                for batch in result.batches:
                    for row in batch.row_numbers():
                        if (offset := batch.records.offset(row)) in wanted:
                            rows = row_column((row,))
                            found[shard, offset] = gather([(batch.records, rows)], True)
                if result.caught_up or result.positions[0] <= at:
                    break
                at = result.positions[0]
        return found

    # Places

    @property
    def held_bytes(self) -> int:
        """The memory of the results that are kept."""
        results = [one.result for one in self._questions.values() if one.result is not None]
        again = sum(records.size for one in self._again.values() if one is not None for records in one.values())
        return again + sum(found.records.size for result in results for found in result.batches)

    def _has_place(self) -> bool:
        return len(self._questions) + len(self._looking) < self._places

    def _wait(self, session: Session, go_on: Callable[[], None]) -> None:
        self.waits += session not in self._line
        self._line[session] = go_on
        self._let_in()

    def _let_in(self) -> None:
        """Have those in line go on, as far as there are places, in a turn of their own."""
        if self._line and not self._admitting and self._has_place():
            self._admitting = True
            self._wake(self._admit)

    def _admit(self) -> None:
        """Let as many go on as there are places now; whoever does not use its place leaves it to the next."""
        self._admitting = False
        line, self._line = self._line, {}
        while line and self._has_place():
            session = next(iter(line))
            line.pop(session)()
        self._line = {**line, **self._line}

    # Asking

    def _ask(self, work: Callable[[], Any], then: Callable[["Future[Any]"], None]) -> None:
        self._pool.submit(work).add_done_callback(lambda done: self._wake(partial(then, done)))

    def _outcome(self, done: "Future[Any]") -> Any:
        """Return the answer, or report an event and return None when there is none."""
        if done.cancelled():
            return None
        error = done.exception()
        if error is not None:
            self.failures += 1
            event(_log, "cold_failed", WARNING, reason=error)
            return None
        return done.result()


def _from(result: ReadResult, first: int, at: int) -> ReadResult:
    """Return a result without what is below an offset."""
    if at == first:
        return result
    batches = []
    for found in result.batches:
        start = found.start + bisect_left(found.row_numbers(), at, key=found.records.offset)
        if start < found.stop:
            batches.append(Found(found.shard, found.records, found.rows, start, found.stop))
    return ReadResult(batches, result.positions, result.caught_up)
