"""Who gets a topic's messages: topics become audiences, numbers that stand for merged subscriptions and shared groups.

Topics with the same subscribers share an audience, so a batch splits into as many parts as there are different ones.
The audience of each topic id is kept in one column that the partition kernel reads; when a filter comes or goes,
exactly the topics that it matches become unknown again. Audience 0 is nobody.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from everlog.base import Records, TopicTable
from everlog.broker.delivery.overlaps import combine, merge, of_own
from everlog.broker.delivery.partition import Partitioner
from everlog.broker.delivery.ports import SharedTarget
from everlog.sessions import MergedSubscription, Session, Subscribed
from everlog.topics import Filter, MatchCache, SubscriptionTrie
from everlog.topics import Subscription as Match

UNKNOWN = b"\xff\xff\xff\xff"
_NO_NAME = 0xFFFFFFFF
_MAX_AUDIENCES = 1 << 16  # beyond, all are forgotten and made anew as topics come by
_MANY = 64  # subscriptions of one topic; those of the next are often the same
_MAX_GONE = 4096  # so too when more subscriptions than this have gone: audiences hold on to the sessions they had

Part: TypeAlias = tuple[int, bytearray | None, int, int]  # audience, rows (None: every row), start, stop


class Audience(NamedTuple):
    """Who gets the messages of a topic."""

    subscriptions: tuple[MergedSubscription, ...] = ()
    targets: tuple[SharedTarget, ...] = ()


@dataclass(slots=True)
class _Names:
    """The broker's topic ids of a batch table's ids, and which table that is."""

    table: TopicTable
    generation: int
    column: bytearray


class Audiences:
    """The live subscriptions, and for every topic id of `table` the audience they make."""

    def __init__(
        self, table: TopicTable, target_of: Callable[[str, str], SharedTarget], max_topics: int = 200_000
    ) -> None:
        self._table = table
        self._target_of = target_of
        self._trie: SubscriptionTrie[Session, Subscribed] = SubscriptionTrie()
        self._cache: MatchCache[Session, Subscribed, int] = MatchCache(
            self._trie, self._make, max_topics=max_topics, on_drop=self._unknow
        )
        self.column = bytearray()
        self.by_number: list[Audience] = [Audience()]
        self._numbers: dict[tuple[object, ...], int] = {(): 0}
        self._by_session: dict[int, dict[Session, MergedSubscription]] = {}
        self._last: tuple[list[Match[Session, Subscribed]], int] = ([], 0)  # the last of many subscriptions
        self._gone = 0  # subscriptions that audiences may still hold the sessions of
        self._generation = table.generation
        self._names: list[_Names] = []
        self._partitioner = Partitioner()

    def __len__(self) -> int:
        return len(self._trie)

    def subscribe(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """Take in a filter of a connected session, new or with other options."""
        self._cache.insert(flt, session, subscribed)

    def unsubscribe(self, session: Session, flt: Filter) -> bool:
        """Let go of a filter that was given up or whose session has left; return whether it was there."""
        self._gone += 1
        return self._cache.remove(flt, session) is not None

    # Splitting a batch

    def split(self, records: Records, first_row: int, stop_row: int = -1) -> list[Part]:
        """Return the parts of a batch by audience, once every topic in it has one."""
        self._extend()
        names = self._names_of(records.table)
        while True:
            parts = self._partitioner.split(
                records, first_row, names.column, self.column, len(self.by_number), stop_row
            )
            if not isinstance(parts, set):
                return parts
            if not self._learn(names, parts):
                return self._split_uncached(records, first_row, stop_row)

    def _learn(self, names: _Names, topics: set[int]) -> bool:
        """Find the broker's ids and the audiences of these topics of a batch; False if the broker's table is full."""
        found = []
        for topic in topics:
            known = int.from_bytes(names.column[4 * topic : 4 * topic + 4], "little")
            if known == _NO_NAME:
                known = self._table.intern(names.table.name(topic))
                if known < 0:
                    return False
                names.column[4 * topic : 4 * topic + 4] = known.to_bytes(4, "little")
            found.append(known)
        self.resolve(found)
        return True

    def _split_uncached(self, records: Records, first_row: int, stop_row: int) -> list[Part]:
        """Split without caching topic ids, for when the broker's topic table is full."""
        at = records.start + records.layout.topics
        rows = memoryview(records.data)[at : at + 4 * records.count].cast("I")
        names = bytearray(b"\xff" * (4 * records.table.count))
        column = bytearray()
        for place, topic in enumerate(sorted(set(rows[first_row : stop_row if stop_row >= 0 else records.count]))):
            names[4 * topic : 4 * topic + 4] = place.to_bytes(4, "little")
            number = self._make(self._trie.match(records.table.name(topic).decode()))
            column += number.to_bytes(4, "little")
        parts = self._partitioner.split(records, first_row, names, column, len(self.by_number), stop_row)
        assert not isinstance(parts, set)
        return parts

    def _names_of(self, table: TopicTable) -> _Names:
        """Return the map from a batch table's topic ids to the broker's, kept for the few tables in use."""
        names = self._names[0] if self._names else None
        if names is None or names.table is not table:
            names = next((one for one in self._names if one.table is table), None) or _Names(table, -1, bytearray())
            self._names = [names, *(one for one in self._names if one is not names)][:8]
        if names.generation != self._table.generation:
            names.generation = self._table.generation
            names.column = bytearray()
        missing = table.count - len(names.column) // 4
        if missing > 0:
            names.column.extend(b"\xff" * (4 * missing))
        return names

    # Audiences

    def resolve(self, topics: Iterable[int]) -> None:
        """Find the audiences of these topic ids."""
        if len(self.by_number) > _MAX_AUDIENCES or self._gone > max(_MAX_GONE, 2 * len(self._trie)):
            self.forget()
        self._extend()
        for topic in topics:
            number = self._cache.lookup(topic, self._table.name(topic).decode())
            self.column[4 * topic : 4 * topic + 4] = number.to_bytes(4, "little")

    def merged(self, number: int, session: Session) -> MergedSubscription | None:
        """Return how a session that pulls gets the messages of an audience, if it is in it by itself."""
        by_session = self._by_session.get(number)
        if by_session is None:
            by_session = {merged.session: merged for merged in self.by_number[number].subscriptions}
            self._by_session[number] = by_session
        return by_session.get(session)

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
        self.by_number = [Audience()]
        self._numbers = {(): 0}
        self._by_session = {}
        self._last = [], 0
        self._gone = 0
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
        for topic in topics:
            self.column[4 * topic : 4 * topic + 4] = UNKNOWN

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
        targets = tuple(self._target_of(*group) for group in groups)
        # sessions and groups that an audience holds live as long as it, so their ids are theirs alone
        key: tuple[object, ...] = (
            *((id(session), *combine(subscribed), *of_own(subscribed)) for session, subscribed in by_session.items()),
            *map(id, targets),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.by_number)
            merged = tuple(merge(session, subscribed) for session, subscribed in by_session.items())
            self.by_number.append(Audience(merged, targets))
        return number
