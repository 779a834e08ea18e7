"""Records that were decided and wait to be as safe as their callers asked for."""

from collections import deque
from collections.abc import Callable
from typing import Any

import cython

from everlog.streams.effects import Record
from everlog.streams.values import Level

if not cython.compiled:
    from everlog.streams.fresh import Appended
    from everlog.streams.plain_codec import Packer
    from everlog.streams.stream_state import StreamState


class Waiting:
    """A record that was decided, and who waits for it: somebody to call, or the asker of a plain request."""

    def __init__(
        self,
        position: int,
        state: "StreamState",
        record: "Record | Appended",
        level: Level,
        answer: Callable[[Any], None] | None,
        result: Any,
        before: tuple[int, int] | None,
    ) -> None:
        self.position = position
        self.state = state
        self.record = record
        self.level = level
        self.answer = answer
        self.result = result  # None for what a write is answered
        self.before = before  # the stream's (epoch, last seq) before it, if followers are told
        self.asker: Any = None  # of a plain request
        self.key: Any = None  # the asker's, to find it again
        self.id = 0  # that its answer begins with
        self.data = b""  # its answer, when it has one
        self.is_answered = False


def plain_waiting(
    record: "Appended", state: "StreamState", level: Any, before: Any, asker: Any, key: Any, id: int
) -> Waiting:
    """Return a plain write that waits for its level."""
    made = Waiting.__new__(Waiting)
    made.position = record.position
    made.state = state
    made.record = record
    made.level = level
    made.answer = None
    made.result = None
    made.before = before
    made.asker = asker
    made.key = key
    made.id = id
    made.data = b""
    made.is_answered = False
    return made


class OpenTurn:
    """What was decided in this turn, and the numbers of the next record. `time_us` never goes back."""

    def __init__(self, next: int, time_us: int) -> None:
        self.next = next  # the position of the next record
        self.time_us = time_us
        self.is_timed = False  # the clock was asked in this turn
        self.records: list[tuple[str, bytes]] = []
        self.decided: list[Waiting] = []
        self.pending_rows = 0  # of plain writes, which the views do not count yet
        self.pending_bytes = 0
        self.has_early = False  # something of this turn is answered before its commit

    def add(self, name: str, data: bytes, one: Waiting) -> int:
        """Add a record with whoever waits for it; its position is `next`."""
        self.next += 1
        self.records.append((name, data))
        self.decided.append(one)
        return 0

    def take(self) -> tuple[list[tuple[str, bytes]], list[Waiting]]:
        """Return records and those who wait for them, and begin a new turn."""
        records, decided = self.records, self.decided
        self.records, self.decided = [], []
        self.is_timed = self.has_early = False
        return records, decided


def take_reached(
    waiting: "deque[Waiting]", committed: int, packer: "Packer", epoch: int, level: Level
) -> tuple[list[Waiting], list[Waiting], list[Waiting]]:
    """Take those off whose records are committed: plain ones with their answers, others, and those to be fed."""
    plain: list[Waiting] = []
    others: list[Waiting] = []
    fed: list[Waiting] = []
    code = int(level)
    first = waiting.popleft
    while waiting:
        one = first()
        if one.position >= committed:
            waiting.appendleft(one)
            break
        if one.before is not None:
            fed.append(one)
        if one.asker is not None:
            if one.is_answered:
                continue
            answer(one, packer, epoch, code)
            plain.append(one)
        elif one.answer is not None:
            others.append(one)
    return plain, others, fed


def take_early(
    decided: list[Waiting], packer: "Packer", epoch: int, level: Level
) -> tuple[list[Waiting], list[Waiting]]:
    """Return those that asked for no more than a level: plain ones with their answers, and all of them."""
    plain: list[Waiting] = []
    early: list[Waiting] = []
    code = int(level)
    for one in decided:
        if one.level is level:
            early.append(one)
            if one.asker is not None:
                answer(one, packer, epoch, code)
                plain.append(one)
    return plain, early


def answer(one: Waiting, packer: "Packer", epoch: int, level: int) -> int:
    """Render the answer of a plain write."""
    record: Any = one.record
    one.is_answered = True
    one.data = packer.written(one.id, epoch, level, record)
    return 0
