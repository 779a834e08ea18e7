"""Which retained messages the tables have, and which of them only the log has yet.

A message that is kept is durable in the log: the tables follow, some topics at a time. One that is in no log is in the
tables before it is acknowledged. At a start, what the log has from `at` on is taken in again.
Invariant: of all retained messages of the log below `at`, the tables have what they left. What is in no log is stored
with the end that its shard had (`after`), so that older messages of the log do not replace it at a start; a topic that
was emptied so stays in the tables until they are as far as that. A stored message that is damaged is not served and
stays where it is, until its topic gets another. Owned by the event loop's thread.
"""

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from logging import ERROR
from typing import NamedTuple

from everlog.base import RETAIN, RETAINED, Records, StorageError, is_emptied, rebased
from everlog.broker.delivery.ports import Log, Shard
from everlog.broker.delivery.retained_columns import RetainedColumns
from everlog.broker.events import event
from everlog.sessions import RetainedNames, RetainedRow, Snapshot, unpack_retained

_ROWS = 500  # stored with a batch
_BATCHES = 240  # that what waits is spread over if it is more, about a minute
_READ_BYTES = 4 << 20
_NAMED = struct.Struct("<QH")
_log = logging.getLogger("everlog.broker")


class _Goal(NamedTuple):
    """What the tables are to reach: so many changes, and what is stored by then."""

    changes: int
    ends: tuple[int, ...]
    number: int


@dataclass(slots=True)
class Unsaved:
    """The next changes for the tables."""

    rows: dict[str, RetainedRow] = field(default_factory=dict)
    names: dict[int, RetainedNames] = field(default_factory=dict)
    ended_names: list[int] = field(default_factory=list)
    at: tuple[int, ...] | None = None

    def add(self, newer: "Unsaved") -> None:
        """Take in what came later."""
        self.rows.update(newer.rows)
        self.names.update(newer.names)
        self.ended_names += newer.ended_names
        self.at = newer.at or self.at


