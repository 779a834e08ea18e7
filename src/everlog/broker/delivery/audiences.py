"""Who gets a topic's messages: topics become audiences, numbers that stand for merged subscriptions and shared groups.

Topics with the same subscribers share an audience, so a batch splits into as many parts as there are different ones.
The audience of each topic id is kept in one column that the partition kernel reads; when a filter comes or goes,
exactly the topics that it matches become unknown again. Audience 0 is nobody. It is a cache: when the audiences take
more than `max_bytes`, all are forgotten and made anew as topics come by, and a batch whose topics have more than that
is split in stretches of rows, one after the other.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import cython

from everlog.broker.delivery.audience_numbers import Audience, AudienceNumbers
from everlog.broker.delivery.ports import SharedTarget
from everlog.sessions import MergedSubscription, Session, Subscribed
from everlog.topics import Filter, MatchCache, SubscriptionTrie
from everlog.topics import Subscription as Match

if not cython.compiled:
    from everlog.base import Records, TopicTable
    from everlog.broker.delivery.partition import Partitioner

UNKNOWN = b"\xff\xff\xff\xff"
_NO_NUMBER = 0xFFFFFFFF
_MANY = 64  # subscriptions of one topic; those of the next are often the same

Part: TypeAlias = tuple[int, bytearray | None, int, int]  # audience, rows (None: every row), start, stop


class Names:
    """The broker's topic ids of a batch table's ids, and which table that is."""

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.generation = -1
        self.column = bytearray()


class Audiences:
    """The live subscriptions, and for every topic id of `table` the audience they make."""

    def __init__(
        self,
        table: TopicTable,
        target_of: Callable[[str, str], SharedTarget],
        max_topics: int = 200_000,
        max_bytes: int = 64 << 20,
    ) -> None:
        self.filters = 0  # that are subscribed to
        self.resets = 0  # times that all were forgotten because they took too much
        self.max_bytes = max_bytes
        self._table = table
        self._target_of = target_of
        self._trie: SubscriptionTrie[Session, Subscribed] = SubscriptionTrie()
        self._cache: MatchCache[Session, Subscribed, int] = MatchCache(
            self._trie, self._make, max_topics=max_topics, on_drop=self._unknow, id_of=self._id_of
        )
        self.column = bytearray()
        self._numbers = AudienceNumbers()
        self._unused: set[int] = set()  # numbers that were made for a moment
        self._last: tuple[list[Match[Session, Subscribed]], int] = ([], 0)  # many subscriptions, and their number
        self._generation = table.generation
        self._names: list[Names] = []
        self._partitioner = Partitioner()

    def subscribe(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """Take in a filter of a connected session, new or with other options."""
        self._cache.insert(flt, session, subscribed)
        self.filters = len(self._trie)

    def unsubscribe(self, session: Session, flt: Filter) -> bool:
        """Let go of a filter that was given up or whose session has left; return whether it was there."""
        was_there = self._cache.remove(flt, session) is not None
        self.filters = len(self._trie)
        return was_there

    def subscribe_exact(self, session: Session, filters: list[Filter], subscribed: list[Subscribed]) -> None:
        """Do what `subscribe` does with many filters without wildcards that are no groups'."""
        self._cache.insert_exact(filters, session, subscribed)
        self.filters = len(self._trie)

    def unsubscribe_exact(self, session: Session, texts: list[str]) -> list[str]:
        """Let go of those filters that have no wildcards and are no groups'; return the others."""
        others = self._cache.remove_exact(texts, session)
        self.filters = len(self._trie)
        return others

    def _id_of(self, name: str) -> int:
        return self._table.lookup(name.encode())

    def detach(self, session: Session) -> None:
        """Let go of a session that has left, once all its filters are gone."""
        self._last = [], 0
        self._numbers.forget_session(session)

    @property
    def size_bytes(self) -> int:
        """The memory of the audiences."""
        return self._numbers.size_bytes

    @property
    def by_number(self) -> list[Audience]:
        """The audiences; a number is good until the next stretch of a batch is split, or a filter comes or goes."""
        return self._numbers.by_number

    # Splitting a batch

    def split(self, records: Records, first_row: int, stop_row: int = -1) -> Iterator[list[Part]]:
        """Yield the parts of a batch by audience: of all rows, or of a stretch of them at a time if it takes much."""
        stop = records.count if stop_row < 0 else min(stop_row, records.count)
        size = stop - first_row
        while first_row < stop:
            end = min(stop, first_row + size)
            parts = self.split_at_once(records, first_row, end)
            if parts is None:
                size = (end - first_row + 1) // 2
                continue
            yield parts
            first_row = end

    def split_at_once(self, records: Records, first_row: int, stop_row: int) -> list[Part] | None:
        """Return the parts of rows, once every topic of them has an audience; None if that takes too much at once."""
        self._extend()
        names = self._names_of(records.table)
        parts = self._parts(records, first_row, names.column, self.column, stop_row)
        return self._split_unknown(records, first_row, stop_row, names, parts) if isinstance(parts, set) else parts

    def _parts(
        self, records: Records, first_row: int, names: bytearray, column: bytearray, stop_row: int
    ) -> list[Part] | set[int]:
        """Return the parts of rows, or else the topics of them that have no audience yet."""
        return self._partitioner.split(records, first_row, names, column, len(self._numbers.by_number), stop_row)

    def _split_unknown(
        self, records: Records, first_row: int, stop_row: int, names: Names, parts: list[Part] | set[int]
    ) -> list[Part] | None:
        """Find the audiences of topics and return the parts of rows; None if that takes too much at once."""
        learnt = False
        while isinstance(parts, set):
            is_one = stop_row - first_row == 1
            if learnt and not is_one:  # some that were found are forgotten again: all of them have no room
                return None
            if not self._learn_names(names, parts):
                return self._split_uncached(records, first_row, stop_row)
            topics = (int.from_bytes(names.column[4 * one : 4 * one + 4], "little") for one in parts)
            if not self.resolve(topics) and not is_one:
                return None
            learnt = True
            parts = self._parts(records, first_row, names.column, self.column, stop_row)
        return parts

    def _learn_names(self, names: Names, topics: set[int]) -> bool:
        """Find the broker's ids of these topics of a batch; return False if the broker's table is full."""
        for topic in topics:
            if names.column[4 * topic : 4 * topic + 4] == UNKNOWN:
                known = self._table.intern(names.table.name(topic))
                if known < 0:
                    return False
                names.column[4 * topic : 4 * topic + 4] = known.to_bytes(4, "little")
        return True

    def _split_uncached(self, records: Records, first_row: int, stop_row: int) -> list[Part] | None:
        """Split without caching topic ids, for when the broker's topic table is full."""
        at = records.start + records.layout.topics
        rows = memoryview(records.data)[at : at + 4 * records.count].cast("I")
        names = bytearray(b"\xff" * (4 * records.table.count))
        column = bytearray()
        self._make_room()
        for place, topic in enumerate(sorted(set(rows[first_row:stop_row]))):
            names[4 * topic : 4 * topic + 4] = place.to_bytes(4, "little")
            number = self._make(self._trie.match(records.table.name(topic).decode()))
            self._unused.add(number)
            column += number.to_bytes(4, "little")
            if self.size_bytes > self.max_bytes and stop_row - first_row > 1:
                return None
        parts = self._parts(records, first_row, names, column, stop_row)
        assert not isinstance(parts, set)
        return parts

    def _names_of(self, table: TopicTable) -> Names:
        """Return the map from a batch table's topic ids to the broker's, kept for the few tables in use."""
        names = self._names[0] if self._names else None
        if names is None or names.table is not table:
            names = self._take_names(table)
        if names.generation != self._table.generation:
            names.generation = self._table.generation
            names.column = bytearray()
        missing = table.count - len(names.column) // 4
        if missing > 0:
            names.column.extend(b"\xff" * (4 * missing))
        return names

    def _take_names(self, table: TopicTable) -> Names:
        """Return the map of a table, which is the last that was used from now on."""
        names = next((one for one in self._names if one.table is table), None) or Names(table)
        self._names = [names, *(one for one in self._names if one is not names)][:8]
        return names

    # Audiences

    def resolve(self, topics: Iterable[int]) -> bool:
        """Find the audiences of these topic ids; return False if they took too much before all were found."""
        self._make_room()
        self._extend()
        for topic in topics:
            number = self._cache.lookup(topic, self._table.name(topic).decode())
            place = slice(4 * topic, 4 * topic + 4)
            if self.column[place] == UNKNOWN:
                self._numbers.use(number)
                self.column[place] = number.to_bytes(4, "little")
            if self.size_bytes > self.max_bytes:
                return False
        return True

    def _make_room(self) -> None:
        """Forget all audiences if they take too much, and those that no topic has had since the last call."""
        if self._unused:
            self._numbers.drop_unused(self._unused)
            self._unused = set()
            self._last = [], 0
        if self.size_bytes > self.max_bytes:
            self.resets += 1
            self.forget()

    def merged(self, number: int, session: Session) -> MergedSubscription | None:
        """Return how a session that pulls gets the messages of an audience, if it is in it by itself."""
        return self._numbers.merged_in(number, session)

    def merged_of(self, records: Records, row: int, session: Session) -> MergedSubscription | None:
        """Return how a session gets one message, by itself or else as a member of a group."""
        topic = self._table.intern(records.table.name(records.row(row)[2]))
        if topic < 0:
            return None  # the broker knows too many topics
        self._extend()
        if self.column[4 * topic : 4 * topic + 4] == UNKNOWN:
            self.resolve((topic,))
        number = int.from_bytes(self.column[4 * topic : 4 * topic + 4], "little")
        alone = self.merged(number, session)
        if alone is not None:
            return alone
        targets = self.by_number[number].targets
        return next((found for one in targets if (found := one.merged(session)) is not None), None)

    def forget(self) -> None:
        """Begin anew: every topic is unknown."""
        self._cache.clear()
        self.column = bytearray()
        self._numbers = AudienceNumbers()
        self._unused = set()
        self._last = [], 0
        self._extend()

    def _extend(self) -> None:
        """Make the column as long as the table, new topics unknown."""
        if self._generation != self._table.generation:
            self._generation = self._table.generation
            self.forget()
        missing = 4 * self._table.count - len(self.column)
        if missing > 0:
            self.column.extend(UNKNOWN * (missing // 4))

    def _unknow(self, topics: Iterable[int]) -> None:
        self._last = [], 0  # its number may go with the last topic that has it
        with memoryview(self.column).cast("I") as numbers:
            known = [number for topic in topics if (number := numbers[topic]) != _NO_NUMBER]
            for topic in topics:
                numbers[topic] = _NO_NUMBER
        self._numbers.give_up(known)

    def _make(self, matches: list[Match[Session, Subscribed]]) -> int:
        """Return the number of the audience that these subscriptions are."""
        if len(matches) > _MANY and matches == self._last[0]:
            return self._last[1]
        number = self._number(matches)
        if len(matches) > _MANY:
            self._last = matches, number
        return number

    def _number(self, matches: list[Match[Session, Subscribed]]) -> int:
        by_session: dict[Session, list[Subscribed]] = {}
        groups: set[tuple[str, str]] = set()
        for match in matches:
            if match.filter.group is not None:
                groups.add((match.filter.group, match.filter.pattern))
            else:
                by_session.setdefault(match.key, []).append(match.value)
        merged = self._numbers.merged
        return self._numbers.number_of(
            Audience(
                tuple([merged(session, subscribed) for session, subscribed in by_session.items()]),
                tuple([self._target_of(*group) for group in groups]),
            )
        )
