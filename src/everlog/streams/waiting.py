"""Records that were decided and wait to be as safe as their callers asked for."""

from collections import deque
from collections.abc import Callable
from typing import Any

import cython

from everlog.streams.effects import Record
from everlog.streams.values import Level

if not cython.compiled:
    from everlog.base.memory import Buffer
    from everlog.streams.fresh import Appended, Asked
    from everlog.streams.journal_rows import TurnRecords
    from everlog.streams.plain_codec import Packer
    from everlog.streams.stream_state import StreamState


class Waiting:
    """A record that was decided, and who waits for it. A plain write that nobody follows waits by itself."""

    def __init__(
        self,
        position: int,
        state: "StreamState",
        record: "Record | Appended",
        level: int,
        answer: Callable[[Any], None] | None,
        result: Any,
        before: tuple[int, int] | None,
        asked: "Asked | None" = None,
    ) -> None:
        self.position = position
        self.state = state
        self.record = record
        self.level = level
        self.answer = answer
        self.result = result  # None for what a write is answered
        self.before = before  # the stream's (epoch, last seq) before it, if followers are told
        self.asked = asked  # whoever asked a plain request


class OpenTurn:
    """What was decided in this turn, and the numbers of the next record. `time_us` never goes back."""

    def __init__(self, next: int, time_us: int) -> None:
        self.next = next  # the position of the next record
        self.time_us = time_us
        self.is_timed = False  # the clock was asked in this turn
        self.records = TurnRecords()
        self.decided: list[Waiting | Appended | Asked] = []
        self.pending_rows = 0  # of plain writes, which the views do not count yet
        self.pending_bytes = 0
        self.has_early = False  # something of this turn is answered before its commit

    def add(self, name: str, data: "Buffer", size: int, one: "Waiting | Appended | Asked") -> int:
        """Add a record, the first bytes of a buffer, with whoever waits for it; its position is `next`."""
        self.next += 1
        self.records.add(name, data, size)
        self.decided.append(one)
        return 0

    def take(self) -> "tuple[Any, list[Waiting | Appended | Asked]]":
        """Return records and those who wait for them, and begin a new turn."""
        records, decided = self.records, self.decided
        self.records, self.decided = TurnRecords(len(decided), records.size), []
        self.is_timed = self.has_early = False
        return records, decided


def take_reached(
    waiting: "deque[Waiting | Appended | Asked]", committed: int, packer: "Packer", epoch: int, level: Level
) -> "tuple[list[Asked], list[Waiting], list[Waiting]]":
    """Take those off whose records are committed: plain ones with their answers, others, and those to be fed."""
    plain: list[Asked] = []
    others: list[Waiting] = []
    fed: list[Waiting] = []
    code = int(level)
    first = waiting.popleft
    while waiting:
        found = first()
        if isinstance(found, Asked):
            who = found
            if who.position >= committed:
                waiting.appendleft(who)
                break
            if not who.data:  # else it was answered early
                who.data = packer.done(who.id, epoch, code, who.position, who.time_us, who.seq, who.previous)
                plain.append(who)
            continue
        if isinstance(found, Appended):
            record = found
            if record.position >= committed:
                waiting.appendleft(record)
                break
            asked = record.asked
            if asked is not None:
                record.asked = None
                asked.data = packer.written(asked.id, epoch, code, record)
                plain.append(asked)
            continue
        one = found
        if one.position >= committed:
            waiting.appendleft(one)
            break
        if one.before is not None:
            fed.append(one)
        if one.asked is not None:
            asked = one.asked
            one.asked = None
            fed_record: Any = one.record
            asked.data = packer.written(asked.id, epoch, code, fed_record)
            plain.append(asked)
        elif one.answer is not None:
            others.append(one)
    return plain, others, fed


def take_early(
    decided: "list[Waiting | Appended | Asked]", packer: "Packer", epoch: int, level: Level
) -> "tuple[list[Asked], list[Waiting]]":
    """Return those that asked for no more than a level: plain ones with their answers, and all that are no records."""
    plain: list[Asked] = []
    early: list[Waiting] = []
    code = int(level)
    for found in decided:
        if found.level != code:
            continue
        if isinstance(found, Asked):
            who = found
            who.data = packer.done(who.id, epoch, code, who.position, who.time_us, who.seq, who.previous)
            plain.append(who)
            continue
        if not isinstance(found, Appended):
            early.append(found)
        asked = found.asked
        if asked is not None:
            found.asked = None
            record: Any = found if isinstance(found, Appended) else found.record
            asked.data = packer.written(asked.id, epoch, code, record)
            plain.append(asked)
    return plain, early


def unanswered(waiting: "list[Waiting | Appended | Asked]") -> "list[Asked]":
    """Return who asked plain requests and has no answer yet."""
    found: list[Asked] = []
    for one in waiting:
        if isinstance(one, Asked):
            if not one.data:
                found.append(one)
        elif one.asked is not None:
            found.append(one.asked)
    return found