class RetainedSaving:
    """The progress of the tables behind the retained messages of one store."""

    rows_each = 2000  # stored with a batch at most; more wait for the next

    def __init__(self, columns: RetainedColumns) -> None:
        self.at: tuple[int, ...] = ()  # with the last batch the tables have what the log has of each shard below this
        self.durable_at: tuple[int, ...] = ()  # the same of a batch that survives a power cut
        self.damaged: set[str] = set()  # topics whose stored message could not be read at the start
        self._columns = columns
        self._log: Log | None = None  # without tables there is none
        self.reached: Callable[[], tuple[int, ...]] = lambda: _committed(self._log)  # all before it is retained here
        self._goal: _Goal | None = None
        self._number = 0  # below it, the tables have every topic that has a message
        self._named: list[RetainedNames] = []
        self._urgent: dict[str, None] = {}  # topics to be stored with the next batch
        self._after: dict[str, tuple[int, int]] = {}  # topics with a message in no log: shard, and its end then

    @property
    def waits(self) -> bool:
        """Whether there are changes that the tables do not have."""
        return bool(self._urgent) or len(self._columns.queue) > 0

    @property
    def has_unnamed(self) -> bool:
        """Whether the tables lack the number of a topic."""
        number = self._columns.next_number
        return self._number < number and all(one.stop < number for one in self._named)

    def unkept(self, names: Iterable[bytes]) -> bool:
        """Have topics that a message in no log has changed stored with the next batch; return whether they are."""
        if self._log is None:
            return False
        for name in names:
            shard = self._log.shard_of(name)
            end = self._log.shards[shard].end
            topic = name.decode()
            self._urgent[topic] = None
            if end > self.at[shard]:
                self._after[topic] = shard, end
        return bool(self._urgent)

    def take(self, named_below: int = 0) -> Unsaved:
        """Return changes for the next batch; it may store that somebody is owed topics numbered below `named_below`."""
        columns = self._columns
        if self._is_level():
            self.at, self._number = self.reached(), columns.next_number
            return Unsaved(at=self.at)
        if self._goal is None:
            self._goal = _Goal(columns.queue.added, self.reached(), columns.next_number)
        changes = columns.take_changes(min(self.rows_each, max(_ROWS, len(columns.queue) // _BATCHES)))
        messages = {name.decode(): message for name, message in changes}
        for topic in self._urgent:
            messages[topic] = columns.stored(topic.encode())
        self._urgent = {}
        unsaved = Unsaved()
        if columns.queue.added - len(columns.queue) >= self._goal.changes:
            self._reach(self._goal, messages, unsaved)
            self._goal = None
        if named_below > self._number:
            self._name(unsaved)
        unsaved.rows = {topic: self._row(topic, message) for topic, message in messages.items()}
        unsaved.at = self.at
        return unsaved

    def _is_level(self) -> bool:
        """Return whether the tables have all that is retained, and nothing that goes when they do."""
        return self._goal is None and not (self._urgent or self._after or self._named or len(self._columns.queue))

    def _row(self, topic: str, message: bytes | None) -> RetainedRow:
        return RetainedRow(topic, message, self._after[topic][1] if topic in self._after else 0)

    def _reach(self, goal: _Goal, messages: dict[str, bytes | None], unsaved: Unsaved) -> None:
        """Note that with this batch the tables are as far as the goal; what was stored until then alone goes."""
        self.at = goal.ends
        self._number = goal.number
        for topic in [topic for topic, (shard, end) in self._after.items() if end <= self.at[shard]]:
            del self._after[topic]
            messages.setdefault(topic, self._columns.stored(topic.encode()))
        unsaved.ended_names = [one.first for one in self._named if one.stop <= goal.number]
        self._named = [one for one in self._named if one.stop > goal.number]

    def _name(self, unsaved: Unsaved) -> None:
        """Have the numbers of all topics that the tables do not have stored, as far as they are not yet."""
        first = max((one.stop for one in self._named), default=self._number)
        stop = self._columns.next_number
        if first < stop:
            named = RetainedNames(first, stop, self._columns.index.names_from(first))
            self._named.append(named._replace(names=b""))
            unsaved.names[first] = named

    # The start

    def restore(self, stored: Snapshot, log: Log, owed_below: int) -> Unsaved:
        """Take in what was stored, and what the log has beyond that; return what is to be stored now.

        No topic that is new gets a number below `owed_below`.
        """
        columns, ends = self._columns, _committed(log)
        self._log = log
        at = stored.retained_at
        self.at = tuple(min(one, end) for one, end in zip(at, ends, strict=False)) + ends[len(at) :]
        unsaved = Unsaved(at=self.at)
        after = self._restore_rows(stored.retained, unsaved)
        numbers: dict[bytes, int] = {}
        for named in stored.retained_names:
            self._named.append(named._replace(names=b""))
            numbers.update(_unpacked(named.names))
            owed_below = max(owed_below, named.stop)
        columns.next_number = self._number = max(columns.next_number, owed_below)
        columns.stores = True
        for shard, first in zip(log.shards, self.at, strict=True):
            for records, row in _retained_of(shard, first):
                name = records.table.name(_topic_of(records, row))
                if not name.startswith(b"$") and records.offset(row) >= after.get(name, 0):
                    self._take_again(name, records, row, numbers)
        columns.settle()
        for name, below in after.items():
            if name.decode() in self.damaged:
                continue
            topic, shard_number = name.decode(), log.shard_of(name)
            if below > self.at[shard_number]:  # a log that lost its tail gives offsets out again
                self._after[topic] = shard_number, min(below, ends[shard_number])
            unsaved.rows[topic] = self._row(topic, columns.stored(name))
        return unsaved

    def _take_again(self, name: bytes, records: Records, row: int, numbers: dict[bytes, int]) -> None:
        """Take in a message of the log that the tables may not have."""
        columns = self._columns
        if not records.row(row)[5]:
            columns.remove(name)
            return
        number = numbers.get(name, -1)
        if number == columns.number_of(name):  # its number until it was removed
            number = -1
        if number >= 0:
            self._number = min(self._number, number)
        columns.restore(records, row, number, True)

    def _restore_rows(self, stored: Iterable[RetainedRow], unsaved: Unsaved) -> dict[bytes, int]:
        """Take in what was stored; return the topics that hold against what the log has of them, and up to where."""
        columns, without, after = self._columns, [], {}
        for topic, message, below in stored:
            if below:
                after[topic.encode()] = below
            if message is None:
                continue
            try:
                records = unpack_retained(topic, message)
            except StorageError as error:
                self.damaged.add(topic)
                event(_log, "retained_damaged", ERROR, topic=topic, reason=error)
                continue
            if records.base_offset & RETAINED:
                columns.restore(records, 0, records.base_offset & ~RETAINED, False)
            else:
                without.append((topic, records))
        for topic, records in without:  # an earlier version has stored it without a number
            again = rebased(records, RETAINED | columns.next_number)
            columns.restore(again, 0, columns.next_number, False)
            unsaved.rows[topic] = RetainedRow(topic, bytes(again.to_bytes()))
        return after


def _unpacked(names: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield topics with their numbers, as `RetainedIndex.names_from` packs them."""
    at = 0
    while at < len(names):
        number, size = _NAMED.unpack_from(names, at)
        at += _NAMED.size + size
        yield names[at - size : at], number


def _topic_of(records: Records, row: int) -> int:
    at = records.start + records.layout.topics + 4 * row
    return int.from_bytes(records.data[at : at + 4], "little")


def _retained_of(shard: Shard, at: int) -> Iterator[tuple[Records, int]]:
    """Yield the retained messages that a shard has from an offset on."""
    while at < shard.committed:
        found = shard.read(at, _READ_BYTES)
        if not found:
            return
        for records in found:
            start = records.start + records.layout.flags
            flags = records.data[start : start + records.count]
            for row in range(records.count):
                if flags[row] & RETAIN and records.offset(row) >= at and not is_emptied(records, row):
                    yield records, row
            at = max(at, records.end_offset)


def _committed(log: Log | None) -> tuple[int, ...]:
    return () if log is None else tuple(shard.committed for shard in log.shards)
